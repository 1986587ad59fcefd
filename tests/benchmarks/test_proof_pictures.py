"""The pictures of the proofs show what their captions say, and their data are those of the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks import proof_pictures
from tests.repository import ROOT

PROOFS = ROOT / "docs" / "research" / "proofs"


def _table(path: Path) -> np.ndarray:
    return np.genfromtxt(path, delimiter=",", skip_header=1)


@pytest.mark.parametrize(
    ("draw", "name"),
    [(proof_pictures.swap, "random-swap"), (proof_pictures.gram, "worst-others")],
)
def test_proof_picture_is_that_of_the_page(
    draw: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    draw(tmp_path / name)
    # Round-off of a machine shows where a delta is near 1e-15.
    made, kept = _table(tmp_path / f"{name}.csv"), _table(PROOFS / f"{name}.csv")
    np.testing.assert_allclose(made, kept, rtol=1e-3, atol=1e-12)
    assert "<svg" in (tmp_path / f"{name}.svg").read_text("utf-8")


def test_swap_lies_between_exact_delta_and_bound() -> None:
    _, local, bound, swapped, exact = _table(PROOFS / "random-swap.csv").T
    assert np.all(exact <= swapped * (1 + 1e-5)) and np.all(swapped <= bound)
    assert np.all(bound <= local)
    shown = exact > 1e-6
    # "Exceeds the exact divergence by at most 15%", and by more than 10% somewhere.
    assert 1.1 < (swapped / exact)[shown].max() <= 1.15


def test_gram_matrices_are_ordered_in_every_stop_loss() -> None:
    _, inner, outer, above = _table(PROOFS / "worst-others.csv").T
    assert np.all(inner <= outer) and np.all(outer <= above)
    assert above[-1] > 3.0 * inner[-1]


def test_every_drawn_picture_has_its_data_beside_it() -> None:
    pages = [*(ROOT / "docs").rglob("*.md")]
    drawn = {
        page.parent / name
        for page in pages
        for name in re.findall(r"!\[[^]]*\]\(([\w-]+\.svg)\)", page.read_text("utf-8"))
    }
    # This one's data are tests/golden/epsilons.json.
    drawn.discard(ROOT / "docs" / "reference" / "bounds_by_clients.svg")
    assert len(drawn) >= 9
    assert not [each for each in drawn if not each.with_suffix(".csv").is_file()]

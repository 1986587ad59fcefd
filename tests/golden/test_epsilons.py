"""Every epsilon that is printed is the one that the code gives now."""

from __future__ import annotations

import os
import re

import pytest

from fl_shuffle.configuration.reading import resolve_config
from tests.golden import epsilons
from tests.repository import ROOT

KNOWN = epsilons.read()
HOW = "scripts/generate --epsilons works them out anew: look at what it changes"
RELATIVE = 1e-5
"""Searches stop within about a millionth of an epsilon."""
OF_ATTACKS = 1e-4
"""What an attack attains among very many clients moves with the last bits of a machine's
exponentials, and of the attacks that are searched through, many are nearly as good."""
QUICK = ("quickstart", "digits_record")


def require(found: dict[str, float | None], known: dict[str, float | None], what: str) -> None:
    assert found.keys() == known.keys(), HOW
    for name, value in known.items():
        now = found[name]
        within = OF_ATTACKS if name.startswith("attained") else RELATIVE
        same = now is None if value is None else now == pytest.approx(value, rel=within)
        assert same, f"{what}, {name}: {now!r}, and {value!r} is written down; {HOW}"


def slow_unless(quick: bool, value: object, *more: pytest.MarkDecorator) -> object:
    return pytest.param(value, marks=() if quick else (pytest.mark.slow, *more))


@pytest.mark.parametrize("rounds", [slow_unless(n == 1, n) for n in epsilons.ROUNDS])
@pytest.mark.parametrize("local", [slow_unless(x == 1.0, x) for x in epsilons.LOCALS])
def test_vectors(local: float, rounds: int) -> None:
    assert KNOWN["vectors"].keys() == {epsilons.key(*point) for point in epsilons.grid()}
    for clients in epsilons.CLIENTS:
        point = local, clients, rounds
        require(epsilons.of_vectors(*point), KNOWN["vectors"][epsilons.key(*point)], str(point))


SHARP = epsilons.sharp_grid()


@pytest.mark.parametrize(
    "name", [slow_unless(n == "analytic, 4, 10^3, 1, 1e-05", n) for n in SHARP]
)
def test_what_is_proven_is_near_the_attack(name: str) -> None:
    """The table of docs/research/proofs, section 13, is made of these numbers."""
    assert KNOWN["sharpness"].keys() == SHARP.keys()
    known = KNOWN["sharpness"][name]
    assert 1.0 <= known["vector"] / known["attack"] < 1.2
    require(epsilons.of_vectors(*SHARP[name]), known, name)


def test_other_questions() -> None:
    for name, entry in KNOWN["questions"].items():
        require({name: epsilons.answer(entry)["epsilon"]}, {name: entry["epsilon"]}, "questions")


@pytest.mark.parametrize("clients", [slow_unless(len(n) < 7, n) for n in KNOWN["side by side"]])
def test_bounds_side_by_side(clients: str) -> None:
    require(epsilons.side_by_side(int(clients)), KNOWN["side by side"][clients], clients)


@pytest.mark.parametrize(
    "name", [slow_unless(n in QUICK, n, pytest.mark.mnist) for n in epsilons.configurations()]
)
def test_shipped_configurations(name: str) -> None:
    if name not in QUICK and not os.environ.get("FL_SHUFFLE_DATA"):
        pytest.skip("FL_SHUFFLE_DATA does not name a folder with MNIST")
    config = resolve_config(epsilons.configurations()[name])
    require(epsilons.columns(config), KNOWN["configurations"][name], name)
    assert KNOWN["configurations"].keys() == epsilons.configurations().keys()


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (
            "docs/tutorials/first-federation.md",
            r"epsilon of ([\d.]+), which .*? is worth ([\d.]+)\. .*? between ([\d.]+) and",
        ),
        (
            "README.md",
            r"an epsilon of ([\d.]+)\. .*? is ([\d.]+), if .*? attack reaches ([\d.]+),",
        ),
    ],
)
def test_the_quickstarts_numbers_in_words(page: str, words: str) -> None:
    columns = KNOWN["configurations"]["quickstart"]
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    (shown,) = re.findall(words, text)
    for each, name in zip(shown, ("local", "shuffled", "shuffled_lower"), strict=True):
        digits = len(each.replace(".", "").lstrip("0"))
        # The last digit may be rounded to the safe side.
        wanted = float(f"{columns[name]:.{digits}g}")
        assert float(each) == pytest.approx(wanted, rel=2.0 * 10.0**-digits), (name, HOW)

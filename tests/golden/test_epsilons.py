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
QUICK = ("quickstart", "digits_record")


def require(found: dict[str, float | None], known: dict[str, float | None], what: str) -> None:
    assert found.keys() == known.keys(), HOW
    for name, value in known.items():
        now = found[name]
        same = now is None if value is None else now == pytest.approx(value, rel=RELATIVE)
        assert same, f"{what}, {name}: {now!r}, and {value!r} is written down; {HOW}"


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(50, marks=pytest.mark.slow)], ids=["once", "often"]
)
def test_vectors(rounds: int) -> None:
    points = [point for point in epsilons.grid() if point[2] == rounds]
    assert KNOWN["vectors"].keys() == {epsilons.key(*point) for point in epsilons.grid()}
    for point in points:
        require(epsilons.of_vectors(*point), KNOWN["vectors"][epsilons.key(*point)], str(point))


def test_other_questions() -> None:
    found = {question: epsilons.answer(question) for question in epsilons.QUESTIONS}
    require(found, KNOWN["questions"], "questions")


@pytest.mark.parametrize(
    "clients",
    [
        pytest.param(clients, marks=pytest.mark.slow if int(clients) > 10**5 else ())
        for clients in KNOWN["side by side"]
    ],
)
def test_bounds_side_by_side(clients: str) -> None:
    require(epsilons.side_by_side(int(clients)), KNOWN["side by side"][clients], clients)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else (pytest.mark.slow, pytest.mark.mnist))
        for name in epsilons.configurations()
    ],
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
        ("docs/guide.md", r"epsilon of ([\d.]+), which .*? is ([\d.]+), .*? least ([\d.]+)\. "),
        ("README.md", r"epsilon of ([\d.]+); after shuffling .*? ([\d.]+), .*? ([\d.]+)\. "),
    ],
)
def test_the_quickstarts_numbers_in_words(page: str, words: str) -> None:
    columns = KNOWN["configurations"]["quickstart"]
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    (shown,) = re.findall(words, text)
    for each, name in zip(shown, ("local", "proven", "lower"), strict=True):
        digits = len(each.replace(".", "").lstrip("0"))
        # The last digit may be rounded to the safe side.
        wanted = float(f"{columns[name]:.{digits}g}")
        assert float(each) == pytest.approx(wanted, rel=2.0 * 10.0**-digits), (name, HOW)

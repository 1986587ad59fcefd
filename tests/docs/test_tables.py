"""The numbers printed in the documents' tables are those that the code gives now."""

from __future__ import annotations

import math

import pytest

from benchmarks.bounds_by_clients import CLIENTS, COLUMNS, epsilon
from fl_shuffle.accounting.queries.bound_query import BoundQuery
from fl_shuffle.accounting.queries.methods import bound
from tests.architecture.test_limits import ROOT


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table under the line that starts with `heading`."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith(heading)) + 2
    last = next(place for place in range(first, len(lines)) if not lines[place].startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[first:last]]


def vector_epsilon(method: str, epsilon0: float, clients: int) -> float:
    question = {"randomizer": "gaussian", "unit": "client", "epsilon0": epsilon0, "delta0": 1e-5}
    answer = bound(
        BoundQuery.from_mapping({**question, "clients": clients, "delta": 1e-6, "method": method})
    ).epsilon
    assert answer is not None
    return answer


@pytest.mark.parametrize("clients", CLIENTS)
def test_all_bounds_side_by_side(clients: int) -> None:
    """Held to three digits, the last one by one unit."""
    found = {row[0]: row[1:] for row in rows("bounds.md", "| clients | GSPA")}
    cells = found[f"1e{round(math.log10(clients))}"]
    for cell, (name, (query, _)) in zip(cells, COLUMNS.items(), strict=True):
        now = epsilon(query, clients)
        if cell == "-":
            assert now is None, name
        else:
            assert now == pytest.approx(float(cell), rel=0.006), name


def test_how_sharp_the_theorem_is() -> None:
    for local, proven, lower, ratio in rows("proofs.md", "| local (eps0, 1e-5), n | proven |"):
        epsilon0, power = local.split(", 10^")
        now = vector_epsilon("proven", float(epsilon0), 10 ** int(power))
        assert now == pytest.approx(float(proven), rel=1e-3), local
        attack = vector_epsilon("attack", float(epsilon0), 10 ** int(power))
        # Exact on a data set, where the attack is what is certain of it.
        assert 0.995 * float(lower) <= attack <= 1.001 * float(lower), local
        assert float(ratio) == pytest.approx(now / float(lower), abs=0.006), local

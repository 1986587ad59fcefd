"""Colluders' reports hide nobody: `proven` is that of a batch without those that help most."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.bounds.sum_release.honest import AssumedHonest
from fl_shuffle.accounting.reports import ClientClass, DeclaredRound, RoundType
from fl_shuffle.accounting.rounds.round_library import RoundKind
from fl_shuffle.accounting.rounds.shuffled_view import ShuffledView
from fl_shuffle.accounting.rounds.trust import Trust


def kind(radius: float = 0.5, scale: float = 1.0, noise: str = "gaussian") -> ClientClass:
    return ClientClass(noise, scale, radius, 2.0 * radius, 1.0, 1e-5, 1)


def types(
    classes: list[ClientClass], counts: list[int], honest: AssumedHonest = None, arrived: int = 0
) -> dict[int, RoundKind]:
    """What the round is to each group: everybody, or the first `arrived` clients, took part."""
    class_of = np.repeat(np.arange(len(counts)), counts)
    view = ShuffledView(classes, class_of, schedule="aggregate", unit="client",
                        assumed_honest=honest)  # fmt: skip
    return view.round_types(np.arange(len(class_of)) < (arrived or len(class_of)))


@pytest.mark.parametrize(("honest", "left"), [(600, 600), (0.6, 600), (0.5999, 599)])
@pytest.mark.parametrize("noise", ["gaussian", "user"])
def test_colluders_are_left_out(noise: str, honest: AssumedHonest, left: int) -> None:
    own = [kind(noise=noise)]
    ((_, found),) = types(own, [1000], honest).items()
    others = found.others if isinstance(found, DeclaredRound) else sum(n for _, n in found.others)
    assert abs(others - (left - 1)) <= (0 if noise == "gaussian" else 16)


def test_those_are_left_out_that_help_most() -> None:
    """Small balls hide better: 150 colluders of either class leave the wide ones; and all may be of
    the client's own noise."""
    found = types([kind(0.2), kind(0.5), kind(0.5, scale=3.0)], [150, 400, 300], 850 - 150)
    narrow, wide, other = (found[index] for index in range(3))
    assert isinstance(narrow, RoundType) and narrow.others == ((0.5, 399),)
    assert isinstance(wide, RoundType) and wide.others == ((0.5, 399),)
    assert isinstance(other, RoundType) and other.others == ((0.5, 149),)


@pytest.mark.parametrize("lost", range(7))
def test_no_subset_of_the_batch_is_worse_than_what_is_left(lost: int) -> None:
    """Against every choice of colluders: the type kept is not better than what is really left."""
    radii = [0.1, 0.1, 0.2, 0.3, 0.3, 0.3]

    def batch(found: list[float]) -> RoundType:
        others = tuple((r, found.count(r)) for r in sorted(set(found)))
        return RoundType("gaussian", 1.0, 0.2, 0.4, others)

    kept = batch(radii).without(lost)
    assert sum(count for _, count in kept.others) == 6 - lost
    for chosen in itertools.combinations(radii, 6 - lost):
        assert kept.not_better_than(batch(list(chosen)))


def test_colluders_that_leave_nobody_to_hide_among() -> None:
    accounts = [
        Accountant([kind()], np.zeros(1000, dtype=np.int64), unit="client", schedule="aggregate",
                   delta=1e-6, trust=Trust(assumed_honest=honest))
        for honest in (2, 1)
    ]  # fmt: skip
    found, alone = (each.preview(1, np.ones(1000, dtype=bool)).columns for each in accounts)
    assert found["proven"].worst == found["local"].worst
    assert "998 of the reports may be colluders'" in found["proven"].note
    assert alone["sum"].worst == pytest.approx(alone["local"].worst, rel=1e-6)


def test_drop_outs_count_what_arrived() -> None:
    """Of 1,000 reports 700 arrive, 600 of them honest: those of 600. A share is of what arrived."""
    for honest, left in ((600, 600), (0.5, 350)):
        found = types([kind()], [1000], honest, arrived=700)[0]
        assert isinstance(found, RoundType)
        # A type that similar batches share: never better, and about 5% smaller at most.
        assert 0.94 * (left - 1) <= sum(count for _, count in found.others) <= left - 1

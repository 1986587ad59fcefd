"""A thousand clips of one's own: one certified curve holds for the worst client of them all."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fl_shuffle.accounting.reports import ReportClass, RoundType
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.accounting.rounds.round_library import outweighs
from fl_shuffle.accounting.rounds.shuffled_view import ShuffledView

SCALE = 8.0
RADII = st.lists(st.integers(1, 12), min_size=2, max_size=14)


def distinct_clips(clients: int) -> list[ClientClass]:
    radii = np.linspace(0.05, 1.0, clients)
    return [ClientClass("gaussian", SCALE, r, 2 * r, r, 1e-5, 1) for r in radii.tolist()]


@given(radii=RADII, lost=st.integers(0, 3))
def test_with_others_alike_the_largest_ball_is_nobody_s_better(radii: list[int], lost: int) -> None:
    batch = [ReportClass("gaussian", SCALE, float(r), 2.0 * r, 1) for r in radii]
    exact = [RoundType.of(batch, index).without(lost) for index in range(len(batch))]
    alike = [RoundType.of(batch, i).in_smallest_place().without(lost) for i in range(len(batch))]
    top = alike[int(np.argmax(radii))]
    assert len({kind.others for kind in alike}) == 1
    for mine, true in zip(alike, exact, strict=True):
        assert mine.not_better_than(true)
        assert top.not_better_than(mine) and top.not_better_than(true)
        # So many others as there are, and no larger balls than there are.
        assert sum(n for _, n in mine.others) == sum(n for _, n in true.others)


def test_every_client_s_true_round_is_within_what_is_certified() -> None:
    classes = distinct_clips(300)
    view = ShuffledView(classes, np.arange(300), schedule="aggregate", unit="client")
    everybody = np.ones(300, dtype=bool)
    kinds = view.round_types(everybody)
    top = kinds[max(kinds)]
    batch = [ReportClass("gaussian", SCALE, c.radius, c.sensitivity, 1) for c in classes]
    assert len(kinds) == 20
    for client in range(300):
        kind = kinds[int(view.account_of[client])]
        assert isinstance(kind, RoundType) and isinstance(top, RoundType)
        assert kind.not_better_than(RoundType.of(batch, client))
        assert top.not_better_than(kind)


def test_histories_are_matched_round_by_round() -> None:
    batch = [ReportClass("gaussian", SCALE, r, 2 * r, 1) for r in (1.0, 2.0, 3.0)]
    small, middle, large = (RoundType.of(batch, i).in_smallest_place() for i in range(3))
    assert outweighs({large: 3}, {small: 1, middle: 2})
    assert outweighs({large: 1, middle: 1}, {middle: 1, small: 1})
    assert not outweighs({large: 2}, {small: 1, middle: 2})
    assert not outweighs({middle: 3}, {large: 1})
    assert outweighs({large: 2}, {large: 1})

"""A client's history of rounds: reference values, sharing of types, saving, and order laws."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon
from fl_shuffle.accounting.bounds.report_class import ReportClass
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.rounds.round_library import (
    RoundLibrary,
    RoundType,
    spent_from_json,
    spent_to_json,
)
from fl_shuffle.errors import InvalidValueError

LAPLACE = [ReportClass("laplace", 4.0, 1.0, 2.0, 1000)]
GAUSSIAN = [ReportClass("gaussian", 10.0, 1.0, 2.0, 1000)]


def test_reference_values_of_many_rounds() -> None:
    """Local 0.5, n = 1000, delta 1e-6: 0.05801 for one round; 0.4708 for fifty, on a fine grid."""
    library = RoundLibrary()
    kind = RoundType.of(LAPLACE, 0)
    assert library.epsilon({kind: 1}, 1e-6) == pytest.approx(0.05801, rel=1e-3)
    fifty = library.epsilon({kind: 50}, 1e-6)
    assert 0.4708 * 0.999 <= fifty <= 0.4708 * 1.01
    assert library.epsilon({}, 1e-6) == 0.0


def test_history_grows_and_never_beats_or_exceeds_what_it_should() -> None:
    library = RoundLibrary()
    kind = RoundType.of(GAUSSIAN, 0)
    values = [library.epsilon({kind: t}, 1e-6) for t in (1, 2, 5, 20, 100)]
    assert values == sorted(values)
    for times, value in zip((1, 2, 5, 20, 100), values, strict=True):
        assert value <= gaussian_epsilon(1e-6, 0.2 * math.sqrt(times))
        assert value <= times * values[0] * 1.001 + 1e-9


def test_without_credit_the_local_composition_is_exact() -> None:
    library = RoundLibrary()
    lonely = [ReportClass("gaussian", 10.0, 1.0, 2.0, 1)]
    kind = RoundType.of(lonely, 0)
    assert library.epsilon({kind: 50}, 1e-5) == gaussian_epsilon(1e-5, 0.2 * math.sqrt(50))
    alone = RoundType.of([ReportClass("laplace", 4.0, 1.0, 2.0, 1)], 0)
    assert library.epsilon({alone: 7}, 1e-5) == laplace_epsilon(1e-5, 0.5, 7)
    assert library.profile({alone: 1}, [0.2])[0] == pytest.approx(-math.expm1(-0.15))


def test_rounds_with_and_without_credit_compose() -> None:
    """A round in which nobody else arrived costs its local loss, and is not forgotten."""
    library = RoundLibrary()
    full = RoundType.of(GAUSSIAN, 0)
    lonely = RoundType.of([ReportClass("gaussian", 10.0, 1.0, 2.0, 1)], 0)
    both = library.epsilon({full: 20, lonely: 1}, 1e-6)
    assert both > library.epsilon({full: 20}, 1e-6)
    assert both > library.epsilon({lonely: 1}, 1e-6) * 0.999
    assert both < library.local_epsilon({full: 20, lonely: 1}, 1e-6)


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[float, int]]:
    radii = draw(st.lists(st.sampled_from([0.1, 0.2, 0.5, 1.0]), min_size=1, max_size=3))
    return [(radius, draw(st.integers(1, 40))) for radius in sorted(set(radii))]


def a_type(others: list[tuple[float, int]]) -> RoundType:
    return RoundType("laplace", 4.0, 1.0, 2.0, tuple(others))


@settings(max_examples=60, deadline=None)
@given(batches(), batches())
def test_the_order_of_types_is_sound(first: list, second: list) -> None:
    """Where one batch is called not better than another, its curve is not below."""
    a, b = a_type(first), a_type(second)
    assert a.not_better_than(a)
    whole = a_type([(radius, 40 * count) for radius, count in second])
    large = a_type([(radius, 13 * count) for radius, count in second])
    assert large.lessened(whole).not_better_than(large)
    assert whole.lessened(whole) == whole
    within = {r: sum(n for x, n in second if x <= r) for r in (0.1, 0.2, 0.5, 1.0)}
    mine = {r: sum(n for x, n in first if x <= r) for r in (0.1, 0.2, 0.5, 1.0)}
    assert a.not_better_than(b) == all(mine[r] <= within[r] for r in mine)
    if a.not_better_than(b):
        epsilon = 0.1
        assert a.curve().delta(epsilon) >= b.curve().delta(epsilon) * (1 - 2.5e-3)


@pytest.mark.parametrize(
    ("noise", "scale", "radius", "sensitivity", "stands"),
    [
        ("laplace", 4.0, 1.0, 1.0, True),
        ("laplace", 4.0, 0.5, 2.0, True),
        ("laplace", 4.0, 1.5, 2.0, False),
        ("laplace", 4.0, 1.0, 2.5, False),
        ("laplace", 4.1, 1.0, 2.0, False),
        ("gaussian", 4.0, 1.0, 2.0, False),
    ],
)
def test_a_type_stands_for_clients_of_the_same_noise_that_can_move_less(
    noise: str, scale: float, radius: float, sensitivity: float, stands: bool
) -> None:
    other = RoundType(noise, scale, radius, sensitivity, ((1.0, 50),))
    assert a_type([(1.0, 5)]).not_better_than(other) is stands


def test_slightly_different_batches_share_a_few_types() -> None:
    """200 rounds of a batch of about 1000: few types, and at most 2% more epsilon than exact."""
    rng = np.random.default_rng(0)
    library = RoundLibrary()
    spent: dict[RoundType, int] = {}
    exact: dict[int, int] = {}
    for _ in range(200):
        count = int(rng.binomial(2000, 0.5))
        batch = [ReportClass("laplace", 4.0, 1.0, 2.0, count)]
        kind = RoundType.of(batch, 0).lessened(a_type([(1.0, 1999)]))
        assert sum(n for _, n in kind.others) <= count - 1
        spent[kind] = spent.get(kind, 0) + 1
        exact[count] = exact.get(count, 0) + 1
    assert len(spent) <= 8 < len(exact)
    typical = RoundLibrary()
    kind = RoundType.of(LAPLACE, 0)
    assert library.epsilon(spent, 1e-6) == pytest.approx(
        typical.epsilon({kind: 200}, 1e-6), rel=0.03
    )


def test_a_history_survives_json() -> None:
    library = RoundLibrary()
    kinds = [RoundType.of(GAUSSIAN, 0), RoundType.of(LAPLACE, 0)]
    spent = {kinds[0]: 3, kinds[1]: 2}
    restored = spent_from_json(json.loads(json.dumps(spent_to_json(spent))))
    assert restored == spent
    assert RoundLibrary().epsilon(restored, 1e-6) == library.epsilon(spent, 1e-6)
    with pytest.raises(InvalidValueError, match="round"):
        spent_from_json([{"noise": "gaussian"}])
    broken = spent_to_json(spent)
    broken[0]["times"] = -1
    with pytest.raises(InvalidValueError, match="times"):
        spent_from_json(broken)


def test_trade_off_and_profile_of_a_history() -> None:
    library = RoundLibrary()
    spent = {RoundType.of(GAUSSIAN, 0): 30}
    epsilon = library.epsilon(spent, 1e-6)
    assert library.profile(spent, [epsilon])[0] <= 1e-6 * 1.01
    curve = library.trade_off(spent, np.linspace(0.0, 1.0, 11))
    assert np.all(np.diff(curve) <= 0.0)
    assert np.all(curve <= 1.0 - np.linspace(0.0, 1.0, 11) + 1e-9)
    assert curve[5] > 0.4

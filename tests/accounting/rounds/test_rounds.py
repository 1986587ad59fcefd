"""A client's history of rounds: reference values, sharing of types, saving, and order laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.reports import DeclaredRound, ReportClass, RoundType
from fl_shuffle.accounting.rounds.round_library import RoundKind, RoundLibrary

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


def test_without_credit_the_local_composition_is_exact() -> None:
    library = RoundLibrary()
    lonely = [ReportClass("gaussian", 10.0, 1.0, 2.0, 1)]
    kind = RoundType.of(lonely, 0)
    assert library.epsilon({kind: 50}, 1e-5) == gaussian_epsilon(1e-5, 0.2 * math.sqrt(50))
    alone = RoundType.of([ReportClass("laplace", 4.0, 1.0, 2.0, 1)], 0)
    assert library.epsilon({alone: 7}, 1e-5) == laplace_epsilon(1e-5, 0.5, 7)
    assert library.profile({alone: 1}, [0.2])[0] == pytest.approx(-math.expm1(-0.15))


@pytest.mark.parametrize(
    ("gaussian", "laplace", "declared"),
    [(1, 1, 0), (3, 1, 0), (1, 0, 1), (0, 1, 1), (2, 1, 1), (0, 0, 2)],
)
def test_the_local_column_of_several_kinds_of_reports_holds_at_its_delta(
    gaussian: int, laplace: int, declared: int
) -> None:
    """Against the exact composition: Gaussian reports, a Laplace report one coordinate apart,
    and reports of another kind that, as they declare, are recognized with probability delta0."""
    delta, mu, ratio = 1e-6, 0.2, 0.5
    spent: dict[RoundKind, int] = {}
    if gaussian:
        spent[RoundType("gaussian", 10.0, 1.0, 10.0 * mu, ())] = gaussian
    if laplace:
        spent[RoundType("laplace", 4.0, 1.0, 4.0 * ratio, ())] = laplace
    for share in [0.3] if declared == 1 else [0.8, 0.7][:declared]:
        spent[DeclaredRound(1e-9 * share, share * delta, 0)] = 1
    claimed = RoundLibrary().local_epsilon(spent, delta)
    hidden = math.prod(1.0 - kind.delta0 for kind in spent if isinstance(kind, DeclaredRound))
    # Losses of one Laplace report: r, -r, and exponential between the two.
    inner = np.linspace(-ratio, ratio, 2001)
    centre = 0.5 * (inner[:-1] + inner[1:])
    losses = np.concatenate([[ratio, -ratio], centre])
    between = 0.25 * np.exp(0.5 * (centre - ratio)) * np.diff(inner)
    masses = np.concatenate([[0.5, 0.5 * math.exp(-ratio)], between])
    assert masses.sum() == pytest.approx(1.0, abs=1e-6)

    def exact(epsilon: float, with_laplace: bool) -> float:
        if with_laplace:
            parts = zip(masses.tolist(), losses.tolist(), strict=True)
            return math.fsum(mass * exact(epsilon - loss, False) for mass, loss in parts)
        width = mu * math.sqrt(gaussian)
        if width == 0.0:
            return max(0.0, -math.expm1(epsilon))
        upper = 0.5 * math.erfc((epsilon / width - width / 2.0) / math.sqrt(2.0))
        lower = 0.5 * math.erfc((epsilon / width + width / 2.0) / math.sqrt(2.0))
        return upper - math.exp(epsilon) * lower

    if declared == 2:
        # Either is within delta, both together recognize a client more often than that.
        assert 1.0 - hidden > delta and math.isinf(claimed)
    else:
        assert 1.0 - hidden * (1.0 - exact(claimed, laplace == 1)) <= delta * (1.0 + 1e-6)


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
        assert VectorCurve(a).delta(epsilon) >= VectorCurve(b).delta(epsilon) * (1 - 2.5e-3)


@pytest.mark.parametrize(
    ("noise", "scale", "radius", "sensitivity", "stands"),
    [
        ("laplace", 4.0, 0.5, 2.0, True),
        ("laplace", 4.0, 1.5, 2.0, False),
        ("laplace", 4.0, 1.0, 2.5, False),
        ("laplace", 4.1, 1.0, 2.0, False),
    ],
)
def test_a_type_stands_for_clients_of_the_same_noise_that_can_move_less(
    noise: str, scale: float, radius: float, sensitivity: float, stands: bool
) -> None:
    other = RoundType(noise, scale, radius, sensitivity, ((1.0, 50),))
    assert a_type([(1.0, 5)]).not_better_than(other) is stands

"""Numbers the sharper theorem reaches, between what an attack reaches and what is asked of it."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from fl_shuffle.accounting.bounds.partial_shuffle.bound import Setting, third_order_delta
from fl_shuffle.accounting.bounds.report_class import ReportClass
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.rounds.equal_rounds import shuffled_pair

DELTA = 1e-6
CLASSICAL = math.sqrt(2.0 * math.log(1.25e5))
CLIENT_UNIT = [
    # local epsilon at delta0 = 1e-5, clients, an attack's epsilon, what is to be reached
    (0.5, 10**3, 0.01003, 0.01094 * 1.01),
    (0.5, 10**4, 0.002823, 0.002951 * 1.01),
    (0.5, 10**6, 0.0002019, 0.0002135 * 1.01),
    (1.0, 10**3, 0.02148, 0.02392 * 1.01),
    (1.0, 10**4, 0.00612, 0.00641 * 1.01),
    (1.0, 10**5, 0.001707, 0.001778 * 1.01),
    (2.0, 10**3, 0.0470, 0.0544 * 1.01),
    (2.0, 10**4, 0.01353, 0.01428 * 1.01),
    (2.0, 10**6, 0.001057, 0.001103 * 1.01),
    (3.25, 10**3, 0.0864, 0.1148 * 1.01),
    (3.25, 10**4, 0.02488, 0.0268 * 1.01),
    (4.0, 10**3, 0.1175, 0.175),
    (4.0, 10**4, 0.0335, 0.0368 * 1.01),
    (4.0, 10**5, 0.00955, 0.0100 * 1.01),
    (4.0, 10**6, 0.002683, 0.002794 * 1.01),
    (4.0, 10**8, 0.0, 0.000205),
]


def client_curve(epsilon0: float, clients: int) -> VectorCurve:
    mu = epsilon0 / CLASSICAL
    return VectorCurve([ReportClass("gaussian", 1.0, 0.5 * mu, mu, clients)], relative_error=2e-3)


def record_curve(
    epsilon0: float, records: int, clients: int, noise: str = "gaussian"
) -> VectorCurve:
    move = epsilon0 / CLASSICAL if noise == "gaussian" else epsilon0
    return VectorCurve(
        [ReportClass(noise, 1.0, 0.5 * records * move, move, clients)], relative_error=2e-3
    )


@pytest.mark.parametrize(("epsilon0", "clients", "attack", "reached"), CLIENT_UNIT)
def test_one_round_of_whole_clients(
    epsilon0: float, clients: int, attack: float, reached: float
) -> None:
    assert attack <= client_curve(epsilon0, clients).epsilon(DELTA) <= reached


@pytest.mark.parametrize(
    ("records", "epsilon0", "attack", "reached"),
    [(2, 0.5, 0.0029, 0.0036), (6, 1.0, 0.030, 0.055), (12, 0.5, 0.0088, 0.0225)],
)
def test_one_record_of_several(
    records: int, epsilon0: float, attack: float, reached: float
) -> None:
    assert attack <= record_curve(epsilon0, records, 10**4).epsilon(DELTA) <= reached


def test_small_batches_have_the_sharper_bound() -> None:
    """The blanket alone proves 0.0983 and 0.130."""
    assert 0.0742 <= client_curve(1.0, 100).epsilon(DELTA) <= 0.085
    assert record_curve(0.5, 4, 100).epsilon(DELTA) <= 0.055


@pytest.mark.parametrize(("spread", "clients"), [(0.03, 100), (0.029, 40)])
def test_small_batches_of_faint_reports_lose_nothing(spread: float, clients: int) -> None:
    """There the blanket alone is computed."""
    setting = Setting(clients - 1, spread, spread, spread, spread / 2, spread / 2)
    own = ReportClass("gaussian", 1.0, 0.5 * spread, spread, clients)
    epsilon = VectorCurve([own], relative_error=2e-3).epsilon(DELTA)
    assert third_order_delta(setting, 0.99 * epsilon) >= DELTA


def test_faint_records_of_many_are_hidden_far_out() -> None:
    """A move that is small against the spread leaves next to nothing above any cut."""
    move = 0.1 / CLASSICAL
    setting = Setting(9999, move, 6 * move, 6 * move, 3 * move, 3 * move)
    for spreads, reached in ((1.5, 7e-6), (3.0, 1e-7), (6.5, 4e-15), (9.0, 3e-23)):
        assert third_order_delta(setting, spreads * setting.predicted_mu) <= reached


@pytest.mark.parametrize(("mu", "attack", "reached"), [(0.7716, 0.245, 0.29), (0.8256, 0.0, 0.40)])
def test_fifty_rounds_of_ten_thousand_clients(mu: float, attack: float, reached: float) -> None:
    curve = VectorCurve([ReportClass("gaussian", 1.0, 0.5 * mu, mu, 10**4)], relative_error=2e-3)
    assert attack <= Composition([(shuffled_pair(curve), 50)]).epsilon(DELTA) <= reached


def test_several_laplace_records_are_hidden_by_the_sharper_bound() -> None:
    # 0.0848 is what the blanket alone proves.
    assert record_curve(1.0, 2, 10**4, "laplace").epsilon(DELTA) <= 0.066


def test_curves_fall_with_epsilon_and_with_clients() -> None:
    for epsilon0, clients in [(0.5, 200), (2.0, 3000), (4.0, 50_000)]:
        curve, larger = client_curve(epsilon0, clients), client_curve(epsilon0, 2 * clients)
        grid = [step * curve.predicted_mu for step in (0.0, 0.3, 1.0, 2.5, 4.0, 6.0)]
        values = [curve.delta(epsilon) for epsilon in grid]
        assert all(late <= early for early, late in pairwise(values))
        assert all(
            larger.delta(epsilon) < value for epsilon, value in zip(grid, values, strict=True)
        )
        assert all(
            value <= curve.local_delta(epsilon) for epsilon, value in zip(grid, values, strict=True)
        )


def test_the_widest_others_are_left_out_where_that_pays() -> None:
    own = ReportClass("gaussian", 1.0, 0.2, 0.4, 2000)
    alone = VectorCurve([own], relative_error=2e-3).epsilon(DELTA)
    among = VectorCurve(
        [own, ReportClass("gaussian", 1.0, 1.2, 2.4, 300)], relative_error=2e-3
    ).epsilon(DELTA)
    near = VectorCurve(
        [own, ReportClass("gaussian", 1.0, 0.25, 0.5, 2000)], relative_error=2e-3
    ).epsilon(DELTA)
    assert among <= alone * 1.003
    assert near < 0.85 * alone

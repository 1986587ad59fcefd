"""The tests of order and noise keep their level, and have the power that they state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from fl_shuffle.auditing.findings import Check
from fl_shuffle.auditing.noise import (
    AGREEING,
    POWER_SPREAD,
    Residuals,
    detectable_correlation,
    reports_check,
    sign_checks,
    sign_p_value,
    stretches_check,
)
from fl_shuffle.auditing.orders import (
    STATISTICS,
    TARGET_STAYS,
    TESTS,
    SeenOrders,
    order_p_values,
    rounds_to_catch,
)

CLIENTS, ROUNDS = 10, 24
NODES = np.repeat([2, 3], CLIENTS // 2)
UNLIKELY = 1e-4


def seen(orders: np.ndarray) -> SeenOrders:
    return SeenOrders(orders, NODES, "test")


def uniform_orders(generator: np.random.Generator, rounds: int = ROUNDS) -> np.ndarray:
    return np.stack([generator.permutation(CLIENTS) for _ in range(rounds)])


def test_p_values_of_random_orders_are_uniform() -> None:
    """50 audits, seven statistics: Kolmogorov-Smirnov at 1e-4 each (the target's is discrete and
    may only lie above)."""
    generator = np.random.default_rng(1)
    found = [order_p_values(seen(uniform_orders(generator)), 4, generator) for _ in range(50)]
    for name in (*STATISTICS, TARGET_STAYS):
        values = [one[name] for one in found]
        side = "greater" if name == TARGET_STAYS else "two-sided"
        assert stats.kstest(values, "uniform", alternative=side).pvalue > UNLIKELY, name


def test_the_stated_power_of_the_order_test() -> None:
    """As many rounds unshuffled as the audit says it catches with 95%: of 12 audits at least 8."""
    level, rounds = 1.25e-4, 64
    need = rounds_to_catch(rounds, level, 0.95)
    assert need is not None
    assert need < rounds // 3
    caught = 0
    for seed in range(12):
        generator = np.random.default_rng(seed)
        orders = uniform_orders(generator, rounds)
        orders[generator.permutation(rounds)[:need]] = np.arange(CLIENTS)
        found = order_p_values(seen(orders), 4, generator)
        caught += TESTS * min(found.values()) <= level
    assert caught >= 8


def noise(seed: int, *, law: str = "gaussian", clients: int = 40, width: int = 12) -> np.ndarray:
    generator = np.random.default_rng(seed)
    shape = (4, clients, width)
    drawn = generator.normal(size=shape) if law == "gaussian" else generator.laplace(size=shape)
    return np.asarray(np.rint(drawn * 2.0**16) / 2.0**16)


def residuals(values: np.ndarray, law: str = "gaussian") -> Residuals:
    return Residuals(values, np.full(values.shape[1], 2.0**-17), law)


def all_checks(values: Residuals, level: float) -> list[Check]:
    """Of an audit whose short reports are looked at in full."""
    equal = reports_check(values, level), stretches_check(values, level)
    return sign_checks(values, level) + [check for check in equal if check is not None]


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_checks_of_fresh_noise_keep_their_level(law: str) -> None:
    """320 checks at level 0.02, a quarter of which nearly never refutes: no more than 14 refuted
    (mean 4.8; chance of more below 2e-4)."""
    refuted = sum(
        check.refuted
        for seed in range(80)
        for check in all_checks(residuals(noise(seed, law=law), law), 0.02)
    )
    assert refuted <= 14


def test_the_stated_power_against_a_common_part() -> None:
    """Noise with the correlation that the test says it sees with 95%: of 40 tries at least 32."""
    level, caught = 1e-3, 0
    for seed in range(40):
        generator = np.random.default_rng(seed)
        common, own = generator.normal(size=(2, 300)), generator.normal(size=(2, 2, 300))
        products = 300 * 2
        part = detectable_correlation(products, level, POWER_SPREAD)
        assert 0.05 < part < 0.5
        values = np.sqrt(part) * common[:, None, :] + np.sqrt(1.0 - part) * own
        p_value, count = sign_p_value(values, 1)
        assert count == products
        caught += p_value <= level
    assert caught >= 32


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("where", [range(12), (0, 3, 7, 11), (1, 2, 5, 6, 10)])
@pytest.mark.parametrize(
    ("first", "second"), [((2, 5), (2, 31)), ((0, 7), (3, 7)), ((1, 4), (2, 9))]
)
def test_one_pair_with_the_same_noise_is_found(
    first: tuple[int, int], second: tuple[int, int], where: Sequence[int], sign: float
) -> None:
    """In all coordinates or in a few, scattered over the report."""
    values, at = noise(3), list(where)
    values[second][at] = sign * values[first][at] + 2.0**-17
    pair = reports_check(residuals(values), UNLIKELY)
    assert pair is not None and pair.refuted and pair.p_value < 1e-8
    for number, client in (first, second):
        assert f"round {number + 1}, client {client}," in pair.note
    assert f"in {len(at)} coordinates" in pair.note


def test_of_very_many_reports_more_values_must_agree() -> None:
    """Where four agree by chance, so many are asked for that they do not, and then found."""
    generator = np.random.default_rng(6)
    values = np.rint(generator.normal(size=(2, 400, 32)) * 256.0) / 256.0
    coarse = Residuals(values, np.full(400, 2.0**-9), "gaussian")
    fresh = reports_check(coarse, UNLIKELY)
    assert fresh is not None and not fresh.refuted and fresh.power.startswith("would have caught")
    assert int(fresh.method.split()[0]) > AGREEING
    values[1, 17, 4:20] = values[0, 3, 4:20]
    found = reports_check(coarse, UNLIKELY)
    assert found is not None and found.refuted and "client 17" in found.note


def places(values: np.ndarray, law: str = "gaussian") -> Residuals:
    return Residuals(values, np.full(values.shape[1], 2.0**-17), law)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_fresh_noise_has_no_stretch_that_occurs_again(law: str) -> None:
    for seed in range(10):
        values = noise(seed, law=law, width=100)
        values[:, ::7, 50] = 0.0  # The middle of the grid has no sign.
        found = stretches_check(places(values, law), UNLIKELY)
        assert found is not None and not found.refuted
        assert found.power.startswith("would have caught")


@pytest.mark.parametrize("turned", [1.0, -1.0])
@pytest.mark.parametrize(("first", "length"), [(0, 100), (64, 36), (40, AGREEING)])
def test_a_stretch_that_occurs_again_is_found_wherever_it_lies(
    first: int, length: int, turned: float
) -> None:
    values = noise(1, width=100)
    copied = turned * values[0, 3, first : first + length]
    values[2, 17] = np.roll(np.concatenate([copied, values[2, 17, length:]]), 11)
    found = stretches_check(places(values), UNLIKELY)
    assert found is not None and found.refuted and found.p_value < 1e-6
    assert "client 3" in found.note and "client 17" in found.note

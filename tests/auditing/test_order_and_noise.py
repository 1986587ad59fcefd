"""The tests of order and noise keep their level, and have the power that they state."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fl_shuffle.auditing.independence import (
    POWER_SPREAD,
    Residuals,
    closest_pair,
    detectable_correlation,
    noise_checks,
    sign_p_value,
)
from fl_shuffle.auditing.order import (
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


def test_too_few_rounds_have_no_power() -> None:
    assert rounds_to_catch(1, 1e-4, 0.95) is None


def noise(seed: int, *, law: str = "gaussian", clients: int = 40, width: int = 12) -> np.ndarray:
    generator = np.random.default_rng(seed)
    shape = (4, clients, width)
    drawn = generator.normal(size=shape) if law == "gaussian" else generator.laplace(size=shape)
    return np.asarray(np.rint(drawn * 2.0**16) / 2.0**16)


def residuals(values: np.ndarray, law: str = "gaussian") -> Residuals:
    return Residuals(values, np.full(values.shape[1], 2.0**-17), law)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_checks_of_fresh_noise_keep_their_level(law: str) -> None:
    """240 checks at level 0.02: no more than 14 refuted (mean 4.8; chance of more below 2e-4)."""
    refuted = sum(
        check.refuted
        for seed in range(80)
        for check in noise_checks(residuals(noise(seed, law=law), law), 0.02)
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
@pytest.mark.parametrize(
    ("first", "second", "same_round"),
    [((2, 5), (2, 31), True), ((0, 7), (3, 7), False), ((1, 4), (2, 9), False)],
)
def test_one_pair_with_the_same_noise_is_found(
    first: tuple[int, int], second: tuple[int, int], same_round: bool, sign: float
) -> None:
    values = noise(3)
    values[second] = sign * values[first] + 2.0**-17
    pair = closest_pair(residuals(values), same_round=same_round)
    assert pair is not None
    assert {pair.first, pair.second} == {first, second}
    assert pair.equal == 12
    assert pair.p_value < 1e-30
    other = closest_pair(residuals(values), same_round=not same_round)
    assert other is not None
    assert other.p_value > 1e-3


def test_noise_that_is_missing_is_found() -> None:
    """Reports whose other coordinates bear no noise at all agree there."""
    values = noise(4)
    values[:, :, 1:] = 0.0
    pair = closest_pair(residuals(values), same_round=True)
    assert pair is not None
    assert pair.p_value < 1e-20


def test_the_same_noise_in_all_coordinates_is_found() -> None:
    values = np.repeat(noise(5)[:, :, :1], 12, axis=2)
    games = {check.game: check for check in noise_checks(residuals(values), 1e-4)}
    assert games["two coordinates of one report, subtracted"].refuted

"""The tests of order and noise keep their level, and have the power that they state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from fl_shuffle.auditing.checks import (
    AGREEING,
    TARGET_STAYS,
    TESTS,
    TWO_CLIENTS,
    Residuals,
    equal_values,
    order_p_values,
    rounds_to_catch,
    sign_checks,
)
from fl_shuffle.auditing.findings import Check

CLIENTS = 10
UNLIKELY = 1e-4


def seen(generator: np.random.Generator, rounds: int, unshuffled: int = 0) -> np.ndarray:
    orders = np.stack([generator.permutation(CLIENTS) for _ in range(rounds)])
    orders[generator.permutation(rounds)[:unshuffled]] = np.arange(CLIENTS)
    return orders


def test_p_values_of_random_orders_are_uniform() -> None:
    """50 audits, seven statistics: Kolmogorov-Smirnov at 1e-4 each (the target's is discrete and
    may only lie above)."""
    generator = np.random.default_rng(1)
    found = [order_p_values(seen(generator, 24), 4, generator) for _ in range(50)]
    assert len(found[0]) == TESTS
    for name in found[0]:
        side = "greater" if name == TARGET_STAYS else "two-sided"
        values = [one[name] for one in found]
        assert stats.kstest(values, "uniform", alternative=side).pvalue > UNLIKELY, name


def test_the_stated_power_of_the_order_test() -> None:
    """As many rounds unshuffled as the audit says it catches with 95%: of 12 audits at least 8."""
    level, rounds = 1.25e-4, 64
    need = rounds_to_catch(rounds, level)
    assert need is not None and need < rounds // 3
    caught = 0
    for seed in range(12):
        generator = np.random.default_rng(seed)
        found = order_p_values(seen(generator, rounds, need), 4, generator)
        caught += TESTS * min(found.values()) <= level
    assert caught >= 8


def noise(seed: int, law: str = "gaussian", *, bits: int = 16, shape: tuple[int, ...] = (4, 40, 12)
          ) -> Residuals:  # fmt: skip
    """Fresh noise on a grid of step 2^-bits."""
    generator = np.random.default_rng(seed)
    drawn = generator.normal(size=shape) if law == "gaussian" else generator.laplace(size=shape)
    return Residuals(np.rint(drawn * 2.0**bits) / 2.0**bits, 0.5**bits / 2.0, law)


def equal(values: Residuals, *, moved: bool) -> Check:
    found = equal_values(values, UNLIKELY, moved=moved)
    assert found is not None
    return found


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_checks_of_fresh_noise_keep_their_level(law: str) -> None:
    """320 checks at level 0.02, a quarter of which nearly never refutes: no more than 14 refuted
    (mean 4.8; chance of more below 2e-4)."""
    refuted = 0
    for seed in range(80):
        values = noise(seed, law)
        pairs = [equal_values(values, 0.02, moved=moved) for moved in (False, True)]
        refuted += sum(check.refuted for check in [*sign_checks(values, 0.02), *pairs] if check)
    assert refuted <= 14


def test_the_stated_power_against_a_common_part() -> None:
    """Noise with the correlation that the test says it sees with 95%: of 40 tries at least 32."""
    part, caught = 0.0, 0
    for seed in range(40):
        generator = np.random.default_rng(seed)
        common, own = generator.normal(size=(2, 1, 300)), generator.normal(size=(2, 2, 300))
        values = np.sqrt(part) * common + np.sqrt(1.0 - part) * own
        [check] = [each for each in sign_checks(Residuals(values, 0.0, "gaussian"), 1e-3)
                   if each.game == TWO_CLIENTS]  # fmt: skip
        part = part or float(check.power.split()[-1])
        caught += check.refuted
    assert 0.05 < part < 0.5 and caught >= 32


@pytest.mark.parametrize(("law", "sign"), [("gaussian", 1.0), ("laplace", -1.0)])
@pytest.mark.parametrize(
    ("second", "where", "on"),
    [
        ((0, 31), range(100), 0),
        ((2, 5), (0, 3, 7, 11, 64), 0),
        ((2, 31), (0, 3, 7, 11, 64), 30),
        ((2, 31), range(64, 100), -50),
        ((2, 31), range(40, 40 + AGREEING + 1), 11),
    ],
)
def test_noise_that_occurs_again_is_found(
    second: tuple[int, int], where: Sequence[int], on: int, law: str, sign: float
) -> None:
    """In all coordinates or in a few, scattered over the report, or as many further on."""
    drawn, at, moved = noise(1, law, shape=(4, 40, 100)), np.array(where), on != 0
    drawn.values[:, ::7, 50] = 0.0  # The middle of the grid has no sign.
    assert not equal(drawn, moved=moved).refuted
    drawn.values[second][at + on] = sign * drawn.values[0, 5][at] + 2.0**-17
    found = equal(drawn, moved=moved)
    assert found.refuted and found.p_value < 1e-4
    assert "round 1, client 5," in found.note and f"in {len(at)} coordinates" in found.note
    assert f"round {second[0] + 1}, client {second[1]}," in found.note
    assert f", {on:+d} on" in found.note or not moved


@pytest.mark.parametrize("moved", [False, True])
def test_where_values_agree_by_chance_more_must(moved: bool) -> None:
    coarse = noise(6, bits=8, shape=(2, 400, 32))
    assert not equal(coarse, moved=moved).refuted
    coarse.values[1, 17, 4:20] = coarse.values[0, 3, 4:20]
    found = equal(coarse, moved=moved)
    assert found.refuted and int(found.method.split()[0]) > AGREEING
    # Noise of a few values proves nothing.
    assert equal(noise(6, bits=0), moved=moved).power.startswith("none")

"""Discrete noise: exact laws, integers alone, and what it guarantees.

Chi-square tests against the exact probabilities, false alarm 1e-6 each. With 4e5 variates of scale
10 they see (power above 0.999, noncentrality stated): a scale 2% wrong (noncentrality 160 for the
Gaussian, 80 for the Laplace law, on about 40 and 70 cells), and a zero counted twice, as by a sign
that is never drawn again (1e4).
"""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fl_shuffle.accounting.laws.discrete_noise import (
    discrete_gaussian_scale,
    discrete_laplace_scale,
    zcdp_delta,
)
from fl_shuffle.accounting.laws.gaussian_mechanism import analytic_sigma
from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.randomizer_plan import make_plan
from fl_shuffle.randomizers import samplers
from fl_shuffle.randomizers.samplers import (
    Words,
    discrete_gaussian,
    discrete_laplace,
)

LAWS = {"gaussian": discrete_gaussian, "laplace": discrete_laplace}
COUNT, SCALE, FALSE_ALARM = 400_000, 10, 1e-6


def pmf(law: str, scale: float, reach: int) -> np.ndarray:
    """Of -reach .. reach; what lies beyond is below 1e-20 where reach is 10 scales or 50."""
    x = np.arange(-reach, reach + 1)
    weight = np.exp(-(x**2) / (2 * scale**2) if law == "gaussian" else -np.abs(x) / scale)
    return np.asarray(weight / weight.sum())


def chi_square(drawn: np.ndarray, law: str, scale: float) -> float:
    """The p-value; cells with fewer than 20 expected are put together at either end."""
    reach = int((10 if law == "gaussian" else 50) * scale)
    expected = len(drawn) * pmf(law, scale, reach)
    counts = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=2 * reach + 1)
    inner = np.flatnonzero(expected >= 20)
    low, high = inner[0], inner[-1] + 1

    def gathered(values: np.ndarray) -> np.ndarray:
        return np.array([values[:low].sum(), *values[low:high], values[high:].sum()])

    seen, wanted = gathered(counts), gathered(expected)
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    return float(stats.chi2.sf(statistic, len(wanted) - 1))


@pytest.mark.parametrize("law", LAWS)
def test_the_law_is_the_exact_one(law: str) -> None:
    drawn = LAWS[law](Words(b"law of the noise"), SCALE, COUNT)
    assert len(drawn) == COUNT
    assert chi_square(drawn, law, SCALE) > FALSE_ALARM
    # The power that is stated: the same variates against laws that are slightly others.
    assert chi_square(drawn, law, SCALE * 1.02) < FALSE_ALARM
    twice = np.concatenate([drawn, drawn[drawn == 0]])
    assert chi_square(twice, law, SCALE) < FALSE_ALARM
    for small in (1, 3):
        drawn = LAWS[law](Words(bytes([small]) * 16), small, 50_000)
        assert chi_square(drawn, law, small) > FALSE_ALARM


def test_uniforms_below_a_bound_are_exact() -> None:
    """One of 2/3 of 2^62: without drawing again, the lower part would come up more often."""
    bound = (1 << 62) // 3 * 2
    drawn = Words(b"another sixteen!").below(np.full(100_000, bound))
    assert drawn.min() >= 0 and drawn.max() < bound
    assert stats.kstest(drawn / bound, "uniform").pvalue > FALSE_ALARM


def test_words_follow_one_another() -> None:
    """What is drawn at once is what is drawn piece by piece; the words of AES itself."""
    one, other = Words(bytes(16)), Words(bytes(16))
    assert np.array_equal(one.draw(7), np.concatenate([other.draw(3), other.draw(4)]))
    # FIPS 197 and SP 800-38A: AES-128 of the zero block under the zero key is 66e94bd4ef8a2c3b...
    first = int.from_bytes(bytes.fromhex("66e94bd4ef8a2c3b"), "little") >> 1
    assert Words(bytes(16)).draw(1).tolist() == [first]


def test_no_number_of_the_samplers_is_a_floating_one() -> None:
    """No float literal, no true division, no math function, no float dtype in their source."""
    source = Path(str(samplers.__file__)).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        assert not isinstance(node, ast.Div)
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))
        assert not (isinstance(node, ast.Name) and node.id in ("math", "float"))
        assert not (isinstance(node, ast.Attribute) and "float" in node.attr)
    for law in LAWS.values():
        assert law(Words(bytes(16)), 5, 3).dtype == np.int64


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0])
def test_zcdp_covers_the_exact_law_of_one_coordinate(epsilon: float) -> None:
    """And is not far from it: within a factor of ten of delta."""
    for sensitivity, scale in ((4, 10), (10, 10), (40, 30)):
        p = pmf("gaussian", scale, 45 * scale)
        q = np.concatenate([np.zeros(sensitivity), p[:-sensitivity]])
        exact = math.fsum(np.maximum(p - math.exp(epsilon) * q, 0.0))
        bound = zcdp_delta(sensitivity**2 / (2 * scale**2), epsilon)
        assert exact <= bound + 1e-15
        if exact > 1e-9:
            assert bound <= 10.0 * exact


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_calibrations_are_the_smallest_that_fit(epsilon: float) -> None:
    width, delta = 65_000.0, 1e-5
    scale = discrete_gaussian_scale(epsilon, delta, width)
    assert zcdp_delta(width**2 / (2 * scale**2), epsilon) <= delta
    assert zcdp_delta(width**2 / (2 * (scale - 2) ** 2), epsilon) > delta
    # What zCDP costs against the best calibration of continuous noise: below 15%.
    best = analytic_sigma(epsilon, delta, width)
    assert best <= scale <= 1.15 * best
    laplace = discrete_laplace_scale(epsilon, width)
    assert width / laplace <= epsilon < width / (laplace - 2)


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("noise", ["discrete-gaussian", "discrete-laplace"])
def test_the_plan_keeps_every_budget(noise: str, clip: float | None) -> None:
    privacy = {"randomizer": noise, "unit": "client", "clip_norm": 0.7}
    privacy |= {"client_clip": clip} if clip else {}
    config = parse_config({"run": {"entropy": "system"}, "privacy": privacy})
    epsilon = np.array([0.1, 0.5, 0.5, 2.0, 8.0])
    budgets = Budgets(epsilon, np.array([1e-5, 1e-6, 1e-5, 1e-5, 1e-9]))
    plan = make_plan(config, budgets, np.full(5, 20))
    assert plan.radius.tolist() == [clip or 0.7] * 5
    steps = plan.scale / plan.step
    assert np.array_equal(steps, np.rint(steps))
    assert np.array_equal(np.frexp(plan.step)[0], np.full(5, 0.5))
    width = 2.0 * plan.radius / plan.step
    for client in range(5):
        if noise == "discrete-laplace":
            assert width[client] / steps[client] <= epsilon[client]
        else:
            rho = width[client] ** 2 / (2.0 * steps[client] ** 2)
            assert zcdp_delta(rho, epsilon[client]) <= budgets.delta[client]
    kinds = [plan.classes[int(index)] for index in plan.class_of]
    assert [kind.epsilon0 for kind in kinds] == epsilon.tolist()
    assert all(kind.noise == "user" for kind in kinds)
    zero = noise == "discrete-laplace"
    assert [kind.delta0 for kind in kinds] == ([0.0] * 5 if zero else budgets.delta.tolist())
    # Reports that are cut at 2^23 steps pass the bound on honest ones.
    assert (plan.largest >= 2.0**23 * plan.step).all()

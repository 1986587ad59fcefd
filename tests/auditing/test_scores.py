"""The scores by which the games tell data sets apart: exact likelihood ratios, stated errors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fl_shuffle.auditing.canaries import Canaries
from fl_shuffle.auditing.scores import BatchScore, LengthRule, View, position_error
from tests.auditing.audit_settings import config


def shuffled_density(
    reports: np.ndarray, means: np.ndarray, scales: np.ndarray, noise: str
) -> float:
    """The density of a shuffled batch by definition: the mean over all assignments."""
    law = stats.laplace if noise == "laplace" else stats.norm
    total = 0.0
    for order in itertools.permutations(range(len(means))):
        total += math.prod(
            float(law.pdf(reports[row], means[client], scales[client]).prod())
            for row, client in enumerate(order)
        )
    return total / math.factorial(len(means))


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_the_score_is_the_exact_likelihood_ratio_for_equal_others(noise: str) -> None:
    settings = config(
        5, privacy={"randomizer": noise}, budgets={"delta": 1e-5 if noise == "gaussian" else 0.0}
    )
    canaries = Canaries(settings, dimension=1)
    rows, other = canaries.play(1)
    rows[canaries.scene.target] = other
    means = [canaries.scene.others[:, None].copy() for _ in range(2)]
    means[0][canaries.scene.target] = canaries.scene.zero
    means[1][canaries.scene.target] = canaries.scene.one
    densities = [
        shuffled_density(rows.double().numpy(), part, canaries.plan.scale[:, None], noise)
        for part in means
    ]
    score = BatchScore(canaries.scene, use_length=False)(View.of(rows, noise)).sum()
    assert 1.0 + score == pytest.approx(densities[1] / densities[0], rel=1e-6)


def test_the_score_is_the_exact_likelihood_ratio_for_a_recognised_target() -> None:
    settings = config(4, privacy={"unit": "record"}, data={"records": 400})
    canaries = Canaries(settings, dimension=1)
    assert position_error(canaries.scene) < 1e-8
    rows, _ = canaries.play(3)
    axis = float(rows[canaries.scene.target, 0])
    scene, scale = canaries.scene, float(canaries.plan.scale[0])
    ratio = stats.norm.pdf(axis, scene.one, scale) / stats.norm.pdf(axis, scene.zero, scale)
    score = BatchScore(canaries.scene, use_length=False)(View.of(rows, "gaussian")).sum()
    assert 1.0 + score == pytest.approx(ratio, rel=1e-9)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_the_stated_error_of_recognition_is_true(noise: str) -> None:
    """Two noise scales a factor of two apart in few dimensions: mistakes happen, as often as the
    exact laws say (4 standard deviations)."""
    settings = config(
        40,
        privacy={"randomizer": noise},
        budgets={
            "distribution": "groups",
            "conservative": 1.0,
            "liberal": 2.0,
            "conservative_fraction": 0.5,
            "moderate_fraction": 0.0,
            "delta": 1e-5 if noise == "gaussian" else 0.0,
        },
    )
    canaries = Canaries(settings, dimension=9)
    rule = LengthRule.of(canaries.scene)
    same = canaries.plan.scale == canaries.plan.scale[canaries.scene.target]
    rounds = 400
    wrong = sum(
        int((rule.chosen(View.of(canaries.play(number)[0], noise)) != same).sum())
        for number in range(rounds)
    )
    assert rule.error > 0.5
    chances = _mistakes(noise, canaries.plan.scale)
    assert wrong == pytest.approx(rounds * chances, abs=4 * math.sqrt(rounds * chances))


def _mistakes(noise: str, scales: np.ndarray) -> float:
    """Expected mistakes per round of the likelihood rule, by numerical integration."""
    small, large = np.unique(scales)
    law = stats.gamma(8) if noise == "laplace" else stats.chi(8)
    grid = np.linspace(1e-6, 60.0 * large, 400_001)
    densities = [law.pdf(grid / scale) / scale for scale in (small, large)]
    return float(20 * np.minimum(*densities).sum() * (grid[1] - grid[0]))

"""Where only sums leave: rounds, drop-outs, assumptions, questions, and an attack on real sums."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtri

from fl_shuffle.accounting.attacks.sum_attack import sum_lower_column
from fl_shuffle.accounting.bounds.sum_release.honest import honest_reports
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.laws.report_grid import report_grids
from fl_shuffle.accounting.reports import ClientClass
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.budgets import make_budgets
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import InvalidValueError, NotApplicableError
from fl_shuffle.randomizer_plan import RandomizerPlan, make_plan
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.seeds import SeedTree
from fl_shuffle.shuffler.exact_sums import exact_sum

DELTA = 1e-5


def classes_of(*rows: tuple[float, float, float]) -> list[ClientClass]:
    """Gaussian classes of (scale, radius, sensitivity)."""
    return [ClientClass("gaussian", *row, 1.0, DELTA) for row in rows]


def start(classes: list[ClientClass], class_of: list[int], **also: Any) -> SumAccount:
    return SumAccount.start(classes, np.array(class_of), **{"schedule": "aggregate", **also})


def test_rounds_add_as_squares_over_who_arrived() -> None:
    """Personal scales, drop-outs: the formula written out, for every client."""
    classes = classes_of((1.0, 1.0, 0.5), (2.0, 1.0, 0.25), (0.5, 0.1, 1.0))
    class_of = np.array([0, 0, 1, 2, 1])
    account = start(classes, class_of.tolist())
    rng = np.random.default_rng(1)
    expected = np.zeros(5)
    shift, scale = np.array([0.5, 0.25, 0.2])[class_of], np.array([1.0, 2.0, 0.5])[class_of]
    for _ in range(7):
        present = rng.random(5) < 0.6
        before = account.mu_squared.copy()
        after = account.after(present)
        assert np.array_equal(account.mu_squared, before)
        account = after
        expected += present * shift**2 / max(1e-300, float(np.sum(scale[present] ** 2)))
    mu = np.sqrt(expected)
    assert np.all(np.sqrt(account.mu_squared) >= mu)
    np.testing.assert_allclose(np.sqrt(account.mu_squared), mu, rtol=2e-7)
    epsilons = account.epsilons(DELTA)
    np.testing.assert_allclose(epsilons, [gaussian_epsilon(DELTA, m) for m in mu], rtol=1e-6)
    worst = int(np.argmax(epsilons))
    of_classes = [epsilons[class_of == index].max() for index in range(3)]
    np.testing.assert_allclose(account.worst_epsilons(DELTA), of_classes, rtol=1e-9)
    curve = account.curve(worst)
    assert curve.epsilon(DELTA) == pytest.approx(epsilons[worst], rel=1e-9)
    assert curve.profile([curve.epsilon(DELTA)])[0] <= DELTA
    np.testing.assert_allclose(curve.trade_off([0.0, 1.0]), [1.0, 0.0])


def test_assumed_honest_counts_the_smallest_noise_first() -> None:
    """(assumed, the variances that hide a client of large noise, and one of small)."""
    classes = classes_of((1.0, 1.0, 0.5), (3.0, 1.0, 0.5))
    everybody, class_of = np.ones(10, dtype=bool), [0] * 4 + [1] * 6
    for assumed, loud, quiet in [
        (None, 58.0, 58.0), (5, 13.0, 13.0), (3, 11.0, 3.0), (0.3, 11.0, 3.0), (1, 9.0, 1.0)
    ]:  # fmt: skip
        account = start(classes, class_of, assumed_honest=assumed).after(everybody)
        np.testing.assert_allclose(0.25 / account.mu_squared[[0, 9]], [quiet, loud], rtol=1e-6)
    # A share is one of those who arrived.
    account = start(classes, class_of, assumed_honest=0.5).after(np.arange(10) < 4)
    assert 0.25 / account.mu_squared[0] == pytest.approx(2.0, rel=1e-6)
    assert honest_reports(0.5, 5) == 2 and honest_reports(7, 5) == 5
    for bad in (0, True, 1.0, math.nan, "half"):
        with pytest.raises(InvalidValueError, match="assumed_honest"):
            start(classes, class_of, assumed_honest=bad)


def test_there_is_no_number_where_nothing_is_proven() -> None:
    gaussian = classes_of((1.0, 1.0, 1.0))
    laplace, unknown = ([replace(gaussian[0], noise=noise)] for noise in ("laplace", "user"))
    for classes, schedule, word in (
        (gaussian, "sequential", "local"),
        (unknown, "aggregate", "not known"),
        ([*gaussian, *laplace], "aggregate", "different kinds"),
        (laplace, "aggregate", "Laplace"),
    ):
        account = start(classes, [0], schedule=schedule).after(np.array([True]))
        assert sum_lower_column(account, DELTA, [0]).worst is None
        with pytest.raises(NotApplicableError, match=word):
            account.epsilons(DELTA)


def attacked_mu(plan: RandomizerPlan, target: int, trials: int) -> tuple[float, float]:
    """What a threshold test on real sums reaches: (a lower bound on mu at 1e-9, its estimate).

    The target's mean lies at either end of its ball, the others' at zero. Sums are those that runs
    make: means times weights, noise, rounding, exact sum. Every coordinate is a trial of its own.
    """
    rates = []
    for end in (-1.0, 1.0):
        means = torch.zeros(len(plan), trials)
        means[target] = end * float(plan.weight[target] * plan.radius[target])
        stream = NoiseStream(SeedTree(5).key("noise", str(end)), trials)
        scale = plan.weight * plan.scale
        reports = stream.add_("normal", means, np.arange(len(means)), scale, plan.step)
        total = torch.zeros(trials, dtype=torch.float64)
        exact_sum(reports, total)
        rates.append(float((total > 0.0).double().mean()))
    slack = math.sqrt(math.log(2e9) / (2 * trials))
    certain = ndtri(rates[1] - slack) - ndtri(rates[0] + slack)
    return float(certain), float(ndtri(rates[1]) - ndtri(rates[0]))


def test_attack_on_weighted_sums() -> None:
    """The claim stands; a tenth less would be refuted.

    False alarm below 1e-9. Power: the margin is 0.026 of mu = 0.44, nine deviations.
    """
    config = parse_config({
        "privacy": {"unit": "client"}, "server": {"weights": "inverse-variance"},
        "budgets": {"distribution": "uniform", "low": 1.0, "high": 4.0, "delta": 1e-5},
    })  # fmt: skip
    plan = make_plan(config, make_budgets(config.budgets, 6), np.ones(6, np.int64))
    assert plan.step.tolist() == pytest.approx(
        report_grids(plan.weight * plan.scale, plan.weight * plan.radius).tolist(), rel=0.0
    )
    account = start(plan.classes, plan.class_of).after(np.ones(len(plan), dtype=bool))
    target = int(np.argmax(account.mu_squared))
    claimed = account.curve(target).mu
    certain, estimate = attacked_mu(plan, target, 400_000)
    assert 0.9 * claimed < certain <= claimed
    assert estimate == pytest.approx(claimed, abs=0.02)

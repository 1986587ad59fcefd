"""Where only sums leave: rounds, drop-outs, assumptions, questions, and an attack on real sums."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtri

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.attacks.sum_attack import (
    sum_attack_delta,
    sum_attack_epsilon,
    sum_lower_column,
)
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.bounds.sum_release.honest import AssumedHonest, honest_reports
from fl_shuffle.accounting.columns import SMALLER_NOTE
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.laws.gaussian_mechanism import (
    analytic_sigma,
    gaussian_delta,
    gaussian_epsilon,
)
from fl_shuffle.accounting.laws.report_grid import report_grids
from fl_shuffle.accounting.queries.methods import bound, compare
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.accounting.queries.vector_methods import report_classes
from fl_shuffle.accounting.reports import ClientClass
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.accounting.rounds.trust import Trust
from fl_shuffle.budgets import make_budgets
from fl_shuffle.configuration.sections import BudgetsSection, Config, PrivacySection, ServerSection
from fl_shuffle.errors import InvalidValueError, NotApplicableError
from fl_shuffle.randomizer_plan import RandomizerPlan, make_plan
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.seeds import SeedTree
from fl_shuffle.shuffler.exact_sums import exact_sum

DELTA = 1e-5


def classes_of(*rows: tuple[float, float, float]) -> list[ClientClass]:
    """Gaussian classes of (scale, radius, sensitivity)."""
    return [ClientClass("gaussian", a, r, s, 1.0, DELTA, 1) for a, r, s in rows]


def start(
    classes: list[ClientClass], class_of: list[int], assumed: AssumedHonest = None
) -> SumAccount:
    return SumAccount.start(
        classes, np.array(class_of), schedule="aggregate", assumed_honest=assumed
    )


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
        (None, 58.0, 58.0), (10, 58.0, 58.0), (5, 13.0, 13.0), (3, 11.0, 3.0), (0.3, 11.0, 3.0),
        (0.01, 9.0, 1.0), (1, 9.0, 1.0),
    ]:  # fmt: skip
        found = 0.25 / start(classes, class_of, assumed).after(everybody).mu_squared
        np.testing.assert_allclose(found[[0, 9]], [quiet, loud], rtol=1e-6)
    # A share is one of those who arrived.
    account = start(classes, class_of, 0.5).after(np.arange(10) < 4)
    assert 0.25 / account.mu_squared[0] == pytest.approx(2.0, rel=1e-6)
    assert honest_reports(0.5, 5) == 2 and honest_reports(7, 5) == 5
    for bad in (0, True, 1.0, math.nan, "half"):
        with pytest.raises(InvalidValueError, match="assumed_honest"):
            start(classes, class_of, bad)  # type: ignore[arg-type]


def test_there_is_no_number_where_nothing_is_proven() -> None:
    gaussian = classes_of((1.0, 1.0, 1.0))
    laplace, unknown = ([replace(gaussian[0], noise=noise)] for noise in ("laplace", "user"))
    cases = [(gaussian, "sequential", "local"), (unknown, "aggregate", "not known")]
    cases.append(([*gaussian, *laplace], "aggregate", "different kinds"))
    for classes, schedule, word in [*cases, (laplace, "aggregate", "Laplace")]:
        account = SumAccount.start(classes, np.array([0]), schedule=schedule)
        account = account.after(np.array([True]))
        assert sum_lower_column(account, DELTA, [0]).worst is None
        with pytest.raises(NotApplicableError, match=word):
            account.epsilons(DELTA)


def weighted_plan(clients: int) -> RandomizerPlan:
    """Personal noise scales, each report weighted by its inverse variance; client unit."""
    config = Config(
        privacy=PrivacySection(unit="client", clip="average", randomizer="gaussian"),
        budgets=BudgetsSection(distribution="uniform", low=1.0, high=4.0, delta=1e-5),
        server=ServerSection(weights="inverse-variance"),
    )
    return make_plan(config, make_budgets(config.budgets, clients), np.ones(clients, np.int64))


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
    plan = weighted_plan(6)
    assert plan.step.tolist() == pytest.approx(
        report_grids(plan.weight * plan.scale, plan.weight * plan.radius).tolist(), rel=0.0
    )
    account = SumAccount.start(plan.classes, plan.class_of, schedule="aggregate")
    account = account.after(np.ones(len(plan), dtype=bool))
    target = int(np.argmax(account.mu_squared))
    claimed = account.curve(target).mu
    certain, estimate = attacked_mu(plan, target, 400_000)
    assert 0.9 * claimed < certain <= claimed
    assert estimate == pytest.approx(claimed, abs=0.02)


# --- Questions, and a run of the same setting ---------------------------------------------------

ASKED = Question(
    method="sum", randomizer="gaussian", epsilon0=1.0, delta0=1e-5, clients=100, rounds=20,
    delta=1e-6, unit="client", release="sum",
)  # fmt: skip


def test_the_formula_written_out() -> None:
    mu = 2.0 / analytic_sigma(1.0, 1e-5, 2.0) * math.sqrt(20 / 100)
    answer, exact = bound(ASKED), gaussian_epsilon(1e-6, mu)
    assert answer.status is Status.PROVEN
    assert exact <= answer.epsilon < exact * (1 + 1e-6)
    assert "at least 100 reports" in answer.assumptions[0]
    lower = bound(replace(ASKED, method="sum-attack"))
    assert lower.status is Status.LOWER_BOUND
    assert 0.98 * answer.epsilon < lower.epsilon < answer.epsilon
    # Above its epsilon the test proves nothing, below it more than delta.
    reached = sum_attack_epsilon(DELTA, 0.8, 2.0**-15)
    assert DELTA <= sum_attack_delta(reached, 0.8, 2.0**-15) < gaussian_delta(reached, 0.8)
    assert sum_attack_epsilon(DELTA, 0.8, 0.5) == 0.0 == sum_attack_epsilon(DELTA, 0.0, 2.0**-15)
    asked, exact = replace(ASKED, delta=None, epsilon=0.2), gaussian_delta(0.2, mu)
    assert bound(replace(asked, method="sum-attack")).delta < exact <= bound(asked).delta
    assert bound(asked).delta < exact * (1 + 1e-5)


def test_compare_knows_what_is_released() -> None:
    asked = replace(ASKED, rounds=1)
    answers = compare(asked)
    guarantees = {n: a for n, a in answers.items() if isinstance(a, Guarantee)}
    proven = [name for name, value in guarantees.items() if value.status is Status.PROVEN]
    # What holds for all reports holds for their sum; the sum alone says less.
    assert proven[0] == "sum" and "proven" in proven
    assert "release = 'reports'" in str(answers["attack"])
    assert "release = 'sum'" in str(compare(replace(asked, release="reports"))["sum-attack"])
    assumed = compare(replace(asked, assumed_honest=10))
    assert "assumed_honest" in str(assumed["proven"])
    assert isinstance(assumed["sum"], Guarantee)


def test_what_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="assumed_honest"):
        replace(ASKED, release="reports", assumed_honest=5)
    with pytest.raises(NotApplicableError, match="participation"):
        bound(replace(ASKED, participation=0.5))
    with pytest.raises(NotApplicableError, match="vector reports"):
        bound(replace(ASKED, randomizer="krr", k=3, delta0=0.0))


TWO = ((0.5, 30), (2.0, 70))
# (question, clients of the first budget that never report); budgets: (epsilon0, who report).
SETTINGS: dict[str, tuple[dict[str, Any], int]] = {
    "gaussian, some honest": (
        {"budgets": TWO, "unit": "record", "records": 9, "assumed_honest": 0.3}, 0,
    ),
    "gaussian, absent": ({"budgets": TWO, "unit": "record", "records": 9}, 12),
    "laplace, very few": ({"budgets": ((0.5, 4),)}, 0),
    "laplace, many": ({"budgets": ((0.5, 20_000),)}, 0),
    "laplace, some honest": ({"budgets": ((0.5, 90),), "assumed_honest": 60}, 0),
    "laplace, absent": ({"budgets": ((0.5, 50),)}, 10),
}  # fmt: skip
SMALLER = ("laplace, some honest", "laplace, absent")
"""Where `proven` of the reports shuffled is smaller, and stands in the column."""


def of_a_run(query: Question, absent: int, smaller: bool) -> float:
    """The headline of a run whose reports have unknown dimension, after its last of 3 rounds."""
    classes = report_classes(query, "")
    counts = [kind.count for kind in classes]
    counts[0] += absent
    class_of = np.repeat(np.arange(len(classes)), counts)
    present = np.arange(len(class_of)) >= absent
    account = Accountant(
        classes, class_of, unit=query.unit or "", delta=1e-6,
        schedule="aggregate", trust=Trust(release="sum", assumed_honest=query.assumed_honest),
    )  # fmt: skip
    for number in (1, 2, 3):
        spend = account.preview(number, present)
        each = account.client_epsilons_after(number, present)
        account.commit(number, present)
    column, totals, worst = spend.columns["sum"], account.client_totals(), account.worst_client()
    assert worst is not None and each.max() == pytest.approx(spend.headline, rel=1e-9)
    assert (column.note == SMALLER_NOTE) is smaller
    if smaller:
        assert column.worst == spend.columns["proven"].worst == spend.headline
        np.testing.assert_array_equal(totals.headline, totals.sum)
    assert float(totals.headline.max()) == pytest.approx(spend.headline, rel=1e-9)
    # The curve that is drawn belongs to the number.
    assert worst.epsilon == pytest.approx(spend.headline, rel=1e-9)
    assert float(worst.profile([spend.headline])[0]) <= 1e-6 * (1 + 1e-6)
    return spend.headline


@pytest.mark.usefixtures("coarse_pairs")
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_question_and_a_run_say_the_same(setting: str) -> None:
    """Of few Laplace reports the column takes `proven` where that is smaller, and says so."""
    (asked, absent), noise = SETTINGS[setting], setting.partition(",")[0]
    delta0 = 0.0 if noise == "laplace" else 1e-5
    budgets = tuple(LocalBudget(epsilon0, delta0, n) for epsilon0, n in asked["budgets"])
    query = replace(ASKED, epsilon0=None, delta0=0.0, clients=None, randomizer=noise, rounds=3,
                    calibration="analytic", **{**asked, "budgets": budgets})  # fmt: skip
    run, found = of_a_run(query, absent, setting in SMALLER), bound(query).epsilon
    if absent and setting in SMALLER:
        # The account of a run that expected more may round the shuffled batch down.
        assert found <= run * (1 + 1e-9) < 1.1 * found
    else:
        assert run == pytest.approx(found, rel=1e-8)
    # The two questions of one answer.
    back = bound(replace(query, delta=None, epsilon=found)).delta
    assert 0.5e-6 < back <= 1e-6 * (1 + 1e-6)

"""Questions: all answers side by side, solving for a number, edge values, refusals by field; and
the papers' claims (docs/research/errata.md), theirs and ours."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import fl_shuffle as fs
from fl_shuffle.accounting.accountant import Accountant, Spend
from fl_shuffle.accounting.bounds.gspa import gspa_mu
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.columns import SMALLER_NOTE
from fl_shuffle.accounting.distributions import gaussian_mechanism as gaussian
from fl_shuffle.accounting.distributions.amplification import AtomicDistribution
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.lower_bounds.sum_attack import sum_attack_delta, sum_attack_epsilon
from fl_shuffle.accounting.numerics.stop_loss import amplified_delta
from fl_shuffle.accounting.queries.methods import METHODS, bound, compare
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.accounting.queries.solve import COSTS, solve
from fl_shuffle.accounting.queries.vector_methods import report_classes
from fl_shuffle.accounting.rounds.threat_model import ThreatModel
from fl_shuffle.errors import FlShuffleError, InvalidValueError, NotApplicableError

KRR: dict[str, Any] = {"randomizer": "krr", "k": 10}
NOISE: dict[str, Any] = {"randomizer": "gaussian"}
ONE: dict[str, Any] = {"epsilon0": 1.0, "delta": 1e-6}

pytestmark = pytest.mark.usefixtures("coarse_pairs")


@pytest.mark.parametrize(
    "question",
    [
        {**ONE, "clients": 100_000},
        {**KRR, **ONE, "clients": 1000},
        {**NOISE, "epsilon0": 1.0, "delta0": 1e-5, "clients": 10_000, "epsilon": 0.01},
        {"matrix": [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]], "clients": 9999, "delta": 1e-6, "rounds": 3},
    ],
)
def test_answers_are_sorted_and_the_smallest_proven_one_is_given(question: dict[str, Any]) -> None:
    """Proven ones first; what does not apply says why; without a method the first is the answer."""
    answers = fs.compare(**question)
    assert set(answers) == set(METHODS)
    assert all(str(value) for value in answers.values() if isinstance(value, FlShuffleError))
    given = [value for value in answers.values() if isinstance(value, Guarantee)]
    order = [Status.PROVEN, Status.AS_PUBLISHED, Status.LOWER_BOUND]
    statuses = [each.status for each in given]
    assert statuses == sorted(statuses, key=order.index)
    numbers = [(each.epsilon, each.delta) for each in given]
    proven = numbers[: statuses.count(Status.PROVEN)]
    lower = numbers[len(statuses) - statuses.count(Status.LOWER_BOUND) :]
    best = fs.bound(**question)
    assert best.status is Status.PROVEN and (best.epsilon, best.delta) == min(proven) == proven[0]
    assert all(reached <= most for reached in lower for most in proven)


# One record in a report, or a client of six, moves as much as a client of one.
@pytest.mark.parametrize(("unit", "rounds", "clients"), [("client", 1, 1000), ("record", 5, 300)])
@pytest.mark.parametrize(("randomizer", "delta0"), [("gaussian", 1e-5), ("laplace", 0.0)])
def test_no_proven_bound_on_vector_reports_lies_below_the_attack(
    randomizer: str, delta0: float, unit: str, rounds: int, clients: int
) -> None:
    """Six records in a report: bounds that take epsilon0 for any two reports would (0.13, 0.79)."""
    query = BoundQuery(
        **ONE, randomizer=randomizer, delta0=delta0, clients=clients, unit=unit, records=6,
        rounds=rounds,
    )  # fmt: skip
    answers = compare(query)
    given = [each for each in answers.values() if isinstance(each, Guarantee)]
    smallest = min(each.epsilon for each in given if each.status is Status.PROVEN)
    attack = answers["attack"]
    assert attack.status is Status.LOWER_BOUND and smallest >= attack.epsilon > 0.0
    if unit == "client" and randomizer == "gaussian":
        assert smallest <= 1.5 * attack.epsilon
    for name in ("blanket", "clone", "lower"):
        assert isinstance(answers[name], Guarantee) == (unit == "client" and delta0 == 0.0)
    assert ("one of 6 records" in str(answers["clone"])) == (unit == "record" and delta0 == 0.0)
    assert answers["gspa"].status is Status.AS_PUBLISHED
    asked = replace(query, delta=None, epsilon=attack.epsilon)
    reached, most = (bound(replace(asked, method=name)).delta for name in ("attack", "vector"))
    assert 0.0 < reached <= most


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("clients", {**KRR, "epsilon0": 1.0, "epsilon": 0.1}),
        ("epsilon0", {**KRR, "clients": 10_000, "epsilon": 0.1}),
        ("participation", {**KRR, "epsilon0": 1.0, "clients": 10_000, "epsilon": 0.01}),
        ("sigma", {"randomizer": "laplace", "clients": 2000, "rounds": 5, "epsilon": 0.8}),
        ("sigma", {**NOISE, "clients": 1000, "rounds": 50, "epsilon": 1.0, "release": "sum"}),
        ("rounds", {**NOISE, "sigma": 2.0, "clients": 10_000, "epsilon": 1.0}),
        ("records", {**NOISE, "sigma": 0.1, "clients": 1000, "epsilon": 0.5, "unit": "record"}),
        ("delta0", {**NOISE, "epsilon0": 1.0, "clients": 1000, "epsilon": 0.1}),
        ("assumed_honest", {**NOISE, "sigma": 1.0, "clients": 99, "epsilon": 1, "release": "sum"}),
    ],
    ids=lambda value: value if isinstance(value, str) else value["randomizer"],
)
def test_the_target_is_kept_and_hardly_less_would(name: str, question: dict[str, Any]) -> None:
    delta = 1e-6
    query = BoundQuery(**{name: 1e-6 if name == "delta0" else 1, **question})
    value, answer = solve(query, name, delta)
    assert answer.delta <= delta and answer.epsilon == query.epsilon
    found: Any = {name: value}
    asked = replace(query, **found, method=answer.method)
    assert bound(asked).delta == answer.delta
    whole = isinstance(value, int)
    worse = value + 1 if whole else 1.003 * value
    better = value - 1 if whole else value / 1.003
    found[name] = worse if COSTS[name] else better
    assert bound(replace(asked, **found)).delta > delta


def test_what_cannot_be_solved_for_is_said() -> None:
    query = BoundQuery(**KRR, epsilon0=1.0, clients=1000, epsilon=0.1)
    with pytest.raises(InvalidValueError, match="solve_for = 'k'"):
        solve(query, "k", 1e-6)
    with pytest.raises(InvalidValueError, match="epsilon"):
        solve(replace(query, epsilon=None, delta=1e-6), "clients", 1e-6)
    with pytest.raises(NotApplicableError, match="no rounds in"):
        solve(replace(query, clients=1), "rounds", 1e-6)


@pytest.mark.parametrize("delta", ["x", None, True, math.nan, 0.0, 1e-320, 1.0, -1.0])
def test_solve_delta_out_of_range_is_refused(delta: Any) -> None:
    query = BoundQuery(**KRR, epsilon0=1.0, clients=1000, epsilon=0.1)
    with pytest.raises(InvalidValueError, match=r"delta = .*: must be a finite number in \["):
        fs.solve("clients", query, delta=delta)


def test_a_matrix_is_a_mechanism() -> None:
    """Binary randomized response, by name and as distributions over words."""
    p = math.exp(1.0) / (math.exp(1.0) + 1.0)
    asked: dict[str, Any] = {"clients": 5000, "delta": 1e-6, "method": "blanket"}
    named = fs.bound(randomizer="krr", k=2, epsilon0=1.0, **asked)
    words = [{"yes": p, "no": 1 - p}, {"no": p, "yes": 1 - p}]
    assert fs.bound(matrix=words, **asked).epsilon == pytest.approx(named.epsilon, rel=1e-9)


def test_the_unit_changes_the_answer_where_a_report_averages_records() -> None:
    asked: dict[str, Any] = {**NOISE, "sigma": 2.0, "clients": 20, "delta": 1e-6}
    client, record = (fs.bound(**asked, records=5, unit=unit) for unit in ("client", "record"))
    assert client.epsilon > record.epsilon
    assert fs.bound(**asked).epsilon == client.epsilon


VECTORS = {**NOISE, "method": "vector", "delta0": 1e-5}
SUMS = {**NOISE, "method": "sum", "release": "sum", "delta0": 1e-5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon0": math.nan}, "epsilon0"),
        ({"delta0": 1.0}, "delta0"),
        ({"delta": None}, "exactly one"),
        ({"randomizer": "krr"}, "k = None"),
        ({"randomizer": "kr"}, "did you mean 'krr'"),
        ({"budgets": [[2.0, 0.0]]}, "epsilon0"),
        ({"epsilom": 1.0}, "did you mean 'epsilon"),
        ({**NOISE, "records": 5}, "unit = None: is required"),
        (
            {"method": None, "epsilon0": None, "budgets": [(1.0, 0.0, 50), (0.5, 0.0, 50)]},
            "no bound is proven for this query.*gspa",
        ),
        *(
            ({"epsilon0": None, "profile": value}, "profile")
            for value in ("1", "1:x", "a:b", "-1:0.1", "1:2", "gdp:x", "gdp:-1")
        ),
        ({"matrix": [[0.5, 0.5], [0.5, 0.4]]}, "must sum to one"),
        ({"matrix": [[0.5, 0.5], [1.0]]}, "rows of one length"),
        ({"matrix": [[1.0, 0.0], [0.5, 0.5]], "epsilon0": None}, "every report must be possible"),
        ({"matrix": "no.json"}, "does not exist"),
        ({"matrix": [[0.6, 0.4], [0.4, 0.6]]}, "has its local budget already"),
        # Vector reports without a noise scale.
        ({**VECTORS, "delta0": 0.0}, "delta0"),
        ({**VECTORS, "randomizer": "laplace"}, "delta0"),
        ({**VECTORS, "epsilon0": 0.0}, "epsilon0"),
        ({**VECTORS, "randomizer": "krr", "k": 3}, "vector reports"),
        ({"method": "attack"}, "vector reports"),
        (
            {**VECTORS, "method": "attack", "unit": "client", "delta": None, "epsilon": 5.0},
            "reaches epsilon",
        ),
        ({**SUMS, "epsilon0": None, "sigma": 1e-13}, "sigma"),
        ({**SUMS, "randomizer": "krr", "k": 3, "delta0": 0.0}, "vector reports"),
        ({**SUMS, "participation": 0.5}, "participation"),
        ({**SUMS, "release": "reports", "assumed_honest": 5}, "assumed_honest"),
    ],
)
def test_bad_questions_name_the_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(FlShuffleError, match=message):
        bound(BoundQuery.from_mapping({"method": "clone", **ONE, "clients": 100, **change}))


# --- Where only the sum of a round is released --------------------------------------------------

ASKED = BoundQuery(**{**SUMS, **ONE}, clients=100, rounds=20, unit="client")


def test_the_formula_written_out() -> None:
    mu = 2.0 / gaussian.analytic_sigma(1.0, 1e-5, 2.0) * math.sqrt(20 / 100)
    answer, exact = bound(ASKED), gaussian.gaussian_epsilon(1e-6, mu)
    assert answer.status is Status.PROVEN
    assert exact <= answer.epsilon < exact * (1 + 1e-6)
    assert "at least 100 reports" in answer.assumptions[0]
    lower = bound(replace(ASKED, method="sum-attack"))
    assert lower.status is Status.LOWER_BOUND
    assert 0.98 * answer.epsilon < lower.epsilon < answer.epsilon
    # Above its epsilon the test proves nothing, below it more than delta.
    reached = sum_attack_epsilon(1e-5, 0.8, 2.0**-15)
    assert 1e-5 <= sum_attack_delta(reached, 0.8, 2.0**-15) < gaussian.gaussian_delta(reached, 0.8)
    assert sum_attack_epsilon(1e-5, 0.8, 0.5) == 0.0 == sum_attack_epsilon(1e-5, 0.0, 2.0**-15)
    asked, exact = replace(ASKED, delta=None, epsilon=0.2), gaussian.gaussian_delta(0.2, mu)
    assert bound(replace(asked, method="sum-attack")).delta < exact <= bound(asked).delta
    assert bound(asked).delta < exact * (1 + 1e-5)


@pytest.mark.parametrize("coarsest", [2.0**-16, 2.0**-7, 0.125])
def test_both_errors_of_the_test_on_sums_pay_for_rounding(coarsest: float) -> None:
    """Hoeffding's reach at the least that may be missed, e^-24 e^-epsilon, by hand; and a test that
    says most of what there is to say where grids are fine."""
    for mu in (0.1, 1.0, 8.0):
        for epsilon in (0.0, 0.3, 2.0, 10.0):
            moved = coarsest * math.sqrt(0.5 * (math.log(2.0) + 24.0 + epsilon))
            hit = norm.cdf(mu / 2 - epsilon / mu - moved)
            most = hit - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu + moved)
            found = sum_attack_delta(epsilon, mu, coarsest)
            assert found <= max(0.0, most)
            assert found > 0.9 * most or most < 1e-6 or coarsest == 0.125


def test_compare_knows_what_is_released() -> None:
    asked = replace(ASKED, rounds=1)
    answers = compare(asked)
    # What holds for all reports holds for their sum; the sum alone says less.
    assert next(iter(answers)) == "sum" and isinstance(answers["vector"], Guarantee)
    assert "release = 'reports'" in str(answers["attack"])
    assert "release = 'sum'" in str(compare(replace(asked, release="reports"))["sum-attack"])
    assumed = compare(replace(asked, assumed_honest=10))
    assert "assumed_honest" in str(assumed["vector"])
    assert isinstance(assumed["sum"], Guarantee)


TWO = {"budgets": (LocalBudget(0.5, 1e-5, 30), LocalBudget(2.0, 1e-5, 70)), "unit": "record"}
TWO |= {"randomizer": "gaussian", "records": 9}


def laplace(clients: int) -> dict[str, Any]:
    return {"budgets": (LocalBudget(0.5, 0.0, clients),), "randomizer": "laplace"}


# The question, clients of the first budget that never report, and whether `shuffled` of the reports
# shuffled is smaller and stands in the column.
RUNS: dict[str, tuple[dict[str, Any], int, bool]] = {
    "gaussian, some honest": ({**TWO, "assumed_honest": 0.3}, 0, False),
    "gaussian, absent": (TWO, 12, False),
    "laplace, very few": (laplace(4), 0, False),
    "laplace, many": (laplace(20_000), 0, False),
    "laplace, some honest": ({**laplace(90), "assumed_honest": 60}, 0, True),
    "laplace, absent": (laplace(50), 10, True),
}


def of_a_run(query: BoundQuery, absent: int) -> tuple[Accountant, Spend]:
    """The account of a run whose reports have unknown dimension, and its third round's cost."""
    classes = report_classes(query, "")
    counts = [kind.count for kind in classes]
    counts[0] += absent
    class_of = np.repeat(np.arange(len(classes)), counts)
    present = np.arange(len(class_of)) >= absent
    trust = ThreatModel(release="sum", assumed_honest=query.assumed_honest)
    account = Accountant(
        classes,
        class_of,
        unit=query.unit or "",
        delta=1e-6,
        schedule="aggregate",
        threat_model=trust,
    )
    for number in (1, 2, 3):
        spend = account.preview(number, present).spend
        each = account.preview(number, present).client_epsilons()
        account.commit(account.preview(number, present))
    assert each.max() == pytest.approx(spend.headline, rel=1e-9)
    return account, spend


@pytest.mark.parametrize("name", RUNS)
def test_a_question_and_a_run_say_the_same(name: str) -> None:
    """Of few Laplace reports the column takes `shuffled` where that is smaller, and says so."""
    asked, absent, smaller = RUNS[name]
    query = BoundQuery(**{"method": "sum", "release": "sum", "unit": "client", **asked},
                     rounds=3, delta=1e-6)  # fmt: skip
    account, spend = of_a_run(query, absent)
    column, totals, worst = spend.columns["sum"], account.client_totals(), account.worst_client()
    assert (column.note == SMALLER_NOTE) is smaller
    if smaller:
        assert column.worst == spend.columns["shuffled"].worst == spend.headline
        np.testing.assert_array_equal(totals.headline, totals.sum)
    assert float(totals.headline.max()) == pytest.approx(spend.headline, rel=1e-9)
    # The curve that is drawn belongs to the number.
    assert worst is not None and worst.epsilon == pytest.approx(spend.headline, rel=1e-9)
    assert float(worst.profile([spend.headline])[0]) <= 1e-6 * (1 + 1e-6)
    found = bound(query).epsilon
    if absent and smaller:
        # The account of a run that expected more may round the shuffled batch down.
        assert found <= spend.headline * (1 + 1e-9) < 1.1 * found
    else:
        assert spend.headline == pytest.approx(found, rel=1e-8)
    # The two questions of one answer.
    back = bound(replace(query, delta=None, epsilon=found)).delta
    assert 0.5e-6 < back <= 1e-6 * (1 + 1e-6)


# --- What the papers claim (docs/research/errata.md), and the accountant must not inherit --------


def test_gspa_mu_is_the_printed_formula() -> None:
    budgets = [LocalBudget(0.3, 1e-5), LocalBudget(1.1, 1e-6), LocalBudget(0.01), LocalBudget(2.0)]
    shares = [(1 - b.delta0) / (1 + math.exp(b.epsilon0)) for b in budgets]
    expected = math.sqrt(2 / (sum(shares) - max(shares)))
    assert gspa_mu(budgets) == pytest.approx(expected, rel=1e-14)
    assert gspa_mu(budgets, rounds=50) == pytest.approx(expected * math.sqrt(50), rel=1e-14)
    with pytest.raises(NotApplicableError, match="two clients"):
        gspa_mu([LocalBudget(1.0)])


def test_gspa_mu_does_not_vanish_with_the_budgets() -> None:
    """All eps = 0: reports carry nothing, the published number still says .0586 at 1e-5."""
    budgets = [LocalBudget(0.0, 0.0, 10_000)]
    assert gaussian.gaussian_epsilon(1e-5, gspa_mu(budgets)) == pytest.approx(0.0586, abs=1e-4)


def test_personal_noise_scales_break_the_published_mu() -> None:
    """One eps = 4 client among .01 clients, common noise: proven .0938 at 1e-5, published .0588."""
    budgets = (LocalBudget(4.0), LocalBudget(0.01, 0.0, 9_999))
    published, proven = (
        bound(BoundQuery(method=method, randomizer=randomizer, budgets=budgets, delta=1e-5)).epsilon
        for method, randomizer in (("gspa", None), ("blanket", "laplace"))
    )
    assert published == pytest.approx(0.0588, abs=2e-4)
    assert proven == pytest.approx(0.0938, rel=5e-3)


def test_variation_ratio_is_below_what_a_data_set_reaches() -> None:
    """n = 5, eps0 = 4, eps = 3, 10-RR: exact .37419 on a data set, published .36876."""
    asked = {"randomizer": "krr", "k": 10, "epsilon0": 4.0, "clients": 5, "epsilon": 3.0}
    reached = bound(BoundQuery(**asked, method="lower")).delta
    assert 0.3741 <= reached <= bound(BoundQuery(**asked)).delta


def test_the_arithmetic_mean_of_blanket_masses_is_refuted() -> None:
    """P = (3/4, 1/4), Q reversed, eps = 0, the others' masses (1, 1, 0): the truth is 1/4.

    A binomial with their mean mass 2/3 gives .2407, too little. The engine takes masses as they
    are, and their geometric mean (here zero: no blanket at all) is safe.
    """
    law, truth = AtomicDistribution.of([1.0, -1.0], [0.5, 0.5]), 0.25
    assert amplified_delta(law, [(1.0, 2), (0.0, 1)]).delta == pytest.approx(truth, rel=1e-3)
    assert amplified_delta(law, [(2 / 3, 3)]).delta == pytest.approx(0.2407, abs=1e-4)
    assert amplified_delta(law, [(0.0, 3)]).delta >= truth


@pytest.mark.parametrize(
    ("records", "epsilon0", "truth"), [(100, 0.5, 96.0), (100, 2.0, 1027.0), (600, 0.5, 2180.0)]
)
def test_clipping_after_averaging_has_full_sensitivity(
    records: int, epsilon0: float, truth: float
) -> None:
    """Noise scaled to 2C/m while the clipped average moves by up to 2C: local epsilon at 1e-5."""
    move = 4.0
    sigma, honest = (gaussian.classical_sigma(epsilon0, 1e-5, x) for x in (move / records, move))
    assert gaussian.gaussian_epsilon(1e-5, move / sigma) == pytest.approx(truth, rel=0.01)
    assert gaussian.gaussian_epsilon(1e-5, move / honest) <= epsilon0


@pytest.mark.parametrize(("delta", "first"), [(1e-3, 7.5), (1e-5, 8.4), (1e-8, 9.4)])
def test_classical_gaussian_formula_is_conservative_where_used_and_fails_far_above(
    delta: float, first: float
) -> None:
    def excess(epsilon0: float) -> float:
        mu = epsilon0 / math.sqrt(2.0 * math.log(1.25 / delta))
        return gaussian.gaussian_delta(epsilon0, mu) / delta

    assert all(excess(x) < 1.0 for x in np.linspace(0.01, 2.0, 60))
    crossing = next(x for x in np.arange(2.0, 12.0, 0.05) if excess(x) > 1.0)
    assert crossing == pytest.approx(first, abs=0.11)

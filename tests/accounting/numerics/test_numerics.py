"""Randomizers against exact values (enumerated small shuffles, 30-digit records, quadrature), and
what holds for every input: order, safe inverses, an answer or one clear error. Dominating pairs and
their composition: closed forms, enumeration, dp_accounting, known traps."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any, Literal

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import fl_shuffle as fs
from fl_shuffle.accounting.bounds.blanket import blanket_curve, blanket_delta, blanket_epsilon
from fl_shuffle.accounting.bounds.clones import clone_curve, clone_law, standard_clone
from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.bounds.worst_client import (
    EXACT_BUDGET_CLASSES,
    client_curve,
    safe_groups,
    worst_client_curve,
)
from fl_shuffle.accounting.client_classes import ShuffledRound
from fl_shuffle.accounting.distributions import frequency_oracles
from fl_shuffle.accounting.distributions.amplification import AtomicDistribution
from fl_shuffle.accounting.distributions.continuous import LaplaceLaw, LaplaceRandomizer
from fl_shuffle.accounting.distributions.finite import (
    AccountedRandomizer,
    KRandomizedResponse,
    MatrixRandomizer,
)
from fl_shuffle.accounting.distributions.gaussian_mechanism import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_profile,
)
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.lower_bounds.chosen_datasets import (
    lower_bound_delta,
    lower_bound_epsilon,
)
from fl_shuffle.accounting.numerics.composition import Composition, certainly_within
from fl_shuffle.accounting.numerics.dominating_pairs import DominatingPair, trade_off
from fl_shuffle.accounting.numerics.dp_accounting_export import to_dp_accounting
from fl_shuffle.accounting.numerics.fourier import FOURIER_CELLS_AT_ONCE, TiltedDistribution
from fl_shuffle.accounting.numerics.monotone_search import crossing
from fl_shuffle.accounting.numerics.stop_loss import DeltaBound, amplified_delta
from fl_shuffle.accounting.queries.methods import METHODS
from fl_shuffle.accounting.round_off import UNIT
from fl_shuffle.accounting.rounds.equal_rounds import compose_equal_rounds, shuffled_pair
from fl_shuffle.accounting.rounds.round_library import AnyRound, RoundLibrary, largest_epsilon
from fl_shuffle.errors import ConfigError, InvalidValueError
from tests import oracles
from tests.oracles import composed
from tests.repository import ROOT

RECORDS: list[dict[str, Any]] = json.loads(
    (ROOT / "tests/golden/exact_delta.json").read_text("utf-8")
)["records"]
ROUND_OFF = 1e-13
RANDOMIZERS: dict[str, Callable[[float], AccountedRandomizer]] = {
    "10-RR": lambda e: KRandomizedResponse(e, 10),
    "2-RR": lambda e: KRandomizedResponse(e, 2),
    "BLH": frequency_oracles.BinaryLocalHashingDistribution,
    "OUE": frequency_oracles.OptimizedUnaryEncodingDistribution,
    "RAPPOR": frequency_oracles.RapporDistribution,
}
# What is asked, the distribution of a report at each input, the largest number of clients
# enumerated.
SMALL: dict[str, tuple[dict[str, Any], oracles.Matrix, int]] = {
    "2-RR": ({"randomizer": "krr", "k": 2, "epsilon0": 1.0}, oracles.krr_matrix(1.0, 2), 6),
    "3-RR": ({"randomizer": "krr", "k": 3, "epsilon0": 4.0}, oracles.krr_matrix(4.0, 3), 4),
    "RAPPOR": ({"randomizer": "rappor", "k": 2, "epsilon0": 1}, oracles.rappor_matrix(1.0, 2), 4),
    "OUE": ({"randomizer": "oue", "epsilon0": 1.5}, oracles.oue_matrix(1.5, 3), 3),
    "BLH": ({"randomizer": "blh", "epsilon0": 1.0}, oracles.hash_matrix(1.0, 3), 3),
    "own": ({"matrix": oracles.OWN}, oracles.OWN, 5),
}
KNOWING_ABSENCE = [name for name, method in METHODS.items() if method.absence and name != "vector"]
"""`vector` is about vectors (test_vector_exact.py)."""


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("rate", [1.0, 0.9, 0.02])
def test_bounds_bracket_every_neighbouring_pair(name: str, rate: float) -> None:
    """Everybody takes part, or each at random; absence is an outcome of its own."""
    asked, matrix, most = SMALL[name]
    seen = matrix if rate == 1.0 else oracles.absent_too(matrix, rate)
    local = oracles.worst_curve(seen, 1)
    for n in (1, 2, most):
        exact = oracles.worst_curve(seen, n)
        for epsilon in (0.0, 0.01, 0.3, 0.9):
            worst = exact(epsilon)
            question = {**asked, "clients": n, "epsilon": epsilon, "participation": rate}
            answers = {each: fs.bound(**question, method=each) for each in KNOWING_ABSENCE}
            for answer in answers.values():
                if answer.status is Status.LOWER_BOUND:
                    assert answer.delta * (1.0 - 1e-12) <= worst
                else:
                    assert worst <= answer.delta * (1.0 + 1e-12)
                # Nobody hides the client but its own coin.
                assert (name, n) != ("2-RR", 1) or answer.delta == pytest.approx(worst, rel=1e-6)
            assert answers["blanket"].delta <= local(epsilon) * (1.0 + 1e-9)
            if rate == 1.0 and "RR" in name:
                # Others at one third value only reach 0.11 of the truth in the worst of these.
                assert 0.8 * worst <= answers["lower"].delta


@pytest.mark.parametrize("rate", [0.05, 1.0])
@pytest.mark.parametrize("budgets", [(1.5, 0.3, 1.0, 2.5), (1.5, 1.0, 4.0)])
def test_clients_with_budgets_of_their_own(budgets: tuple[float, ...], rate: float) -> None:
    """The worst of them, whatever the others hold, k = 3."""
    laws = [oracles.absent_too(oracles.krr_matrix(budget, 3), rate) for budget in budgets]
    for epsilon in (0.0, 0.05, 0.5):
        question = {"randomizer": "krr", "k": 3, "budgets": [[each] for each in budgets]}
        found = fs.bound(**question, epsilon=epsilon, participation=rate, method="blanket").delta
        for own in range(len(laws)):
            rest = [*laws[:own], *laws[own + 1 :]]
            assert oracles.worst_delta([laws[own], *rest], epsilon) <= found * (1.0 + 1e-12)


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_merged_budgets_hide_no_more_at_any_number(groups: int) -> None:
    """Of reports that come from the blanket, by their exact distribution; and hardly less where
    they are nearly alike."""
    draw = np.random.default_rng(groups)

    def law(masses: Sequence[tuple[float, int]]) -> np.ndarray:
        found = np.ones(1)
        for mass, count in masses:
            for _ in range(count):
                found = np.convolve(found, [1.0 - mass, mass])
        return np.cumsum(found)

    for case in range(40):
        low = 0.9 if case % 4 == 0 else 1e-3
        drawn = np.exp(draw.uniform(math.log(low), 0.0, 7)).tolist()
        masses = list(zip(drawn, draw.integers(0, 4, 7).tolist(), strict=True))
        merged = safe_groups([*masses, (0.0, 5)], groups)
        assert len(merged) <= groups
        assert sum(count for _, count in merged) == sum(count for _, count in masses)
        exact, found = law(masses), law(merged)
        assert (exact <= found + 1e-12).all()
        assert low < 0.9 or (found - exact).max() < 0.02


def records(name: str) -> list[tuple[int, float, float, float]]:
    """(n, eps0, eps, exact delta), by ball arithmetic, good to 30 digits."""
    found = [(r["n"], r["eps0"], r["eps"], float(r["delta"])) for r in RECORDS if r["mech"] == name]
    assert found, name
    return found


@pytest.mark.parametrize("name", RANDOMIZERS)
def test_upper_bound_is_above_and_within_three_parts_in_ten_thousand(name: str) -> None:
    for n, epsilon0, epsilon, exact in records(name):
        bound = blanket_delta(RANDOMIZERS[name](epsilon0), n, epsilon)
        assert -ROUND_OFF <= bound.delta / exact - 1.0 <= 3e-4, (n, epsilon0, epsilon)
        assert bound.delta - bound.numerical_error <= exact * (1.0 + ROUND_OFF)


@pytest.mark.parametrize("name", ["10-RR", "2-RR"])
def test_lower_bound_is_below_and_within_five_parts_in_ten_thousand(name: str) -> None:
    """Of one data set, that of the golden numbers."""
    for n, epsilon0, epsilon, exact in records(f"{name}-lower"):
        first = RANDOMIZERS[name](epsilon0).witness_cases()[:1]
        bound = lower_bound_delta(
            SimpleNamespace(witness_cases=lambda first=first: first), n, epsilon
        )
        assert -ROUND_OFF <= 1.0 - bound.delta / exact <= 5e-4, (n, epsilon0, epsilon)


def test_standard_clone_matches_every_exact_record_from_above() -> None:
    for n, epsilon0, epsilon, exact in records("clone"):
        ours = standard_clone(epsilon0, n, epsilon=epsilon).delta
        assert exact * (1.0 - ROUND_OFF) <= ours <= exact * (1.0 + 1e-3), (n, epsilon0, epsilon)


EACH: dict[str, dict[str, Any]] = {
    "10-RR": {"randomizer": "krr", "k": 10},
    "2-RR": {"randomizer": "krr", "k": 2},
    "BLH": {"randomizer": "blh"},
    "OUE": {"randomizer": "oue"},
    "RAPPOR": {"randomizer": "rappor"},
    "parallel 0.5*10-RR+0.5*BLH": {"randomizer": "parallel:0.5*krr(k=10),0.5*blh"},
}


def proven_methods(**asked: Any) -> list[str]:
    """Every method that calls its answer to this question proven, whichever there are."""
    answers = fs.compare(**asked)
    return [
        name
        for name, answer in answers.items()
        if isinstance(answer, Guarantee) and answer.status is Status.PROVEN
    ]


@pytest.mark.parametrize("name", ["10-RR", "2-RR"])
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 8))]
)
def test_no_proven_method_is_below_what_a_data_set_loses(name: str, part: int) -> None:
    """The exact truth of one data set, by all methods: `vector` and `sum` are about vectors."""
    methods = proven_methods(**EACH[name], epsilon0=1.0, clients=200, epsilon=0.1)
    assert {"blanket", "general-clone", "clone", "profile", "rdp"} <= set(methods)
    for n, epsilon0, epsilon, exact in records(f"{name}-lower")[part::8]:
        asked = {**EACH[name], "epsilon0": epsilon0, "clients": n, "epsilon": epsilon}
        for method in methods:
            found = fs.bound(**asked, method=method).delta
            assert found >= exact * (1.0 - ROUND_OFF), (method, n, epsilon0, epsilon)


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        *((name, ("blanket", "general-clone")) for name in EACH),
        ("clone", ("clone", "feldman2022-numeric", "rdp")),
    ],
)
def test_no_proven_method_is_below_its_own_reduction(name: str, methods: tuple[str, ...]) -> None:
    """The exact delta of the pair that the method is about, asked for as users do."""
    for n, epsilon0, epsilon, exact in records(name)[:: 1 if name.startswith("parallel") else 6]:
        asked = {**EACH.get(name, {}), "epsilon0": epsilon0, "clients": n, "epsilon": epsilon}
        for method in methods:
            found = fs.bound(**asked, method=method)
            assert found.delta >= exact * (1.0 - ROUND_OFF), (method, n, epsilon0, epsilon)
            if method != "rdp":  # its conversion loses more
                assert found.delta <= exact * (1.0 + 1e-3), (method, n, epsilon0, epsilon)


def test_reference_values_of_many_rounds() -> None:
    """Local 0.5, n = 1000, delta 1e-6: 0.05352 for one round; 0.4397 for fifty, on a fine grid."""
    shared = ShuffledRound("laplace", 4.0, 1.0, 2.0, ((1.0, 999),))
    library = RoundLibrary()
    assert library.epsilon({shared: 1}, 1e-6) == pytest.approx(0.05352, rel=1e-3)
    assert 0.4397 * 0.999 <= library.epsilon({shared: 50}, 1e-6) <= 0.4397 * 1.01
    assert library.epsilon({}, 1e-6) == 0.0


# --- Others' blanket masses of their own --------------------------------------------------------


def response_law(epsilon: float, epsilon0: float = 1.0, k: int = 10) -> AtomicDistribution:
    found = KRandomizedResponse(epsilon0, k).pairs()[0].law(epsilon)
    assert found is not None
    return found


@pytest.mark.parametrize("distinct", [EXACT_BUDGET_CLASSES, EXACT_BUDGET_CLASSES + 1])
def test_the_most_exposed_client_is_no_other_than_one_of_them(distinct: int) -> None:
    """Who hides others well loses most by being one of those to hide: of nearly equal budgets the
    largest need not be the most exposed."""
    budgets = [LocalBudget(budget) for budget in np.linspace(0.98, 1.0, distinct).tolist()]

    def law(epsilon0: float) -> Any:
        return lambda epsilon: clone_law(epsilon0, epsilon)

    def hiding(own: LocalBudget, other: LocalBudget) -> float:
        return 0.9 if other.epsilon0 < 1.0 else 0.05

    worst = worst_client_curve(budgets, law, hiding)
    each = [client_curve(budgets, own, own, law, hiding) for own in budgets]
    for epsilon in (0.0, 0.3, 0.6):
        exact = [curve(epsilon).delta for curve in each]
        assert max(exact) > exact[-1] > 0.0
        assert max(exact) <= worst(epsilon).delta <= 1.3 * max(exact)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 3.0])
def test_atoms_too_rare_to_keep_are_certain_losses_on_both_sides(epsilon: float) -> None:
    """Their mirror images, too: P has mass at both, and loses nothing of either."""
    rare, left = 1e-70, 1e-80
    pair = DominatingPair.from_curve([0.0, epsilon, 2.0 * epsilon], [0.1, rare, left])
    # What stands above the last node is the slope of the last chord, at both of its ends.
    slope = (rare - left) / math.expm1(epsilon)
    mass = slope * math.exp(epsilon)
    assert pair.losses.tolist() == pytest.approx([-epsilon, 0.0, epsilon])
    wanted = left + mass * (1.0 + math.exp(-2.0 * epsilon))
    assert pair.infinite == pytest.approx(wanted, rel=1e-9, abs=0.0)


def test_grouping_many_budgets_is_safe_and_tight() -> None:
    """The grouped curve is above the ungrouped one, by little."""
    rng = np.random.default_rng(5)
    masses = [(float(p), 1) for p in rng.uniform(0.2, 0.9, 200)]
    exact, grouped = clone_curve(1.0, masses), clone_curve(1.0, safe_groups(masses, 12))
    for epsilon in (0.0, 0.2, 0.4):
        assert exact(epsilon).lower <= grouped(epsilon).delta <= exact(epsilon).delta * 1.02


def enumerated(law: AtomicDistribution, gammas: Sequence[float]) -> float:
    """E[L_1 1{L_1 + sum B_j L_j > 0}] by brute force."""
    values = [0.0, *law.values]
    drawn = [(values, [1.0 - gamma, *(gamma * law.probabilities)]) for gamma in gammas]
    total, chance = oracles.independent_sum(drawn)
    positive = np.add.outer(law.values, total) > 0.0
    return float((law.values * law.probabilities) @ positive @ chance)


@pytest.mark.parametrize("gammas", [(0.3, 0.7, 0.9, 0.05), (1.0, 1.0, 0.5), (1e-6, 0.4, 0.0)])
def test_personal_blanket_masses_against_enumeration(gammas: tuple[float, ...]) -> None:
    for epsilon in (0.0, 0.4, 1.2):
        law = response_law(epsilon, 1.5, 3)
        exact = enumerated(law, gammas)
        bound = amplified_delta(law, [(gamma, 1) for gamma in gammas])
        assert exact * (1.0 - 1e-12) <= bound.delta <= exact * (1.0 + 1.5e-4)
        assert bound.lower <= exact * (1.0 + 1e-12)


@pytest.mark.parametrize("n", [3_000, 40_000])
def test_count_representations_agree(n: int) -> None:
    """Many classes, number by number, against the closed form of one, with equal masses."""
    law = response_law(2.0 / math.sqrt(n))
    one = amplified_delta(law, [(0.6, n)])
    many = amplified_delta(law, [(0.6 * (1.0 + i * 1e-15), n // 10) for i in range(10)])
    assert many.delta == pytest.approx(one.delta, rel=1e-4)
    assert many.lower <= one.delta and one.lower <= many.delta


@pytest.mark.parametrize("epsilon0, epsilon", [(1.0, 0.3), (2.0, 0.1), (0.5, 0.4)])
def test_laplace_against_quadrature(epsilon0: float, epsilon: float) -> None:
    """n = 2: delta = (1 - gamma) E(L)_+ + gamma E(L_1 + L_2)_+ / 2, by sums over fine cells."""
    half, cells = 0.5 * epsilon0, 1500
    distance = np.append((np.arange(cells) + 0.5) * half / cells, half)
    edges = np.exp(-np.linspace(0.0, half, cells + 1))
    mass = np.tile(0.5 * np.append(edges[:-1] - edges[1:], edges[-1]), 2)
    z = 2.0 * distance - half
    up, down = np.exp(z) - math.exp(epsilon - half), math.exp(-half) - np.exp(epsilon + z)
    value = np.concatenate([up, down])
    pair = float(mass @ np.maximum(np.add.outer(value, value), 0.0) @ mass)
    gamma = math.exp(-half)
    exact = (1.0 - gamma) * float(mass @ np.maximum(value, 0.0)) + gamma * 0.5 * pair
    bound = blanket_delta(LaplaceRandomizer(epsilon0), 2, epsilon)
    assert exact * (1.0 - 1e-6) <= bound.delta <= exact * (1.0 + 4e-4)


# --- What holds for every input -----------------------------------------------------------------

SLACK = 1.0 + 3e-4
"""Two certified values may differ by their own numerical error; a distribution may be violated by
that."""
VANISHING = 2e-278
"""Deltas below e^-640 are all reported as that number."""
FAMILIES = {**RANDOMIZERS, "Hadamard": frequency_oracles.HadamardResponseDistribution}

families = st.sampled_from([FAMILIES[name] for name in FAMILIES if name != "2-RR"])
# Nearer to zero few reports may weigh nothing together: what is then certified is up to 1 % higher.
shares = st.floats(0.02, 0.9)


@settings(max_examples=25, deadline=None)
@given(families, st.floats(0.05, 5.0), st.integers(1, 100_000), shares, st.floats(0.0, 1.0),
       st.integers(0, 100_000))  # fmt: skip
def test_delta_falls_with_epsilon_and_with_reports_from_the_local_to_the_lower_bound(
    family, epsilon0: float, n: int, share: float, further: float, more: int
) -> None:
    randomizer = family(epsilon0)
    near, far = share * epsilon0, (share + (1.0 - share) * further) * epsilon0
    first = blanket_delta(randomizer, n, near)
    for reports, epsilon in ((n, far), (n + more, near)):
        assert blanket_delta(randomizer, reports, epsilon).delta <= first.delta * SLACK + VANISHING
    local = max(case.local_delta(near) for case in randomizer.cases())
    assert lower_bound_delta(randomizer, n, near).delta <= first.delta <= local * (1.0 + 1e-12)
    assert 0.0 <= first.numerical_error <= 3e-4 * first.delta + VANISHING


@settings(max_examples=12, deadline=None)
@given(families, st.floats(0.1, 4.0), st.integers(1, 50_000), st.floats(-12.0, -1.0))
def test_epsilon_is_safe_and_tight(family, epsilon0: float, n: int, log_delta: float) -> None:
    randomizer, delta = family(epsilon0), 10.0**log_delta
    found = blanket_epsilon(randomizer, n, delta).epsilon
    assert blanket_delta(randomizer, n, found).delta <= delta
    assert lower_bound_epsilon(randomizer, n, delta).epsilon <= found
    if 0.0 < found < epsilon0 * (1.0 - 1e-9):
        assert blanket_delta(randomizer, n, found * (1.0 - 1e-3)).delta >= delta * 0.999


def test_disjoint_supports_and_empty_blankets_give_the_local_answer() -> None:
    silent = MatrixRandomizer([[1.0, 0.0], [0.0, 1.0]])
    assert blanket_delta(silent, 10**6, 3.0).delta == 1.0
    assert blanket_epsilon(silent, 10**6, 1e-6).epsilon == math.inf
    partly = MatrixRandomizer(oracles.HALF_HIDDEN)
    assert blanket_delta(partly, 10**6, 1.0).delta >= 0.5
    for n, epsilon in product((2, 4), (0.0, 0.3, 0.9)):
        worst = oracles.worst_curve(oracles.HALF_HIDDEN, n)(epsilon)
        assert lower_bound_delta(partly, n, epsilon).delta <= worst * (1.0 + 1e-12)
        assert worst <= blanket_delta(partly, n, epsilon).delta * (1.0 + 1e-12)
    local = (math.exp(1.0) - math.exp(0.3)) / (math.exp(1.0) + 9.0)
    for classes in ([], [(0.0, 10**6)], [(0.7, 0)]):
        found = amplified_delta(response_law(0.3), classes).delta
        assert found == pytest.approx(local, rel=1e-12)


def test_cut_upper_tail_is_added() -> None:
    """A distribution cut at `upper` reports E(L - upper)_+ and the engine adds it."""
    law = LaplaceLaw(0.5, 0.05)

    class Cut:
        lower, upper, mean = law.lower, law.upper * 0.98, law.mean
        stop_loss = staticmethod(law.stop_loss)

    excess = float(law.stop_loss(np.array([Cut.upper]))[0])
    whole, cut = (amplified_delta(x, [(0.6, 300)], relative_error=1e-3) for x in (law, Cut()))
    assert whole.lower <= cut.delta <= whole.delta + 1.01 * excess
    assert excess > 0.0


@pytest.mark.parametrize("family", [*FAMILIES.values(), LaplaceRandomizer])
def test_a_local_budget_is_finite_and_that_of_nothing_reveals_nothing(
    family: Callable[[object], AccountedRandomizer],
) -> None:
    for wrong in (-1.0, math.nan, 800.0, "1"):
        with pytest.raises(InvalidValueError, match="epsilon0"):
            family(wrong)
    assert blanket_delta(family(0.0), 10, 0.0).delta == 0.0
    assert blanket_epsilon(family(0.0), 10, 1e-6).epsilon == 0.0
    assert lower_bound_delta(family(0.0), 10, 0.0).delta == 0.0


def test_what_cannot_be_had_is_within_what_is_said() -> None:
    found = amplified_delta(response_law(3e-6), [(0.7, 10**12)], relative_error=1e-9)
    assert 1e-9 * found.delta < found.error <= found.delta


# (randomizer, k, method, epsilon0, clients, delta, epsilon): each of them was refused once.
REFUSED_ONCE = [
    ("laplace", None, "blanket", 12.0, 100, 1e-6, None),
    ("laplace", None, "blanket", 1e-6, 5, 1e-12, None),
    ("blh", None, "lower", 15.5, 2, 0.26, None),
    ("rappor", 4, "blanket", 13.3, 24, 1e-12, None),
    ("oue", None, "blanket", 20.0, 10, 1e-6, None),
    ("oue", None, "clone", 18.9, 66398, 1e-13, None),
    ("oue", None, "blanket", 1.5e-6, 2330, None, 7.4e-7),
]


NAMES = ("randomizer", "k", "method", "epsilon0", "clients", "delta", "epsilon")


@pytest.mark.parametrize("call", REFUSED_ONCE, ids=str)
def test_extreme_calls_have_an_answer_and_no_warning(call: tuple[Any, ...]) -> None:
    question = dict(zip(NAMES, call, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = fs.bound(**question)
    assert 0.0 <= answer.delta <= 1.0
    if question["delta"] is not None:
        assert 0.0 <= answer.epsilon <= question["epsilon0"] * (1.0 + 1e-9)


@pytest.mark.parametrize("step", [1e-7, 1e-3, 0.4])
def test_a_tilted_laws_transform_is_within_the_stated_round_off(step: float) -> None:
    """Products of turns against 40 digits."""
    rng = np.random.default_rng(3)
    values = np.sort(rng.normal(0.0, 1.0, 60) * np.exp(rng.normal(0.0, 2.0, 60)))
    law = TiltedDistribution.of(AtomicDistribution(values, np.full(60, 1.0 / 60.0)), 0.05)
    nodes = np.unique(np.append(np.arange(1, 20_000, 97), np.arange(32, 20_000, 64)))
    found = law.characteristic(nodes, step)
    for position in rng.choice(nodes.size, 12, replace=False):
        k = float(nodes[position]) * step
        with mpmath.workdps(40):
            turns = [mpmath.expj(mpmath.mpf(k) * value) - 1 for value in law.values.tolist()]
            exact = complex(mpmath.fdot(law.weights.tolist(), turns))
        assert abs(found[position] - exact) <= UNIT * law.rounding * k + 1e-300


def test_kept_turns_come_back_bit_for_bit() -> None:
    """Blocks of nodes that were asked for before, of this step and of another, and new ones."""
    values = np.random.default_rng(4).normal(0.0, 1.0, 300)
    atoms = AtomicDistribution(values, np.full(300, 1.0 / 300.0))
    known = TiltedDistribution.of(atoms, 0.05)
    for step, nodes in (
        (0.01, np.arange(0, 6_400, 64)),
        (0.03, np.arange(0, 6_400, 64)),
        (0.01, np.arange(3_200, 9_600, 16)),
    ):
        fresh = TiltedDistribution.of(atoms, 0.05)
        assert np.array_equal(known.characteristic(nodes, step), fresh.characteristic(nodes, step))
    # More than is kept at most: nothing is lost, and nothing more is held.
    many = np.arange(0, 64 * 3_600, 64)
    known.characteristic(many, 0.01)
    assert len(known._coarse) * values.size <= FOURIER_CELLS_AT_ONCE


# --- Dominating pairs and their composition -------------------------------------------------------


def gaussian_pair(mu: float, nodes: int = 300) -> DominatingPair:
    grid = np.linspace(0.0, 9 * mu + mu * mu / 2, nodes)
    return DominatingPair.from_curve(grid, gaussian_profile(grid, mu))


@pytest.mark.parametrize("mu", [0.003, 1.0])
@pytest.mark.parametrize("rounds", [1, 3, 1000])
@pytest.mark.parametrize("delta", [1e-3, 1e-10])
def test_gaussian_rounds_against_the_closed_form(mu: float, rounds: int, delta: float) -> None:
    """Never below sqrt(T) mu, and within 0.5% of it."""
    truth = gaussian_epsilon(delta, mu * math.sqrt(rounds))
    found = Composition([(gaussian_pair(mu), rounds)]).epsilon(delta)
    assert truth * (1 - 1e-9) <= found <= truth * 1.005 + 1e-6


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 0.8), st.integers(1, 20)), min_size=1, max_size=4),
    st.floats(0.0, 4.0),
)
def test_different_rounds_add_up(rounds: list[tuple[float, int]], deviations: float) -> None:
    total = math.sqrt(sum(times * mu * mu for mu, times in rounds))
    composition = Composition([(gaussian_pair(mu, 120), times) for mu, times in rounds])
    epsilon = 0.5 * total**2 + deviations * total
    truth = gaussian_profile(epsilon, total)
    assert truth * (1 - 1e-9) <= composition.delta(epsilon) <= truth * 1.1


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 3.0), st.floats(1e-3, 0.99), st.integers(2, 6), st.floats(0.01, 0.9))
@example(2.47, 0.8864, 6, 0.2114)  # the thinned points run past the breakpoint
def test_rounds_of_a_finite_randomizer_against_enumeration(
    epsilon0: float, mixed: float, rounds: int, share: float
) -> None:
    """Three outcomes, mirrored, whose losses are points of the grid: a part in 20,000."""
    high = math.exp(epsilon0) / (1.0 + math.exp(epsilon0)) * (1.0 - mixed)
    law = [epsilon0, 0.0, -epsilon0], [high, mixed, 1.0 - mixed - high]
    whole = compose_equal_rounds(
        lambda epsilon: DeltaBound(composed([law], epsilon), 0.0), epsilon0, rounds
    )
    for at in (share * rounds * epsilon0, epsilon0, (rounds - 1) * epsilon0):
        exact = composed([law] * rounds, at)
        assert exact * (1 - 1e-9) <= whole.delta(at) <= exact * (1 + 5e-5) + 1e-14


@pytest.mark.parametrize("seed", range(8))
def test_rounds_of_a_curve_with_kinks_against_enumeration(seed: int) -> None:
    """Five outcomes, three rounds; a breakpoint at every loss, none of them on the grid."""
    p = np.random.default_rng(seed).dirichlet(np.full(5, 4.0))
    losses = np.log(p / p[::-1])
    curve = SimpleNamespace(predicted_mu=math.sqrt(float(p @ losses**2)))
    curve.certified = curve.local_delta = lambda epsilon: composed([(losses, p)], epsilon)
    whole = Composition([(shuffled_pair(curve), 3)])  # type: ignore[arg-type]
    places = np.unique([sum(each) for each in product(losses, repeat=3)])
    for epsilon in np.concatenate([places, 0.5 * (places[1:] + places[:-1])]).tolist():
        if epsilon >= 0.0:
            truth = composed([(losses, p)] * 3, epsilon)
            assert truth <= whole.delta(epsilon) * (1.0 + 1e-9) + 1e-13


@given(st.floats(-3.0, 0.5), st.integers(2, 8), st.floats(-12.0, -2.5))
@example(math.log10(0.0625), 2, -3.0)
@example(math.log10(0.0625), 3, -3.0)
@settings(deadline=None, max_examples=60)
def test_laplace_rounds_are_not_below_their_largest_loss(
    log_ratio: float, rounds: int, log_delta: float
) -> None:
    """P puts 2^-rounds on the largest loss: what that atom alone costs is a floor.

    Windows whose tilted masses differ by more than 2^53 from cell to cell came out below it.
    """
    ratio, delta = 10.0**log_ratio, 10.0**log_delta
    share = delta * 2.0**rounds
    floor = rounds * ratio + math.log1p(-share) if share < 1.0 else 0.0
    assert laplace_epsilon(delta, ratio, rounds) >= floor * (1.0 - 1e-12)


def test_round_off_never_pushes_delta_below_the_truth() -> None:
    """dp_accounting without tail truncation loses tiny deltas to round-off; this does not."""
    mu, rounds, delta = 0.1, 100, 1e-30
    epsilon = gaussian_epsilon(delta, mu * math.sqrt(rounds))
    ours = Composition([(gaussian_pair(mu, 1500), rounds)]).delta(epsilon)
    assert delta * (1 - 1e-6) <= ours <= 1e-15


def test_mass_at_infinity_is_certain_loss() -> None:
    pair = DominatingPair.from_curve([0.0, 0.5], [0.3, 0.01])
    assert pair.infinite == pytest.approx(0.01)
    composition = Composition([(pair, 10)])
    assert composition.infinite == pytest.approx(1 - 0.99**10)
    assert composition.epsilon(0.05) == math.inf
    assert math.isfinite(composition.epsilon(0.2))
    assert Composition([(pair, 0)]).epsilon(1e-9) == 0.0
    assert Composition([]).delta(0.0) == 0.0


def test_noisy_nodes_are_replaced_by_their_convex_envelope() -> None:
    """Upper bounds that are not convex still give a pair below them and above the truth."""
    grid = np.linspace(0.0, 1.2, 80)
    truth = gaussian_profile(grid, 0.2)
    noisy = truth * (1 + 0.05 * np.random.default_rng(0).random(grid.size))
    pair = DominatingPair.from_curve(grid, noisy)
    assert np.all(pair.masses >= 0.0)
    assert float(pair.masses.sum()) + pair.infinite == pytest.approx(1.0, abs=1e-9)
    for epsilon, below, above in zip(grid, truth, noisy, strict=True):
        assert below * (1 - 1e-9) <= pair.delta(float(epsilon)) <= above * (1 + 1e-9) + 1e-15


def test_trade_off_curve_is_below_the_true_one_and_close() -> None:
    composition = Composition([(gaussian_pair(0.1), 50)])
    errors = np.linspace(0.0, 1.0, 41)
    curve = trade_off(errors, composition.profile, 8.0, 200)
    truth = norm.cdf(norm.ppf(1 - errors) - 0.1 * math.sqrt(50))
    assert np.all(curve <= truth + 1e-9)
    assert np.max(truth - curve) < 5e-3
    assert curve[0] == pytest.approx(1.0, abs=1e-6)
    assert curve[-1] == 0.0


@pytest.mark.parametrize("epsilons", [[0.1, 0.2], [0.0, 0.0], [0.0, 700.0], [0.0], []])
@pytest.mark.parametrize("deltas", [[0.5, 0.4], [0.5, math.nan], [1.5, 0.4]])
def test_bad_curves_are_refused(epsilons: list[float], deltas: list[float]) -> None:
    with pytest.raises(InvalidValueError):
        DominatingPair.from_curve(epsilons, deltas)


@pytest.mark.parametrize("epsilon", [-1e-300, -0.5, math.nan, -math.inf])
@pytest.mark.parametrize("times", [0, 3])
def test_composed_delta_of_no_epsilon_is_refused(epsilon: float, times: int) -> None:
    """Its Chernoff bound holds from zero on."""
    with pytest.raises(InvalidValueError, match="epsilon"):
        Composition([(gaussian_pair(0.1), times)]).delta(epsilon)


@pytest.mark.parametrize("times", [-1, 1.5, math.nan, True, 10**12])
def test_composition_of_no_number_of_rounds_is_refused(times: Any) -> None:
    """Fewer than none would take back what other rounds cost."""
    with pytest.raises(InvalidValueError, match="times"):
        Composition([(gaussian_pair(0.1), 3), (gaussian_pair(0.1), times)])


@pytest.mark.parametrize("rare", [1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("spread", [0.02, 0.3])
@pytest.mark.parametrize("loss", [2.0, 12.0])
def test_rare_large_losses_hide_nothing(rare: float, spread: float, loss: float) -> None:
    """A curve with a bulk of small losses and few large ones, twice: from all pairs of atoms."""
    grid = np.concatenate([[0.0], np.geomspace(spread / 30, loss, 80)])
    pair = DominatingPair.from_curve(
        grid, (1 - rare) * gaussian_profile(grid, spread) + rare * -np.expm1(grid - loss - 1e-9)
    )
    twice, certain = Composition([(pair, 2)]), 2.0 * pair.infinite - pair.infinite**2
    for epsilon in (0.0, 0.1 * spread, spread, 3 * spread, loss, 1.5 * loss):
        exact = composed([(pair.losses, pair.masses)] * 2, epsilon) + certain
        assert exact * (1 - 1e-7) <= twice.delta(epsilon) <= exact * (1 + 5e-3) + 1e-15


# --- Many compositions at once ------------------------------------------------------------------

DELTA, MUS = 1e-6, np.array([0.05, 0.07, 0.11])


def on_lattice(mu: float) -> DominatingPair:
    step = 2.0 ** math.floor(math.log2(mu / 10))
    grid = step * np.arange(math.ceil(9 * mu / step))
    return DominatingPair.from_curve(grid, gaussian_profile(grid, mu), grid=step)


PAIRS = [on_lattice(mu) for mu in MUS.tolist()]


@pytest.mark.parametrize("rounds", [1, 30, 3000])
def test_what_is_certain_is_so_and_what_is_clear_is_certain(rounds: int) -> None:
    """At every composition's own epsilon: nobody above it is let through, and all are that are a
    hundred-thousandth below."""

    def composed(times: np.ndarray) -> Composition:
        return Composition(list(zip(PAIRS, times.astype(int).tolist(), strict=True)))

    rng = np.random.default_rng(rounds)
    times = rng.multinomial(4 * rounds, [0.2, 0.5, 0.3], size=24).astype(float)
    epsilons = np.array([composed(row).epsilon(DELTA) for row in times])
    order = np.argsort(epsilons)
    for place in (order[0], order[11], order[23]):
        similar, at = composed(times[place]), float(epsilons[place])
        sure = certainly_within(PAIRS, times, at, DELTA, similar)
        assert not (sure & (epsilons > at * (1 + 1e-8))).any()
        assert sure[epsilons < at * (1 - 1e-5)].all()
    assert certainly_within(PAIRS, times, float(epsilons.max()) * (1 + 1e-6), DELTA, similar).all()
    # Whatever the window: that of other rounds, a hundredth or many times as long.
    for pair, length, share in product(PAIRS, (1, rounds, 400), (0.3, 0.9, 1.1, 3.0)):
        window = Composition([(pair, length)])
        sure = certainly_within(PAIRS, times, share * epsilons[0], DELTA, window)
        assert not (sure & (epsilons > share * epsilons[0] * (1 + 1e-8))).any()
    # With a mass that is certain loss above delta nothing holds at any epsilon.
    lossy = DominatingPair(PAIRS[0].losses, PAIRS[0].masses, 1e-7, PAIRS[0].grid)
    sure = certainly_within([lossy], np.array([[9.0], [11.0]]), 5.0, DELTA, similar)
    assert not sure[1]


class Counted(RoundLibrary):
    """How many histories were computed."""

    asked = 0

    def epsilon(self, spent: Mapping[AnyRound, int], delta: float) -> float:
        self.asked += 1
        return super().epsilon(spent, delta)


def test_the_worst_history_is_the_worst_and_few_are_worked_out() -> None:
    kinds = [ShuffledRound("gaussian", 8.0, 1.0, 2.0, ((1.0, others),)) for others in (20, 24, 30)]
    rng, library = np.random.default_rng(5), Counted()
    histories = [
        {kind: int(n) for kind, n in zip(kinds, row, strict=True) if n}
        for row in rng.multinomial(60, [0.3, 0.4, 0.3], size=30)
    ]
    each = [RoundLibrary.epsilon(library, spent, DELTA) for spent in histories]
    found = largest_epsilon(library, histories, DELTA, [math.inf] * 30)
    assert found == pytest.approx(max(each), rel=1e-7)
    assert 0 < library.asked <= 3
    assert largest_epsilon(library, [], DELTA, []) == 0.0
    # Nobody pays more than what its own noise costs, and who met no batch pays that.
    most = (rng.uniform(0.8, 1.2, 30) * max(each)).tolist()
    histories[4], each[4] = {}, math.inf
    found = largest_epsilon(library, histories, DELTA, most)
    assert found == pytest.approx(max(map(min, most, each)), rel=1e-7)


# --- The search for an epsilon ------------------------------------------------------------------


@pytest.mark.parametrize("target", [1e-6, 0.3, 1e-140])
def test_a_stretch_one_unit_above_the_target_is_above_it(target: float) -> None:
    """Logarithms of neighboring numbers are often one number: values are compared."""

    def curve(epsilon: float) -> float:
        return math.nextafter(target, 1.0) if epsilon < 0.7 else 0.5 * target

    above, below = crossing(curve, target, 1.0)
    assert above < 0.7 <= below
    assert curve(below) <= target


@pytest.mark.parametrize("clients", [1_000, 10_000, 100_000])
def test_a_search_takes_five_points_of_a_smooth_curve(clients: int) -> None:
    """Each point is a Fourier sum. The answer is certified, and hardly above the true one."""
    certified = blanket_curve(KRandomizedResponse(0.1, 10), clients)
    asked: list[float] = []

    def curve(epsilon: float) -> float:
        asked.append(epsilon)
        return certified(epsilon).delta

    _, below = crossing(curve, 1e-6, 0.1, tolerance=1e-6)
    assert len(asked) <= 5
    assert (1.0 - 2e-6) * 1e-6 <= certified(below).delta <= 1e-6


@pytest.mark.parametrize("side", ["above", "below"])
def test_a_search_from_a_minimum_begins_near_its_end(side: Literal["above", "below"]) -> None:
    asked: list[float] = []

    def curve(epsilon: float) -> float:
        asked.append(epsilon)
        return gaussian_delta(epsilon, 0.5)

    above, below = crossing(curve, 1e-6, 50.0, side, minimum=2.0)
    assert curve(above) > 1e-6 >= curve(below)
    assert len(asked) - 2 <= 4
    assert (above if side == "above" else below) == pytest.approx(gaussian_epsilon(1e-6, 0.5), 1e-4)


# --- As dp-accounting's distributions -----------------------------------------------------------


def test_without_dp_accounting_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    message = "^to_dp_accounting needs dp-accounting, which is not installed; pip install"
    with pytest.raises(ConfigError, match=message):
        fs.to_dp_accounting(epsilon0=1.0, clients=100)


@pytest.mark.parametrize("discretization", [1e-3, 0.02])
@pytest.mark.parametrize("epsilon0", [0.013, 1.0])
def test_exported_randomized_response_stays_an_upper_bound(
    epsilon0: float, discretization: float
) -> None:
    # The losses lie off the grid: +-epsilon0, and 1% of certain loss.
    half = math.expm1(epsilon0) / (1.0 + math.exp(epsilon0)) * 0.99
    pair = DominatingPair.from_curve([0.0, epsilon0], [half + 0.01, 0.01])
    law, epsilons = to_dp_accounting(pair, discretization=discretization), np.linspace(0.0, 3.0, 61)
    ours = np.array([pair.delta(value) for value in epsilons])
    theirs = np.array(law.get_delta_for_epsilon(epsilons))
    assert np.all(theirs >= ours)
    assert theirs[-1] == pytest.approx(0.01, rel=3e-9)
    # A split atom reaches at most one grid step further than it lay.
    reach = [max(pair.delta(value - discretization), ours[0]) for value in epsilons]
    assert np.all(theirs <= np.array(reach) * (1.0 + 3e-9))
    assert theirs[0] <= ours[0] + discretization**2


def test_exported_rounds_and_those_that_lose_nothing() -> None:
    law = to_dp_accounting(Composition([(gaussian_pair(0.3, 400), 16)]).profile)
    for delta in (1e-3, 1e-6, 1e-10):
        exact = gaussian_epsilon(delta, 1.2)
        assert exact <= law.get_epsilon_for_delta(delta) <= 1.002 * exact
    nothing = Composition([(DominatingPair.from_curve([0.0], [0.0]), 5)]).profile
    assert to_dp_accounting(nothing).get_delta_for_epsilon(0.0) <= 1e-15
    with pytest.raises(InvalidValueError, match="discretization"):
        to_dp_accounting(nothing, discretization=0.0)


def test_a_filter_for_general_pairs_does_not_exist() -> None:
    """The counterexample of docs/research/proofs: the first outcome chooses the second round."""

    def response(epsilon: float, chance: float = 1.0) -> tuple[list[float], list[float]]:
        likely = chance / (1.0 + math.exp(-epsilon))
        return [epsilon, -epsilon, 0.0], [likely, chance - likely, 1.0 - chance]

    (up, down, _), (likely, other, _) = response(0.5)
    a, b = response(0.5), response(4.0, 0.16)
    found = [
        likely * composed([after], 0.5 - up) + other * composed([otherwise], 0.5 - down)
        for after, otherwise in ((a, a), (b, b), (a, b))
    ]
    assert found == pytest.approx([0.15245, 0.15238, 0.2088], abs=6e-5)

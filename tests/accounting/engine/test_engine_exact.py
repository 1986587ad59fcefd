"""Randomizers against exact values (enumerated small shuffles, 30-digit records, quadrature), and
what holds for every input: order, safe inverses, an answer or one clear error."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fl_shuffle as fs
from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_delta, lower_bound_epsilon
from fl_shuffle.accounting.bounds.blanket import blanket_delta, blanket_epsilon
from fl_shuffle.accounting.bounds.clones import clone_curve, standard_clone
from fl_shuffle.accounting.bounds.worst_client import safe_groups
from fl_shuffle.accounting.engine.fourier import TiltedLaw
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.laws import frequency_oracles
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.laws.continuous import LaplaceLaw, LaplaceRandomizer
from fl_shuffle.accounting.laws.finite import KRandomizedResponse, MatrixRandomizer, Randomizer
from fl_shuffle.accounting.queries.methods import METHODS
from fl_shuffle.accounting.reports import RoundType
from fl_shuffle.accounting.round_off import UNIT
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.errors import InvalidValueError
from tests import oracles
from tests.repository import ROOT

RECORDS: list[dict[str, Any]] = json.loads(
    (ROOT / "tests/golden/exact_delta.json").read_text("utf-8")
)["records"]
ROUND_OFF = 1e-13
RANDOMIZERS: dict[str, Callable[[float], Randomizer]] = {
    "10-RR": lambda e: KRandomizedResponse(e, 10),
    "2-RR": lambda e: KRandomizedResponse(e, 2),
    "BLH": frequency_oracles.BinaryLocalHashing,
    "OUE": frequency_oracles.OptimizedUnaryEncoding,
    "RAPPOR": frequency_oracles.Rappor,
}
# What is asked, the law of a report at each input, the largest number of clients enumerated.
SMALL: dict[str, tuple[dict[str, Any], oracles.Matrix, int]] = {
    "2-RR": ({"randomizer": "krr", "k": 2, "epsilon0": 1.0}, oracles.krr_matrix(1.0, 2), 6),
    "3-RR": ({"randomizer": "krr", "k": 3, "epsilon0": 4.0}, oracles.krr_matrix(4.0, 3), 4),
    "RAPPOR": ({"randomizer": "rappor", "k": 2, "epsilon0": 1}, oracles.rappor_matrix(1.0, 2), 4),
    "OUE": ({"randomizer": "oue", "epsilon0": 1.5}, oracles.oue_matrix(1.5, 3), 3),
    "BLH": ({"randomizer": "blh", "epsilon0": 1.0}, oracles.hash_matrix(1.0, 3), 3),
    "own": ({"matrix": oracles.OWN}, oracles.OWN, 5),
}
KNOWING_ABSENCE = [name for name, method in METHODS.items() if method.absence and name != "proven"]
"""`proven` is about vectors (test_vector_exact.py)."""


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


def test_reference_values_of_many_rounds() -> None:
    """Local 0.5, n = 1000, delta 1e-6: 0.05801 for one round; 0.4708 for fifty, on a fine grid."""
    shared = RoundType("laplace", 4.0, 1.0, 2.0, ((1.0, 999),))
    library = RoundLibrary()
    assert library.epsilon({shared: 1}, 1e-6) == pytest.approx(0.05801, rel=1e-3)
    assert 0.4708 * 0.999 <= library.epsilon({shared: 50}, 1e-6) <= 0.4708 * 1.01
    assert library.epsilon({}, 1e-6) == 0.0


# --- Others' blanket masses of their own --------------------------------------------------------


def response_law(epsilon: float, epsilon0: float = 1.0, k: int = 10) -> AtomicLaw:
    found = KRandomizedResponse(epsilon0, k).pairs()[0].law(epsilon)
    assert found is not None
    return found


def test_grouping_many_budgets_is_safe_and_tight() -> None:
    """The grouped curve is above the ungrouped one, by little."""
    rng = np.random.default_rng(5)
    masses = [(float(p), 1) for p in rng.uniform(0.2, 0.9, 200)]
    exact, grouped = clone_curve(1.0, masses), clone_curve(1.0, safe_groups(masses, 12))
    for epsilon in (0.0, 0.2, 0.4):
        assert exact(epsilon).lower <= grouped(epsilon).delta <= exact(epsilon).delta * 1.02


def enumerated(law: AtomicLaw, gammas: Sequence[float]) -> float:
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
"""Two certified values may differ by their own numerical error; a law may be violated by that."""
VANISHING = 2e-278
"""Deltas below e^-640 are all reported as that number."""
FAMILIES = {**RANDOMIZERS, "Hadamard": frequency_oracles.HadamardResponse}

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
    for n, epsilon in itertools.product((2, 4), (0.0, 0.3, 0.9)):
        worst = oracles.worst_curve(oracles.HALF_HIDDEN, n)(epsilon)
        assert lower_bound_delta(partly, n, epsilon).delta <= worst * (1.0 + 1e-12)
        assert worst <= blanket_delta(partly, n, epsilon).delta * (1.0 + 1e-12)
    local = (math.exp(1.0) - math.exp(0.3)) / (math.exp(1.0) + 9.0)
    for classes in ([], [(0.0, 10**6)], [(0.7, 0)]):
        found = amplified_delta(response_law(0.3), classes).delta
        assert found == pytest.approx(local, rel=1e-12)


def test_cut_upper_tail_is_added() -> None:
    """A law cut at `upper` reports E(L - upper)_+ and the engine adds it."""
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
    family: Callable[[object], Randomizer],
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
    law = TiltedLaw.of(AtomicLaw(values, np.full(60, 1.0 / 60.0)), 0.05)
    nodes = np.arange(32, 20_000, 64)
    found = law.characteristic(nodes, step)
    for position in rng.choice(nodes.size, 12, replace=False):
        k = float(nodes[position]) * step
        with mpmath.workdps(40):
            turns = [mpmath.expj(mpmath.mpf(k) * value) - 1 for value in law.values.tolist()]
            exact = complex(mpmath.fdot(law.weights.tolist(), turns))
        assert abs(found[position] - exact) <= UNIT * law.rounding * k + 1e-300

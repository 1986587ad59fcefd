"""What holds for every input of the engine: order, safe inverses, an answer or one clear error."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fl_shuffle.accounting.laws.frequency_oracles as oracles
from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_delta, lower_bound_epsilon
from fl_shuffle.accounting.bounds.blanket import blanket_delta, blanket_epsilon
from fl_shuffle.accounting.engine.fourier import TiltedLaw
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.laws.continuous import LaplaceLaw, LaplaceRandomizer
from fl_shuffle.accounting.laws.finite import KRandomizedResponse, MatrixRandomizer
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.accounting.round_off import UNIT
from fl_shuffle.errors import InvalidValueError

SLACK = 1.0 + 3e-4
"""Two certified values may differ by their own numerical error; a law may be violated by that."""

VANISHING = 2e-278
"""Deltas below e^-640 are all reported as that number."""

FAMILIES = {
    "krr": lambda e: KRandomizedResponse(e, 10),
    "blh": oracles.BinaryLocalHashing,
    "hadamard": oracles.HadamardResponse,
    "rappor": oracles.Rappor,
    "oue": oracles.OptimizedUnaryEncoding,
}
families = st.sampled_from(sorted(FAMILIES)).map(FAMILIES.__getitem__)
# Nearer to zero few reports may weigh nothing together: what is then certified is up to 1 % higher.
shares = st.floats(0.02, 0.9)
quick = settings(max_examples=25, deadline=None)


@quick
@given(families, st.floats(0.05, 5.0), st.integers(1, 100_000), shares, st.floats(0.0, 1.0),
       st.integers(0, 100_000))  # fmt: skip
def test_delta_falls_with_epsilon_and_with_reports_from_the_local_to_the_lower_bound(
    family, epsilon0: float, n: int, share: float, further: float, more: int
) -> None:
    randomizer = family(epsilon0)
    near, far = share * epsilon0, (share + (1.0 - share) * further) * epsilon0
    first = blanket_delta(randomizer, n, near)
    assert blanket_delta(randomizer, n, far).delta <= first.delta * SLACK + VANISHING
    assert blanket_delta(randomizer, n + more, near).delta <= first.delta * SLACK + VANISHING
    assert lower_bound_delta(randomizer, n, near).delta <= first.delta
    local = max(case.local_delta(near) for case in randomizer.cases())
    assert first.delta <= local * (1.0 + 1e-12)
    assert 0.0 <= first.numerical_error <= 3e-4 * first.delta + VANISHING


@quick
@given(families, st.floats(0.1, 4.0), st.integers(1, 50_000), st.floats(-12.0, -1.0))
def test_epsilon_is_safe_and_tight(family, epsilon0: float, n: int, log_delta: float) -> None:
    randomizer, delta = family(epsilon0), 10.0**log_delta
    answer = blanket_epsilon(randomizer, n, delta)
    assert blanket_delta(randomizer, n, answer.epsilon).delta <= delta
    assert lower_bound_epsilon(randomizer, n, delta).epsilon <= answer.epsilon
    if answer.epsilon > 0.0 and answer.epsilon < epsilon0 * (1.0 - 1e-9):
        assert blanket_delta(randomizer, n, answer.epsilon * (1.0 - 1e-3)).delta >= delta * 0.999


def test_disjoint_supports_and_empty_blankets_give_the_local_answer() -> None:
    silent = MatrixRandomizer([[1.0, 0.0], [0.0, 1.0]])
    assert blanket_delta(silent, 10**6, 3.0).delta == 1.0
    assert blanket_epsilon(silent, 10**6, 1e-6).epsilon == math.inf
    partly = MatrixRandomizer([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    assert blanket_delta(partly, 10**6, 1.0).delta >= 0.5
    assert lower_bound_delta(partly, 1000, 1.0).delta >= 0.49
    local = (math.exp(1.0) - math.exp(0.3)) / (math.exp(1.0) + 9.0)
    for classes in ([], [(0.0, 10**6)], [(0.7, 0)]):
        assert amplified_delta(law(0.3), classes).delta == pytest.approx(local, rel=1e-12)


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


KRR = KRandomizedResponse(1.0, 10)


def law(epsilon: float) -> AtomicLaw:
    found = KRR.pairs()[0].law(epsilon)
    assert isinstance(found, AtomicLaw)
    return found


@pytest.mark.parametrize("family", [*FAMILIES.values(), LaplaceRandomizer])
def test_a_local_budget_is_finite_and_that_of_nothing_reveals_nothing(
    family: Callable[[object], KRandomizedResponse],
) -> None:
    for wrong in (-1.0, math.nan, 800.0, "1"):
        with pytest.raises(InvalidValueError, match="epsilon0"):
            family(wrong)
    assert blanket_delta(family(0.0), 10, 0.0).delta == 0.0
    assert blanket_epsilon(family(0.0), 10, 1e-6).epsilon == 0.0
    assert lower_bound_delta(family(0.0), 10, 0.0).delta == 0.0


def test_what_cannot_be_had_is_within_what_is_said() -> None:
    found = amplified_delta(law(3e-6), [(0.7, 10**12)], relative_error=1e-9)
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


def drawn() -> list[tuple[object, ...]]:
    rng = random.Random(20)
    return [
        (
            *kind, rng.choice(("blanket", "clone", "lower")), 10.0 ** rng.uniform(-6.0, 1.3),
            round(10.0 ** rng.uniform(0.0, 8.0)), 10.0 ** rng.uniform(-30.0, -0.31), None,
        )
        for kind in (("krr", 1000), ("blh", None), ("rappor", 4), ("oue", None), ("laplace", None))
    ]  # fmt: skip


NAMES = ("randomizer", "k", "method", "epsilon0", "clients", "delta", "epsilon")


@pytest.mark.parametrize("call", [*REFUSED_ONCE, *drawn()], ids=str)
def test_extreme_calls_have_an_answer_and_no_warning(call: tuple[object, ...]) -> None:
    query = Question(**dict(zip(NAMES, call, strict=True)))  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = bound(query)
    assert query.epsilon0 is not None
    assert 0.0 <= answer.delta <= 1.0
    if query.delta is not None:
        assert 0.0 <= answer.epsilon <= query.epsilon0 * (1.0 + 1e-9)


# --- The transform of a tilted law: products of turns against 40-digit arithmetic ----------------


def exact_turns(law: TiltedLaw, k: float) -> complex:
    with mpmath.workdps(40):
        total = mpmath.mpc(0)
        for value, weight in zip(law.values.tolist(), law.weights.tolist(), strict=True):
            turn = mpmath.expj(mpmath.mpf(k) * mpmath.mpf(value)) - 1
            total += mpmath.mpf(weight) * turn
        return complex(total)


@pytest.mark.parametrize("step", [1e-7, 1e-3, 0.4])
def test_within_the_stated_round_off(step: float) -> None:
    rng = np.random.default_rng(3)
    values = np.sort(rng.normal(0.0, 1.0, 60) * np.exp(rng.normal(0.0, 2.0, 60)))
    law = TiltedLaw.of(AtomicLaw(values, np.full(60, 1.0 / 60.0)), 0.05)
    nodes = np.arange(32, 20_000, 64)
    found = law.characteristic(nodes, step)
    for position in rng.choice(nodes.size, 12, replace=False):
        k = float(nodes[position]) * step
        allowed = UNIT * law.rounding * k + 1e-300
        assert abs(found[position] - exact_turns(law, k)) <= allowed

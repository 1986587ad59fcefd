"""The table of all numbers of blanket reports: never below the truth, and as close as asked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fl_shuffle.accounting.bounds.few_blankets import blanket_values, positive_parts
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.laws.continuous import LaplaceLaw
from fl_shuffle.accounting.laws.gaussian import GaussianLaw
from fl_shuffle.accounting.rounds.round_library import RoundType
from fl_shuffle.errors import PrecisionError


def exact(values: np.ndarray, masses: np.ndarray, draws: int) -> float:
    """E(S)_+ / draws by enumeration of all sums."""
    sums, law = np.zeros(1), np.ones(1)
    for _ in range(draws):
        sums = np.add.outer(sums, values).ravel()
        law = np.multiply.outer(law, masses).ravel()
    return math.fsum((np.maximum(sums, 0.0) * law).tolist()) / draws


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-20, 20), st.floats(0.05, 1.0)),
        min_size=2,
        max_size=4,
        unique_by=lambda atom: atom[0],
    ),
    st.floats(0.0, 0.5),
)
def test_finite_laws_against_enumeration(atoms: list[tuple[float, float]], shift: float) -> None:
    """Laws of mean at most 0, rounded to the lattice: above the truth, and not far above it."""
    masses = np.array([mass for _, mass in atoms])
    masses /= masses.sum()
    values = np.array([value / 10.0 for value, _ in atoms])
    values = values - float(values @ masses) - shift
    law = AtomicLaw.of(values, masses)
    try:
        found = positive_parts(law, 5, 1e-4)
    except PrecisionError:
        assume(False)  # the engine answers such laws
    assert np.all(np.diff(found) <= 0.0)
    for m in range(6):
        truth = exact(values, masses, m + 1)
        assert truth * (1.0 - 1e-12) <= found[m]
        # Convex rounding smears kinks; averages over all smaller m are what the table may show.
        assert found[m] <= 1.05 * truth + 0.02 * float(np.abs(values).max())


@pytest.mark.parametrize(("own", "epsilon"), [(0.1, 0.0), (0.1, 0.15), (0.25, 0.4), (0.5, 0.75)])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_noise_laws_against_the_engine(noise: str, own: float, epsilon: float) -> None:
    """About as close as asked (Laplace has atoms), down to 1e-11; the engine is exact to 1e-5."""
    law = LaplaceLaw(own, epsilon) if noise == "laplace" else GaussianLaw(own, epsilon, tail=1e-18)
    if noise == "laplace" and epsilon >= 2.0 * own:
        pytest.skip("a Laplace report alone is that private")
    table = blanket_values(noise, own, epsilon, 1e-18, 48, 1e-3)
    for m in (0, 1, 5, 20, 48):
        truth = amplified_delta(law, [(1.0, m)], relative_error=1e-5)
        if truth.delta > 1e-11:
            assert (
                truth.lower * (1.0 - 1e-9)
                <= table[m]
                <= truth.delta * (1.0015 if noise == "gaussian" else 1.006)
            )
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 0.0


def test_curves_with_and_without_the_table_agree() -> None:
    """Unequal balls, few reports: within 0.3% (Gaussian: each bound chooses its own depth)."""
    for noise, scale in (("gaussian", 8.0), ("laplace", 4.0)):
        kind = RoundType(noise, scale, 1.0, 2.0, ((0.3, 9), (0.6, 11), (1.0, 10)))
        table, engine = kind.curve(1e-3), kind.curve(1e-5)
        assert isinstance(table, VectorCurve) and isinstance(engine, VectorCurve)
        assert table._table and not engine._table
        table._sharper = engine._sharper = None  # the other bound has no table
        for epsilon in (0.0, 0.05, 0.1, 0.2):
            ratio = table.delta(epsilon) / engine.delta(epsilon)
            assert 1.0 - (2e-5 if noise == "laplace" else 1e-3) <= ratio <= 1.004


def test_values_may_be_asked_in_any_order() -> None:
    """One-round pairs are functions of the type alone."""
    from fl_shuffle.accounting.rounds.round_library import RoundLibrary

    kind = RoundType("gaussian", 8.0, 1.0, 2.0, ((1.0, 30),))
    first, second = RoundLibrary(), RoundLibrary()
    second.curve(kind).epsilon(1e-7)
    second.profile({kind: 1}, [0.3, 0.1])
    assert first.epsilon({kind: 9}, 1e-5) == second.epsilon({kind: 9}, 1e-5)

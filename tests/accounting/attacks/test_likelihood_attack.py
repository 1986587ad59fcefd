"""The attack over all rounds: its error rates are those of a simulation, and never beat a proof."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_shuffle.accounting.attacks.chosen_vector_datasets import scenes, vector_lower_epsilon
from fl_shuffle.accounting.attacks.likelihood_ratio import Scores, attack_epsilon
from fl_shuffle.accounting.bounds.vector import ReportClass
from fl_shuffle.accounting.rounds.round_library import RoundLibrary, RoundType
from fl_shuffle.errors import InvalidValueError

LIBRARY = RoundLibrary()


def equal(noise: str, ratio: float, clients: int, step: float = 2.0) -> RoundType:
    """Clients in unit balls whose means move by `step`, `ratio` noise widths."""
    return RoundType.of([ReportClass(noise, step / ratio, 1.0, step, clients)], 0)


@pytest.mark.parametrize(("noise", "ratio"), [("gaussian", 0.4), ("laplace", 1.0)])
@pytest.mark.parametrize(("clients", "rounds"), [(1, 1), (20, 3), (50, 10)])
def test_probabilities_are_those_of_a_simulation(
    noise: str, ratio: float, clients: int, rounds: int
) -> None:
    """400,000 sums, a false alarm once in about 10^5 runs; a shift of 0.5% would be seen."""
    kind = equal(noise, ratio, clients)
    scores = Scores(kind, max(scenes(kind), key=lambda scene: scene[1] - scene[0]))
    rng = np.random.default_rng(5)
    size = 400_000
    means, variances = scores._moments(rounds)
    sd = math.sqrt(max(variances))
    noise_sd = 0.05 * sd
    period = 2.0 * (means[1] - means[0]) + 30.0 * sd
    shift = 0.5 * (means[0] + means[1])
    thresholds = sd * np.array([-1.0, 0.0, 0.5, 1.5])
    transforms = scores._transform(noise_sd, period)
    for index, own in enumerate(scores._means):
        total = rng.normal(0.0, noise_sd, size)
        for law, count in ((scores._base, (clients - 1) * rounds), (own, rounds)):
            # A sum of `count` scores: multinomial counts of the cells, in pieces that fit memory.
            for part in np.array_split(np.arange(size), 20):
                drawn = rng.multinomial(count, law.probabilities, len(part))
                total[part] += drawn @ law.values
        wrapped = (total[:, None] - shift - thresholds) % period
        seen = np.mean(wrapped < 0.5 * period, axis=0)
        computed, error = transforms.above(thresholds, shift, (clients - 1) * rounds, rounds, index)
        assert error < 1e-9
        tolerance = 4.9 * np.sqrt(computed * (1.0 - computed) / size) + 1e-6
        assert np.all(np.abs(seen - computed) <= tolerance)


@settings(max_examples=40, deadline=None)
@given(
    noise=st.sampled_from(["gaussian", "laplace"]),
    ratio=st.floats(0.01, 3.0),
    clients=st.sampled_from([1, 2, 5, 100, 10_000]),
    rounds=st.sampled_from([1, 2, 30]),
    step=st.floats(0.05, 2.0),
    delta=st.sampled_from([1e-3, 1e-6]),
)
def test_never_above_the_proven_bound(
    noise: str, ratio: float, clients: int, rounds: int, step: float, delta: float
) -> None:
    kind = equal(noise, ratio * step / 2.0, clients, step)
    proven = LIBRARY.epsilon({kind: rounds}, delta)
    assert 0.0 <= attack_epsilon(kind, rounds, delta) <= proven * (1.0 + 1e-9)


@pytest.mark.parametrize("rounds", [1, 50])
def test_alone_it_is_nearly_the_exact_local_guarantee(rounds: int) -> None:
    kind = equal("gaussian", 0.2, 1)
    exact = LIBRARY.local_epsilon({kind: rounds}, 1e-6)
    assert exact * 0.997 <= attack_epsilon(kind, rounds, 1e-6) <= exact


@pytest.mark.parametrize("clients", [30, 10_000])
def test_one_round_is_nearly_the_exact_divergence_of_its_data_set(clients: int) -> None:
    classes = [ReportClass("gaussian", 2.0 / 0.2, 1.0, 2.0, clients)]
    engine = vector_lower_epsilon(classes, 0, 1e-6).epsilon
    assert attack_epsilon(RoundType.of(classes, 0), 1, 1e-6) == pytest.approx(engine, rel=4e-3)


@pytest.mark.parametrize("rounds", [1, 50])
@pytest.mark.parametrize("epsilon0", [0.5, 1.0])
@pytest.mark.parametrize("clients", [1_000, 10_000])
def test_the_proven_bound_is_within_one_and_a_half(
    rounds: int, epsilon0: float, clients: int
) -> None:
    sigma = 2.0 * math.sqrt(2.0 * math.log(1.25e5)) / epsilon0
    kind = RoundType.of([ReportClass("gaussian", sigma, 1.0, 2.0, clients)], 0)
    ratio = LIBRARY.epsilon({kind: rounds}, 1e-6) / attack_epsilon(kind, rounds, 1e-6)
    assert 1.0 <= ratio <= 1.5


def test_more_others_and_fewer_rounds_reveal_less() -> None:
    found = [attack_epsilon(equal("gaussian", 0.3, n), 10, 1e-5) for n in (2, 10, 100, 1000)]
    assert found == sorted(found, reverse=True)
    grown = [attack_epsilon(equal("gaussian", 0.3, 100), t, 1e-5) for t in (1, 2, 10, 100)]
    assert grown == sorted(grown)


def test_nothing_is_claimed_where_nothing_is_certain() -> None:
    assert attack_epsilon(equal("gaussian", 1e-9, 1000), 1, 1e-3) == 0.0
    fixed = RoundType.of([ReportClass("gaussian", 1.0, 0.0, 0.0, 10)], 0)
    assert attack_epsilon(fixed, 5, 1e-6) == 0.0
    far = RoundType.of([ReportClass("gaussian", 1.0, 30.0, 60.0, 10)], 0)
    assert attack_epsilon(far, 1, 1e-6) == 0.0


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan, math.inf])
def test_bad_delta_is_refused(delta: float) -> None:
    with pytest.raises(InvalidValueError, match="delta"):
        attack_epsilon(equal("gaussian", 0.3, 10), 1, delta)

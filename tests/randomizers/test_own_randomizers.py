"""Local randomizers of a user's own: classes, and functions of one mean."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
import torch
from scipy import stats

from fl_shuffle.errors import ConfigError
from fl_shuffle.randomizers import DiscreteLaplace, base
from fl_shuffle.randomizers.base import LocalRandomizer, Noise, OfOneMean, load_randomizer
from fl_shuffle.randomizers.noise import NoiseStream

KEY = bytes(range(32))
HERE = __name__
EPSILON, RADIUS = np.array([1.0, 4.0, 1.0, 9.0]), np.array([0.5, 1.5, 0.5, 2.0])
DELTA = np.zeros(4)


class Signs(LocalRandomizer):
    """Randomized response on the sign of every coordinate."""

    norm = 1

    def bound(self) -> np.ndarray:
        return self.radius

    def randomize(self, means: np.ndarray, clients: np.ndarray, noise: Noise) -> np.ndarray:
        each = self.epsilon[clients, None] / means.shape[1]
        kept = noise.uniform(means.shape[1]) < 1.0 / (1.0 + np.exp(-each))
        return self.radius[clients, None] * np.where((means >= 0.0) == kept, 1.0, -1.0)


def fussy(mean: np.ndarray, *_: object) -> np.ndarray:
    if (mean > 7.0).any():
        raise ValueError("a mean's secret")
    return mean


def laplace(mean: np.ndarray, epsilon0: float, delta0: float, rng: np.random.Generator) -> object:
    assert delta0 == 0.0
    return mean + rng.laplace(scale=2.0 / epsilon0, size=mean.size)


def of(kind: type[LocalRandomizer]) -> LocalRandomizer:
    return kind(EPSILON, DELTA, RADIUS)


def reports_of(
    randomizer: LocalRandomizer, means: np.ndarray, clients: np.ndarray, noise: NoiseStream
) -> np.ndarray:
    """What leaves the clients, float64 [k, d]."""
    rows = torch.from_numpy(means.copy())
    return np.asarray(randomizer.reports(rows, clients, noise).double().numpy())


def stream(dimension: int) -> NoiseStream:
    return NoiseStream(KEY, dimension)


def test_the_example_of_the_class_runs() -> None:
    found = doctest.testmod(base, extraglobs={"np": np, "LocalRandomizer": LocalRandomizer})
    assert found.attempted > 0 and found.failed == 0


@pytest.mark.parametrize(
    "randomizer",
    [
        of(Signs),
        OfOneMean(laplace, EPSILON, DELTA, RADIUS),
        DiscreteLaplace(
            EPSILON, DELTA, RADIUS, 0.25 * np.arange(1, 5), step=2.0 ** -np.arange(2, 6)
        ),
    ],
    ids=lambda randomizer: type(randomizer).__name__,
)
def test_a_report_hangs_on_its_own_client_alone(randomizer: LocalRandomizer) -> None:
    means = np.random.default_rng(1).normal(size=(4, 40)).astype(np.float32)
    given, clients = means.copy(), np.arange(4)
    together = reports_of(randomizer, means, clients, stream(40))
    assert np.array_equal(means, given)
    some = np.array([3, 0])
    assert np.array_equal(reports_of(randomizer, means[some], some, stream(40)), together[some])
    step = randomizer.grid()[:, None]
    assert not np.mod(together, step).any()
    assert (np.abs(together) <= np.asarray(randomizer.bound())[:, None]).all()
    # What a canary game takes: some of the clients under numbers of their own.
    part = randomizer.restricted(np.array([1, 3, 3]))
    assert part.radius.tolist() == [1.5, 2.0, 2.0]
    assert np.array_equal(part.bound(), np.asarray(randomizer.bound())[[1, 3, 3]])


def test_a_report_is_cut_to_its_bound() -> None:
    randomizer = OfOneMean(lambda mean, *_: mean * 1e9, EPSILON, DELTA, RADIUS)
    reports = reports_of(randomizer, np.ones((4, 3), np.float32), np.arange(4), stream(3))
    assert (reports == 2000.0).all()


@pytest.mark.parametrize("bits", [32, 64])
def test_noise_has_its_laws_and_is_each_clients_own(bits: int) -> None:
    own, clients = NoiseStream(KEY, 10_000, bits=bits), np.arange(4)
    noise = Noise(own, clients)
    for law, drawn in (
        (stats.norm, noise.normal()),
        (stats.laplace, noise.laplace()),
        (stats.uniform, noise.uniform(10_000)),
    ):
        assert all(stats.kstest(row, law.cdf).pvalue > 1e-6 for row in drawn)
        assert np.abs(np.corrcoef(drawn) - np.eye(4)).max() < 0.06
    uniform = own.uniform(np.array([5, 2]), 3000)
    assert np.array_equal(uniform[1], own.uniform([2], 3000)[0])
    assert uniform.min() > 0.0 and uniform.max() < 1.0


def test_who_raises_sends_nothing_and_others_do(caplog: pytest.LogCaptureFixture) -> None:
    means = np.ones((4, 6), np.float32)
    means[2, 3] = 8.0
    randomizer = OfOneMean(fussy, EPSILON, DELTA, RADIUS)
    reports = reports_of(randomizer, means, np.arange(4), stream(6))
    assert np.isnan(reports[2]).all() and (reports[[0, 1, 3]] == 1.0).all()
    assert [record.name for record in caplog.records] == ["fl_shuffle.client"]


@pytest.mark.parametrize("output", [np.full(4, np.inf), np.zeros(3), np.zeros((4, 1)), 0.0, "x"])
def test_what_is_no_report_is_not_sent(output: object) -> None:
    randomizer = OfOneMean(lambda *_: output, EPSILON, DELTA, RADIUS)
    reports = reports_of(randomizer, np.zeros((2, 4), np.float32), np.arange(2), stream(4))
    assert np.isnan(reports).all()


@pytest.mark.parametrize("bound", [0.0, math.nan, math.inf, 1e13, [1.0, 1.0, 1.0]])
def test_a_bound_that_is_none_is_one_line(bound: object) -> None:
    class Bad(Signs):
        def bound(self) -> np.ndarray:
            return np.array(bound) if isinstance(bound, list) else np.full(4, bound)

    with pytest.raises(ConfigError, match=r"Bad.bound\(\) must return.*each of the 4 clients"):
        of(Bad).grid()


def test_what_a_setting_may_name() -> None:
    assert load_randomizer(f"{HERE}:Signs") == (Signs, 1)
    made, norm = load_randomizer(f"{HERE}:laplace")
    assert isinstance(made(EPSILON, DELTA, RADIUS), OfOneMean) and norm == 2
    with pytest.raises(ConfigError, match="must be a function of"):
        load_randomizer(f"{HERE}:KEY")

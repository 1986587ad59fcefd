"""The headline is over every client; a lower bound is claimed only where its attack is certain."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

import fl_shuffle.accounting.accountant as module
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.attacks.certain_loss import recognition_epsilon
from fl_shuffle.accounting.attacks.likelihood_ratio import attack_epsilon
from fl_shuffle.accounting.reports import ReportClass, RoundType
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.accounting.rounds.local_guarantees import worst_local_epsilons


def make(classes: list[ClientClass], class_of: np.ndarray) -> Accountant:
    return Accountant(classes, class_of, unit="client", schedule="aggregate", delta=1e-5)


def some_class(rng: np.random.Generator, noise: str, scale: float) -> ClientClass:
    radius = float(rng.uniform(0.05, 0.3))
    return ClientClass(noise, scale, radius, 2 * radius, float(rng.uniform(0.01, 2)), 0.0, 1)


@pytest.mark.parametrize("seed", [*(pytest.param(s, marks=pytest.mark.slow) for s in (0, 1)), 2])
def test_the_headline_covers_clients_that_are_not_listed(
    seed: int, coarse_pairs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LISTED_CLASSES", 2)
    rng = np.random.default_rng(seed)
    scales = [1.0, 1.3, 0.2 if seed % 2 else 1.0]
    noises = [["gaussian"], ["laplace"], ["gaussian", "laplace", "user"]][seed % 3]
    classes = [some_class(rng, str(rng.choice(noises)), float(rng.choice(scales)))
               for _ in range(4)]  # fmt: skip
    class_of = rng.integers(0, len(classes), 60)
    accountant = make(classes, class_of)
    for number in range(1, 3):
        present = rng.random(len(class_of)) < 0.8
        spend = accountant.preview(number, present)
        each = accountant.client_epsilons_after(number, present)
        assert len(spend.columns["proven"].epsilon) == 2
        assert each.max() * (1 - 1e-9) <= spend.headline <= each.max() * 1.02
        accountant.commit(number, present)
        local = accountant.client_totals().local
        assert spend.columns["local"].worst == pytest.approx(local.max(), rel=1e-9)


def test_the_attack_column_is_what_the_attack_reaches_and_no_more() -> None:
    own = ClientClass("gaussian", 1.0, 0.5, 1.0, 1.0, 1e-5, 1)
    accountant = make([own], np.zeros(50, dtype=np.int64))
    everybody = np.ones(50, dtype=bool)
    kind = RoundType.of([ReportClass("gaussian", 1.0, 0.5, 1.0, 50)], 0)
    for number in (1, 2):
        reached = attack_epsilon(kind, number, 1e-5)
        accountant.commit(number, everybody)
        found = accountant.lower_columns()["lower"].worst
        assert found == pytest.approx(reached, rel=1e-6) and found > 0.0


def test_worst_local_epsilons_of_groups() -> None:
    rng = np.random.default_rng(3)
    classes = [some_class(rng, noise, 1.0) for noise in ("gaussian", "laplace", "user") * 5]
    class_of, taken = rng.integers(0, 15, 200), rng.integers(0, 6, 200)
    groups = rng.integers(0, 4, 200)
    found = worst_local_epsilons(classes, class_of, taken, groups, 5, 1e-5)
    accountant = make(classes, class_of)
    accountant._taken = taken
    local = accountant.client_totals()[2]
    expected = [local[groups == group].max(initial=0.0) for group in range(5)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


TARGET = ClientClass("gaussian", 1.0, 6.0, 0.3, 1.0, 1e-5, 1)


def recognised_epsilon(
    classes: list[ClientClass], counts: np.ndarray, *which: int, delta: float = 1e-2, **of: int
) -> float | None:
    return recognition_epsilon(ClassTable.of(classes), counts, *which, delta, **of) or None


def test_recognition_is_not_claimed_among_smaller_balls_or_larger_noise() -> None:
    counts = np.array([1, 1000])
    alike = [TARGET, ClientClass("gaussian", 1.0, 6.0, 0.3, 1.0, 1e-5, 2)]
    assert recognised_epsilon(alike, counts, 0, 1) is not None
    small = [TARGET, ClientClass("gaussian", 1.0, 1e-3, 1e-3, 1.0, 1e-5, 2)]
    assert recognised_epsilon(small, counts, 0, 1) is None
    noisy = [TARGET, ClientClass("gaussian", 30.0, 6.0, 0.3, 1.0, 1e-5, 2)]
    assert recognised_epsilon(noisy, counts, 0, 1) is None
    # One coordinate says nothing about the scale; many do.
    assert recognised_epsilon(noisy, counts, 0, 1, dimension=2) is None
    assert recognised_epsilon(noisy, counts, 0, 1, dimension=600) is not None
    laplace = [TARGET, ClientClass("laplace", 1.0, 6.0, 0.3, 1.0, 1e-5, 2)]
    assert recognised_epsilon(laplace, counts, 0, 1) is None


@pytest.mark.parametrize(("scale", "others"), [(1.0, 1000), (30.0, 1000)])
def test_where_recognition_is_claimed_the_attacker_picks_the_right_report(
    scale: float, others: int
) -> None:
    """The claim is an error below 1e-7 a round: none may be seen in 2,000."""
    dimension, rounds = 600, 2000
    classes = [TARGET, ClientClass("gaussian", scale, 6.0, 0.3, 1.0, 1e-5, 2)]
    assert recognised_epsilon(classes, np.array([1, others]), 0, 1, dimension=dimension) is not None
    rng = np.random.default_rng(5)
    tau = chi2.isf(1e-12, dimension - 1)
    along = 6.0 - 0.3 + rng.standard_normal(rounds)
    orthogonal = rng.chisquare(dimension - 1, rounds)
    assert np.all(orthogonal <= tau)
    for index in range(rounds):
        rival = -6.0 + scale * rng.standard_normal(others)
        short = scale**2 * rng.chisquare(dimension - 1, others) <= tau
        assert not np.any(short & (rival >= along[index]))

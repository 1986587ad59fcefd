"""Several runs on the same clients: composed as independent computations compose them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fl_shuffle.accounting import Accountant, ClientClass
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.numerics.dp_accounting_export import to_dp_accounting
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.accounting.rounds.threat_model import EVERYBODY_HONEST, ThreatModel
from fl_shuffle.accounting.several_runs import TogetherSpend, compose_runs
from fl_shuffle.accounting.unprotected import Unprotected

DELTA = 1e-5
SUMS = ThreatModel(release="sum")
LIBRARY = RoundLibrary()


def run(
    *classes: ClientClass, rounds: int = 1, clients: int = 60, absent: Sequence[int] = (),
    trust: ThreatModel = EVERYBODY_HONEST, delta: float = DELTA, **made: Any,
) -> Accountant:  # fmt: skip
    """A run of `clients`, dealt over the classes; the absent ones send nothing."""
    kind = made.pop("kind", Accountant)
    accountant: Accountant = kind(
        classes, np.arange(clients) % len(classes), unit="client", schedule="aggregate",
        delta=delta, library=LIBRARY, dimension=10, threat_model=trust,
    )  # fmt: skip
    present = ~np.isin(np.arange(clients), absent)
    for number in range(1, rounds + 1):
        accountant.commit(accountant.preview(number, present))
    return accountant


def together(*runs: Accountant, delta: float = DELTA) -> TogetherSpend:
    everybody = np.arange(len(runs[0].client_totals().rounds))
    return compose_runs(runs, [everybody] * len(runs), delta, LIBRARY)


def gaussian(scale: float = 4.0, radius: float = 1.0) -> ClientClass:
    return ClientClass("gaussian", scale, radius, 2.0 * radius, epsilon0=1.0, delta0=1e-6)


def laplace(scale: float = 2.0) -> ClientClass:
    return ClientClass("laplace", scale, 1.0, 2.0, epsilon0=2.0 / scale)


def exact_gaussian(mu: float, delta: float) -> float:
    """Balle and Wang's profile, inverted by other means."""

    def over(epsilon: float) -> float:
        first = norm.sf(epsilon / mu - mu / 2.0)
        return float(first - math.exp(epsilon) * norm.sf(epsilon / mu + mu / 2.0)) - delta

    return float(brentq(over, 0.0, 200.0, xtol=1e-13))


@pytest.mark.parametrize(
    "number", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_gaussian_sums_are_the_closed_form(number: int) -> None:
    """Other noise, clip and number of rounds in every run; also where others are absent."""
    scales, radii = [4.0, 3.0, 6.0, 5.0, 2.5][:number], [1.0, 0.5, 2.0, 1.0, 0.3][:number]
    runs = [
        run(gaussian(s, r), rounds=k + 1, absent=range(50, 50 + k), trust=SUMS)
        for k, (s, r) in enumerate(zip(scales, radii, strict=True))
    ]
    found = together(*runs)
    mu_squared = sum(
        (k + 1) * (2.0 * r / s) ** 2 / (60 - k)
        for k, (s, r) in enumerate(zip(scales, radii, strict=True))
    )
    exact = exact_gaussian(math.sqrt(mu_squared), DELTA)
    ours = found.epsilon["sum"][0]
    assert exact <= ours <= exact * (1.0 + 1e-3)
    assert found.headline == "sum" and np.array_equal(
        found.epsilon["headline"], found.epsilon["sum"]
    )
    local = math.sqrt(
        sum(
            (k + 1) * (2.0 * r / s) ** 2 for k, (s, r) in enumerate(zip(scales, radii, strict=True))
        )
    )
    exact = exact_gaussian(local, DELTA)
    assert exact <= found.epsilon["local"][0] <= exact * (1.0 + 1e-3)
    # Client 50 is absent from all runs but the first.
    assert found.epsilon["sum"][50] < ours
    assert sum(each.client_totals().sum[0] for each in runs) > ours


@cache
def mechanism(noise: str, scale: float, *, pessimistic: bool) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld

    made = pld.from_laplace_mechanism if noise == "laplace" else pld.from_gaussian_mechanism
    return made(scale, sensitivity=2.0, pessimistic_estimate=pessimistic,
                value_discretization_interval=2e-4)  # fmt: skip


@pytest.mark.parametrize(
    "kinds",
    [
        [("laplace", 2.0, 3), ("laplace", 3.0, 2)],
        [("laplace", 4.0, 3), ("gaussian", 4.0, 2)],
        pytest.param(
            [("laplace", 4.0, 1), ("gaussian", 4.0, 2), ("laplace", 3.0, 4), ("gaussian", 6.0, 1),
             ("laplace", 8.0, 5)], marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_own_noise_is_composed_as_by_dp_accounting(kinds: list[tuple[str, float, int]]) -> None:
    made = {"laplace": laplace, "gaussian": gaussian}
    runs = [run(made[noise](scale), rounds=times) for noise, scale, times in kinds]
    bounds = []
    for pessimistic in (False, True):
        product = None
        for noise, scale, times in kinds:
            factor = mechanism(noise, scale, pessimistic=pessimistic).self_compose(times)
            product = factor if product is None else product.compose(factor)
        assert product is not None
        bounds.append(product.get_epsilon_for_delta(DELTA))
    ours = together(*runs).epsilon["local"][0]
    assert bounds[0] <= ours <= bounds[1] * (1.0 + 1e-3)


def exact_product(pairs: Sequence[Any], delta: float) -> float:
    """Epsilon of a product of pairs on few losses: every sum of losses, one by one."""
    losses, masses, finite = np.zeros(1), np.ones(1), 1.0
    for pair in pairs:
        losses = (losses[:, None] + pair.losses).ravel()
        masses = (masses[:, None] * pair.masses).ravel()
        finite *= 1.0 - pair.infinite

    def over(epsilon: float) -> float:
        above = losses > epsilon
        gain = masses[above] @ -np.expm1(epsilon - losses[above])
        return float(gain) + 1.0 - finite - delta

    return float(brentq(over, 0.0, 50.0, xtol=1e-13))


def test_shuffled_rounds_are_the_exact_product_of_their_pairs() -> None:
    runs = run(gaussian(4.0)), run(gaussian(5.0, 0.8), absent=range(20))
    ours = together(*runs).epsilon["shuffled"]
    histories = [each.releases.histories for each in runs]
    spent = [each.distinct[each.group_of[30]] for each in histories]
    pairs = [LIBRARY.pair(kind) for each in spent for kind in each]
    assert len(pairs) == 2
    exact = exact_product(pairs, DELTA)
    assert exact <= ours[30] <= exact * (1.0 + 1e-3)
    # A client of one round has the curve of that round.
    assert ours[0] == runs[0].client_totals().shuffled[0] < ours[30]
    product = to_dp_accounting(pairs[0]).compose(to_dp_accounting(pairs[1]))
    assert ours[30] == pytest.approx(product.get_epsilon_for_delta(DELTA), rel=1e-3)


def test_what_each_run_released_is_composed() -> None:
    """One run releases sums, the other one reports: neither column is the attacker's."""
    sums, reports = run(gaussian(3.0), rounds=4, trust=SUMS), run(gaussian(4.0), rounds=1)
    found = together(sums, reports)
    assert found.headline == "released"
    (kind,) = reports.releases.histories.distinct[0]
    mu = math.sqrt(sums.releases.sums.mu_squared[0])
    pair = LIBRARY.pair(kind)
    assert pair is not None

    def over(epsilon: float) -> float:
        # Gaussian hockey-stick divergences at what is left of epsilon beside each loss.
        left = epsilon - pair.losses
        gain = norm.sf(left / mu - mu / 2.0) - np.exp(left) * norm.sf(left / mu + mu / 2.0)
        return float(pair.masses @ gain) + pair.infinite - DELTA

    exact, ours = float(brentq(over, 0.0, 50.0, xtol=1e-13)), found.epsilon["headline"][0]
    assert exact <= ours <= exact * (1.0 + 1e-3)
    assert found.epsilon["sum"][0] < ours < found.epsilon["shuffled"][0]


@pytest.mark.parametrize(
    ("classes", "trust"),
    [
        ((gaussian(),), EVERYBODY_HONEST),
        pytest.param((gaussian(4.0), gaussian(5.0, 0.8)), SUMS, marks=pytest.mark.slow),
        pytest.param((laplace(), laplace(3.0)), SUMS, marks=pytest.mark.slow),
        ((laplace(),), EVERYBODY_HONEST),
        ((ClientClass("user", 0.0, 1.0, 2.0, epsilon0=0.5, delta0=0.0),), EVERYBODY_HONEST),
        ((ClientClass("declared", 4.0, 1.0, 2.0, epsilon0=0.5, delta0=1e-6),), EVERYBODY_HONEST),
    ],
    ids=["gaussian", "gaussian sums", "laplace sums", "laplace", "user", "declared"],
)
def test_a_run_cut_in_three_costs_what_the_whole_does(
    classes: tuple[ClientClass, ...], trust: ThreatModel
) -> None:
    parts = [run(*classes, rounds=k, absent=[7], trust=trust) for k in (1, 2, 3)]
    whole = run(*classes, rounds=6, absent=[7], trust=trust)
    totals, found = whole.client_totals(), together(*parts)
    for name in ("shuffled", "sum", "local", "headline"):
        np.testing.assert_allclose(found.epsilon[name], getattr(totals, name), rtol=1e-6)
        assert bool(found.reasons.get(name)) == bool(np.isnan(getattr(totals, name)).any())
    spend = whole.preview(7, np.zeros(60, bool)).spend if trust is SUMS else None
    if spend is not None:
        mu = math.sqrt(whole.releases.mu_squared)
        assert found.epsilon["gspa"][0] == pytest.approx(gaussian_epsilon(DELTA, mu), rel=1e-9)
    assert {name: values[7] for name, values in found.epsilon.items() if values[7] > 0.0} == {}


def test_without_noise_only_those_who_reported_are_unprotected() -> None:
    bare = ClientClass("none", 0.0, 1.0, 2.0, epsilon0=math.inf)
    found = together(run(gaussian(), rounds=2), run(bare, absent=[3], kind=Unprotected))
    assert found.epsilon["headline"][0] == math.inf and found.headline == "released"
    alone = run(gaussian(), rounds=2).client_totals().headline[3]
    assert found.epsilon["headline"][3] == pytest.approx(alone, rel=1e-9)
    assert np.isnan(found.epsilon["local"]).all() and "no noise" in found.reasons["local"]


def test_clients_of_other_numbers_are_matched() -> None:
    """Client i of the first run is client places[i] of the second."""
    first, second = run(gaussian(), absent=[0]), run(gaussian(), absent=[59])
    turned = np.arange(60)[::-1].copy()
    found = compose_runs([first, second], [np.arange(60), turned], DELTA, LIBRARY)
    assert found.epsilon["local"][0] == 0.0 and found.epsilon["local"][59] > 0.0
    straight = together(first, second).epsilon["local"]
    assert 0.0 < straight[0] < straight[1] and straight[59] == straight[0]


def test_the_smaller_delta_costs_more_and_laplace_sums_give_up_some() -> None:
    runs = run(laplace(), trust=SUMS), run(laplace(3.0), trust=SUMS)
    assert (together(*runs, delta=1e-8).epsilon["sum"] > together(*runs).epsilon["sum"]).all()
    # Less than what two sums give up: only the client's own noise is left.
    tiny = together(*runs, delta=1e-12).epsilon
    assert np.array_equal(tiny["sum"], np.minimum(tiny["local"], tiny["shuffled"]))


def test_reports_without_a_pair_add_up() -> None:
    """The losses of one run are too large for a pair: the runs' epsilons are added."""
    far, near = laplace(0.1), laplace(2.0)
    ours = together(run(far), run(near)).epsilon["local"][0]
    assert ours >= 20.0  # what the first run alone may lose, for all but a share of delta
    assert 20.0 < ours <= 21.0 + 1e-6

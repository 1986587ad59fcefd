"""Random federations and histories (absent clients, colluders, unusable reports, several reports a
round, two kinds of clients): what is counted for each client is a formula over who was there, in
whatever order the rounds came."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from pytest import approx

from fl_shuffle.accounting import accountant as accountant_module
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.client_classes import ClientClass
from fl_shuffle.accounting.columns import ClientTotals
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.lower_bounds.sum_attack import sum_lower_column
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.accounting.rounds.threat_model import ThreatModel

DELTA = 1e-5
pytestmark = pytest.mark.usefixtures("halving_shuffles")


@dataclass
class Case:
    """A federation and what happened in it: (who was there [n], unusable reports) a round."""

    classes: list[ClientClass]
    class_of: np.ndarray
    trust: ThreatModel
    rounds: list[tuple[np.ndarray, int]]

    @classmethod
    def drawn(cls, seed: int) -> Case:
        rng = np.random.default_rng(seed)
        count = int(rng.integers(2, 5))
        honest = [None, 0.7, 16][seed % 3]
        # A shuffled client hides among reports of its own noise, which may all be a colluder's.
        scales, classes = rng.uniform(0.8, 2.0, 2 if honest is None else 1), []
        for index in range(count):
            radius, scale = rng.uniform(0.1, 0.4), float(scales[index % len(scales)])
            budget = float(rng.uniform(0.3, 2.0))
            classes.append(ClientClass("gaussian", scale, radius, 2 * radius, budget, 1e-6, 1))
        clients = int(rng.integers(24, 32))
        class_of = rng.permutation(np.arange(clients) % count)
        times = 1 + seed % 2
        trust = replace(
            ThreatModel(), release=["reports", "sum"][seed // 2 % 2], reports_per_round=times,
            assumed_honest=honest,
        )  # fmt: skip
        never = class_of == 0 if seed % 5 == 0 else np.zeros(clients, dtype=bool)
        rounds = []
        for number in range(4):
            present = (rng.random(clients) < 0.8) & ~never
            rounds.append((present, int(rng.integers(0, 3)) if number % 2 else 0))
        return cls(classes, class_of, trust, rounds)

    def accountant(self) -> Accountant:
        return Accountant(
            self.classes, self.class_of, unit="client", schedule="aggregate", delta=DELTA,
            threat_model=self.trust,
        )  # fmt: skip

    def of_class(self, name: str) -> np.ndarray:
        return np.array([getattr(each, name) for each in self.classes])[self.class_of]

    def honest(self, arrived: int, unusable: int) -> int:
        assumed = self.trust.assumed_honest
        if isinstance(assumed, float):
            arrived = math.floor(assumed * arrived)
        elif assumed is not None:
            arrived = min(arrived, assumed)
        return max(1, arrived - unusable)

    def after(self, count: int) -> dict[str, np.ndarray]:
        """Each client's reports and epsilons after this number of rounds [n]."""
        scale, move = self.of_class("scale"), 2.0 * self.of_class("radius")
        squared, taken = np.zeros(len(scale)), np.zeros(len(scale), dtype=int)
        times = self.trust.reports_per_round
        for present, unusable in self.rounds[:count]:
            others = self.honest(int(present.sum()), unusable) - 1
            for client in np.flatnonzero(present):
                beside = present.copy()
                beside[client] = False
                least = np.sort(scale[beside] ** 2)[:others]
                squared[client] += times * move[client] ** 2 / (scale[client] ** 2 + least.sum())
                taken[client] += times
        local = move / scale * np.sqrt(taken)
        found = {"local": local, "sum": np.sqrt(squared), "shuffled": 0.5 * local}
        return {"reports": taken} | {
            name: np.array([gaussian_epsilon(DELTA, mu) if mu else 0.0 for mu in values])
            for name, values in found.items()
        }

    def gspa(self, count: int) -> float:
        shares = (1.0 - 1e-6) / (1.0 + np.exp(self.of_class("epsilon0")))
        times, squared = self.trust.reports_per_round, 0.0
        for present, _ in self.rounds[:count]:
            squared += 2.0 * times / (shares[present].sum() - shares[present].max())
        return math.sqrt(squared)


def require(found: ClientTotals, wanted: dict[str, np.ndarray], times: int) -> None:
    assert (found.rounds * times).tolist() == wanted["reports"].tolist()
    for name in ("local", "sum", "shuffled"):
        np.testing.assert_allclose(getattr(found, name), wanted[name], rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("seed", range(12))
def test_every_clients_totals_are_the_formula(seed: int) -> None:
    case = Case.drawn(seed)
    accountant, column = case.accountant(), {"sum": "sum"}.get(case.trust.release, "shuffled")
    for number, (present, unusable) in enumerate(case.rounds, start=1):
        wanted = case.after(number)
        # Others that are asked about leave nothing behind.
        assert accountant.preview(number, np.roll(present, 1), 1).spend is not None
        spend = accountant.preview(number, present, unusable).spend
        assert (spend.num_reports, spend.round_number) == (present.sum(), number)
        assert spend.mu_total == approx(case.gspa(number))
        for name in ("local", "sum", "shuffled"):
            assert spend.columns[name].worst == approx(wanted[name].max(), rel=1e-3), name
        assert spend.headline_column == column
        assert spend.headline == approx(wanted[column].max(), rel=1e-3)
        each = accountant.preview(number, present, unusable).client_epsilons()
        np.testing.assert_allclose(each[present], wanted[column][present], rtol=1e-3)
        accountant.commit(accountant.preview(number, present, unusable))
        if number == 2:
            # A round that is taken back was never there.
            accountant.commit(accountant.preview(3, np.roll(present, 3), 2))
            accountant.take_back()
        require(accountant.client_totals(), wanted, case.trust.reports_per_round)
    worst = accountant.worst_client()
    assert worst is not None
    assert worst.epsilon == approx(wanted[column].max(), rel=1e-3)
    assert wanted[column][worst.client] == approx(wanted[column].max(), rel=1e-3)
    at = float(worst.profile([worst.epsilon])[0])
    assert at == approx(DELTA, rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_rounds_does_not_matter(seed: int) -> None:
    case = Case.drawn(seed)
    found = []
    for order in (range(4), (3, 1, 0, 2), (2, 3, 1, 0)):
        accountant = case.accountant()
        for number, at in enumerate(order, start=1):
            accountant.commit(accountant.preview(number, *case.rounds[at]))
        found.append(accountant.client_totals())
    for other in found[1:]:
        for name in ("rounds", "local", "sum", "shuffled"):
            np.testing.assert_allclose(getattr(other, name), getattr(found[0], name), rtol=1e-9)


def test_names_of_clients_do_not_matter() -> None:
    """Clients in another order, and classes in another order: the same numbers, moved along."""
    for seed in (1, 4):
        case = Case.drawn(seed)
        clients = np.random.default_rng(seed).permutation(len(case.class_of))
        kinds = np.roll(np.arange(len(case.classes)), 1)
        moved = Case(
            [case.classes[k] for k in kinds], np.argsort(kinds)[case.class_of[clients]],
            case.trust, [(present[clients], lost) for present, lost in case.rounds],
        )  # fmt: skip
        totals: list[Any] = []
        for each in (case, moved):
            accountant = each.accountant()
            for number, (present, lost) in enumerate(each.rounds, start=1):
                accountant.commit(accountant.preview(number, present, lost))
            totals.append(accountant.client_totals())
        for name in ("rounds", "local", "sum", "shuffled"):
            before: Sequence[float] = getattr(totals[0], name)[clients]
            np.testing.assert_allclose(getattr(totals[1], name), before, rtol=1e-9)


@pytest.mark.parametrize("schedule", ["aggregate", "sequential"])
def test_the_worst_client_counts_whether_its_class_is_listed(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where shuffling hides nobody. Classes are listed by how far they move in their noise:
    Laplace reports that move further cost less than Gaussian ones."""
    monkeypatch.setattr(accountant_module, "LISTED_CLASSES", 2)
    kinds = [("gaussian", 0.4), ("gaussian", 0.35), ("laplace", 0.6), ("laplace", 0.7)]
    classes = [ClientClass(noise, 1.0, radius, 2 * radius, 1.0, 1e-6, 1) for noise, radius in kinds]
    class_of = np.arange(12) % 4
    accountant = Accountant(classes, class_of, unit="client", schedule=schedule, delta=DELTA)
    for number, present in enumerate((class_of != 1, class_of != 2, class_of < 9), start=1):
        preview = accountant.preview(number, present)
        spend = preview.spend
        assert sorted(spend.columns["local"].epsilon) == [2, 3]
        accountant.commit(preview)
        totals = accountant.client_totals()
        assert totals.local.argmax() in np.flatnonzero(class_of < 2)
        for name in ("local", "shuffled"):
            wanted = getattr(totals, name).max()
            assert spend.columns[name].worst == approx(wanted, rel=1e-3), name


@pytest.mark.parametrize(("release", "who"), [("reports", 1), ("sum", 0)])
def test_the_worst_client_is_that_of_what_is_released(release: str, who: int) -> None:
    """Sums cost the client whose mean moves furthest most, reports the one that moves furthest in
    units of its own noise."""
    classes = [
        ClientClass("gaussian", 2.0, 0.5, 1.0, 1.0, 1e-6, 1),
        ClientClass("gaussian", 0.5, 0.2, 0.4, 1.0, 1e-6, 1),
    ]
    accountant = Accountant(
        classes, np.array([0] + [1] * 8 + [0] * 8), unit="client", schedule="aggregate",
        delta=DELTA, threat_model=replace(ThreatModel(), release=release),
    )  # fmt: skip
    accountant.commit(accountant.preview(1, np.ones(17, dtype=bool)))
    worst, totals = accountant.worst_client(), accountant.client_totals()
    assert worst is not None and worst.client == who
    assert worst.epsilon == totals.headline.max() == totals.headline[who]
    other = accountant.of_client(1 - who)
    assert other is not None and other.epsilon == totals.headline[1 - who] < worst.epsilon


def test_the_attack_on_sums_counts_what_it_reaches_itself() -> None:
    """What is proven of the sums is no part of it: a looser proof makes no better attack."""
    case = Case.drawn(2)
    account = SumAccount.start(case.classes, case.class_of, schedule="aggregate")
    for present, lost in case.rounds:
        account = account.after(present, 1, lost)
    classes = range(len(case.classes))
    found = sum_lower_column(account, DELTA, classes).epsilon
    assert found.keys() == set(classes)
    looser = replace(account, mu_squared=4.0 * account.mu_squared)
    assert sum_lower_column(looser, DELTA, classes).epsilon == found
    better = replace(account, attacked_mu_squared=0.25 * account.attacked_mu_squared)
    for index, less in sum_lower_column(better, DELTA, classes).epsilon.items():
        assert 0.0 < less < 0.75 * found[index]
    for index in classes:
        proven = account.epsilons(DELTA)[case.class_of == index].max()
        assert 0.99 * proven < found[index] <= proven

"""The column `rdp`: that of `fs.bound`, above the truth, for those who reported and nobody else."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.bounds.renyi import PureRound, rounds_epsilon
from fl_shuffle.accounting.client_classes import ClientClass
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.rounds import renyi_account
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.accounting.rounds.events import Column
from fl_shuffle.accounting.rounds.renyi_account import RenyiAccount, counted_reports
from fl_shuffle.accounting.rounds.threat_model import ThreatModel
from tests.oracles import composed, krr_matrix, shuffled_law

DELTA = 1e-5


def laplace(epsilon0: float = 1.0, radius: float = 1.0, **also: Any) -> ClientClass:
    """Whole-client reports in a ball of this radius, of local budget epsilon0."""
    return ClientClass("laplace", 2.0 * radius / epsilon0, radius, 2.0 * radius, **also)


def declared(epsilon0: float = 1.0, delta0: float = 0.0, radius: float = 1.0) -> ClientClass:
    """Reports of a randomizer of the user's own."""
    return ClientClass("user", 0.0, radius, 2.0 * radius, epsilon0, delta0)


def column(
    classes: list[ClientClass], class_of: Any, rounds: list[Any], delta: float = DELTA, **also: Any
) -> Column:
    """The column after rounds in which these clients reported (a mask, or a mask and how many of
    the reports are unusable)."""
    settings = {"unit": "client", "schedule": "aggregate", **also}
    of, times = np.asarray(class_of), settings.pop("times", 1)
    account = RenyiAccount.start(classes, of, **settings)
    for each in rounds:
        present, unusable = each if isinstance(each, tuple) else (each, 0)
        account = account.after(present, times, unusable)
    listed = dict.fromkeys(np.unique(of).tolist(), 1)
    return account.column(delta, listed, lambda index: np.flatnonzero(of == index))


def bound(epsilon0: float, clients: int, rounds: int, delta: float = DELTA) -> float:
    query = {"epsilon0": epsilon0, "clients": clients, "rounds": rounds, "delta": delta}
    return fs.bound(method="rdp", **query).epsilon


@pytest.mark.parametrize("clients", [2, 12, 300])
def test_plain_rounds_cost_what_bound_says(clients: int) -> None:
    """To the last bit, and more with every round; epsilon0 is what the noise delivers."""
    everybody, found = np.ones(clients, dtype=bool), []
    kind = replace(laplace(0.8), epsilon0=99.0)
    for rounds in (1, 2, 7):
        own = column([kind], [0] * clients, [everybody] * rounds)
        assert own.status is Status.PROVEN and not own.note
        assert own.worst == own.epsilon[0] == bound(0.8, clients, rounds)
        found.append(own.worst)
    assert found == sorted(found) and found[0] < found[-1]


def losses(size: int, zeros: int, own: int) -> tuple[list[float], list[float]]:
    """Privacy losses, and their chances, of a shuffle of binary randomized response of budget 1:
    the client holds `own` or the other value, and this number of the others hold 0."""
    matrix = krr_matrix(1.0, 2)
    others = [matrix[0]] * zeros + [matrix[1]] * (size - 1 - zeros)
    p, q = (shuffled_law([matrix[value], *others]) for value in (own, 1 - own))
    return [math.log(p[key] / q[key]) for key in p], [p[key] for key in p]


def test_rounds_cost_no_less_than_the_truth() -> None:
    """Binary randomized response, every data set, rounds of four and of two reports, composed
    exactly. Counted with all who are registered they would cost less than the truth."""
    delta, registered = 0.02, 40
    few, two = np.arange(registered) < 4, np.arange(registered) < 2
    laws = {
        size: [losses(size, zeros, own) for zeros in range(size) for own in (0, 1)]
        for size in (2, 4)
    }
    for rounds in ([few], [two], [few, few], [few, two], [two, two, few]):
        each = [laws[int(mask.sum())] for mask in rounds]
        ours = column([declared()], [0] * registered, rounds, delta).worst
        assert ours is not None
        assert max(composed(pairs, ours) for pairs in itertools.product(*each)) <= delta
        wrong = rounds_epsilon({PureRound(1.0, registered): len(rounds)}, delta).epsilon
        assert max(composed(pairs, wrong) for pairs in itertools.product(*each)) > 2.0 * delta


def test_a_client_pays_for_the_rounds_in_which_it_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every client's own rounds, converted one by one; the column lists the worst of each class."""
    monkeypatch.setattr(renyi_account, "ROUND_EXACT_REPORTS", 10)
    rng = np.random.default_rng(3)
    classes, class_of = [laplace(1.0), laplace(0.5, 0.5)], rng.integers(0, 2, 60)
    presence = rng.random((6, 60)) < 0.5
    presence[1] = True
    own: list[dict[PureRound, int]] = [{} for _ in class_of]
    for present in presence:
        batch = PureRound(1.0, counted_reports(int(present.sum()), 60))
        for client in np.flatnonzero(present).tolist():
            own[client][batch] = own[client].get(batch, 0) + 1
    epsilons = np.array([rounds_epsilon(each, DELTA).epsilon for each in own])
    found = column(classes, class_of, list(presence))
    assert found.worst == pytest.approx(epsilons.max(), rel=1e-12)
    assert found.status is Status.PROVEN
    wanted = {index: epsilons[class_of == index].max() for index in (0, 1)}
    assert found.epsilon == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(("whole", "least"), [(129, 8), (5_000, 64), (10**6, 2**13)])
def test_no_more_reports_are_counted_than_arrived(whole: int, least: int) -> None:
    assert [counted_reports(number, whole) for number in (1, 128, whole)] == [1, 128, whole]
    for number in (whole - 1, 2 * whole // 3 + 129):
        counted = counted_reports(number, whole)
        assert counted <= number < counted + least and counted > 0.9 * number


def test_others_count_as_far_as_they_are_honest_and_there() -> None:
    """Colluders, unusable reports, those who are absent; and several batches a round."""
    everybody, most = np.ones(40, dtype=bool), np.arange(40) < 30
    one, zeros = [laplace()], [0] * 40
    assert column(one, zeros, [most], assumed_honest=0.5).worst == bound(1.0, 15, 1)
    assert column(one, zeros, [(most, 13)], assumed_honest=0.5).worst == bound(1.0, 2, 1)
    assert column(one, zeros, [(most, 4)]).worst == bound(1.0, 26, 1)
    assert column(one, zeros, [everybody] * 2, times=3).worst == bound(1.0, 40, 6)
    # A client with a larger budget costs the others nothing where it is absent.
    both = [laplace(1.0, 1.0), laplace(3.0, 3.0)]
    class_of = [0] * 30 + [1] * 10
    assert column(both, class_of, [most]).worst == bound(1.0, 30, 1)
    assert column(both, class_of, [everybody]).worst == bound(3.0, 40, 1)


@pytest.mark.usefixtures("coarse_pairs")
@pytest.mark.parametrize("kind", [laplace(), declared()])
def test_the_accountant_counts_what_was_released(kind: ClientClass) -> None:
    """Colluders, unusable reports, several batches a round, and a round that is counted anew."""
    everybody, most = np.ones(40, dtype=bool), np.arange(40) < 30
    trust = ThreatModel(assumed_honest=0.8, reports_per_round=2)
    settings: dict[str, Any] = {"unit": "client", "schedule": "aggregate", "threat_model": trust}
    account = Accountant([kind], np.zeros(40, int), delta=DELTA, **settings)
    account.commit(account.preview(1, everybody))
    account.commit(account.preview(2, everybody))
    account.take_back()
    account.commit(account.preview(2, most, 3))
    wanted = {PureRound(1.0, 32): 2, PureRound(1.0, 24 - 3): 2}
    for unusable, kinds in ((0, wanted), (4, {**wanted, PureRound(1.0, 24 - 4): 2})):
        present = everybody if not unusable else most
        more = {} if unusable else {PureRound(1.0, 32): 4}
        found = account.preview(3, present, unusable).spend.columns["rdp"]
        assert found.worst == rounds_epsilon({**kinds, **more}, DELTA).epsilon
    assert found.status is Status.PROVEN
    assert found.note.startswith("given the declared budgets") == (kind.noise == "user")
    worst = account.preview(3, everybody).spend.columns["rdp"].worst
    local = account.preview(3, everybody).spend.columns["local"].worst
    assert worst is not None and local is not None and worst < local


SEQUENTIAL = {"schedule": "sequential"}


@pytest.mark.parametrize(
    ("classes", "settings", "status", "note"),
    [
        ([laplace(1.0), laplace(0.5, 0.5)], {}, Status.PROVEN, ""),
        ([declared()], {}, Status.PROVEN, ""),
        ([laplace(1.0), laplace(0.5)], {}, Status.AS_PUBLISHED, "different noise"),
        ([declared(1.0), declared(1.0, radius=2.0)], {}, Status.AS_PUBLISHED, "different noise"),
        ([declared(1.0), laplace(1.0)], {}, Status.AS_PUBLISHED, "different noise"),
        ([laplace()], SEQUENTIAL, Status.AS_PUBLISHED, "sequential"),
        ([replace(laplace(), sensitivity=0.5, records=4)], {"unit": "record"},
         Status.AS_PUBLISHED, "several records"),
        ([replace(declared(), records=4)], {"unit": "record"}, Status.AS_PUBLISHED, "several"),
    ],
)  # fmt: skip
def test_what_is_proven_and_what_is_only_published(
    classes: list[ClientClass], settings: dict[str, Any], status: Status, note: str
) -> None:
    """In all of these the number is that of the largest local budget."""
    everybody = np.ones(40, dtype=bool)
    class_of = np.arange(40) % len(classes)
    found = column(classes, class_of, [everybody], **settings)
    assert found.status is status and note in found.note and bool(found.note) == bool(note)
    largest = float(ClassTable.of(classes).exposure.max())
    assert found.worst == bound(largest, 40, 1)


@pytest.mark.parametrize(
    ("classes", "note"),
    [
        ([ClientClass("gaussian", 1.0, 1.0, 2.0)], "pure local budget"),
        ([laplace(), ClientClass("gaussian", 1.0, 1.0, 2.0)], "pure local budget"),
        ([declared(1.0, 1e-6)], "pure local budget"),
        ([laplace(201.0)], "up to epsilon0 = 200"),
    ],
)
def test_without_a_pure_budget_there_is_no_number(classes: list[ClientClass], note: str) -> None:
    class_of = np.arange(6) % len(classes)
    found = column(classes, class_of, [np.ones(6, dtype=bool)])
    assert found.worst is None and not found.epsilon and note in found.note
    assert found.status is not Status.PROVEN


def test_classes_without_clients_do_not_count() -> None:
    table = ClassTable.of([laplace(), ClientClass("gaussian", 1.0, 1.0, 2.0)])
    account = RenyiAccount.start(table, np.zeros(5, int), schedule="aggregate", unit="client")
    assert account.premise.status is Status.PROVEN and account.premise.reason is None

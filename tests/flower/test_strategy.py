"""What one round does, in which order, what it takes, and what it makes of hostile replies."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from benchmarks.chaos.hostile import KINDS
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.rounds.events import Column, Spend
from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import ServerSection
from fl_shuffle.errors import InvalidValueError, PrivacyBudgetError, RunError
from fl_shuffle.federation.optimizer import ServerOptimizer
from fl_shuffle.federation.robust import checked
from fl_shuffle.flower import messages
from fl_shuffle.flower.messages import REQUEST_RECORD, TrainRequest, expired, reply_with
from fl_shuffle.flower.nodes import Nodes
from fl_shuffle.flower.private_api import adopt_task_identity, stamp
from fl_shuffle.flower.schedule import Schedule
from fl_shuffle.flower.strategy import ShuffleStrategy
from fl_shuffle.randomizers import noise_exact
from fl_shuffle.randomizers.calibration import make_plan
from fl_shuffle.randomizers.noise import AesWords
from fl_shuffle.randomizers.personal import make_randomizer
from fl_shuffle.randomizers.seeds import SeedTree
from fl_shuffle.runs.events import RoundOutcome
from fl_shuffle.shuffler.local import (
    ExactSum,
    LocalShuffler,
    Shuffled,
    SummedBatch,
    valid_rows,
)
from tests.one_node import nodes

CLIENTS, DIMENSION = 8, 5
START = messages.array_record({"p": np.ones(DIMENSION, np.float32)}, shared=True)


class Rounds:
    """Rounds of 8 clients, and their ledger, which writes down what happens, in order.

    Client 1 reports `value` in each coordinate, the others .5; those from `answering` on fail. The
    ledger lets everything pass, or (`refusing`) says that it would exceed a budget.
    """

    first_round = 1

    def __init__(
        self, *, value: float = 0.5, answering: int = CLIENTS, refusing: bool = False,
        largest: float = np.inf, analyzer: Any = None, sequential: bool = False,
        exceeding: bool = False,
    ) -> None:  # fmt: skip
        self.exceeding, self.recorded = exceeding, list[float]()
        self.value, self.answering, self.refusing = value, answering, refusing
        self.events: list[str] = []
        self.reports, self.metrics = list[int](), list[dict[str, Any]]()
        seeds, bounds, keep = SeedTree(1), np.full(CLIENTS, largest), analyzer is not None
        self.strategy = ShuffleStrategy(
            shuffler=LocalShuffler(DIMENSION, bounds, seeds, min_reports=5, keep=keep),
            ledger=self,
            optimizer=ServerOptimizer(ServerSection(learning_rate=1.0), torch.ones(DIMENSION)),
            schedule=Schedule(CLIENTS, seeds, sequential=sequential),
            nodes=Nodes(CLIENTS, 60.0),
            analyzer=checked(analyzer) if keep else Shuffled.mean,
        )

    def play(self, rounds: int = 1) -> list[float]:
        """The numbers of the model that they come to; it begins with ones."""
        with nodes(self.train, CLIENTS) as grid:
            self.result = self.strategy.start(grid, START, rounds, evaluate_fn=self.evaluate)
        return self.model()

    def model(self) -> list[float]:
        numbers: list[float] = self.strategy.optimizer.current().tolist()
        return numbers

    def note(self, event: str) -> None:
        """What happens, and whether the model has moved by then; each once."""
        moved = " after the step" if self.model() != [1.0] * DIMENSION else ""
        if event + moved not in self.events:
            self.events.append(event + moved)

    def train(self, asked: Message, context: Context) -> Message:
        self.note("broadcast")
        clients = TrainRequest.of(asked).clients
        if clients[0] >= self.answering:
            return Message(Error(code=1), reply_to=asked)
        rows = np.full((len(clients), DIMENSION), 0.5, dtype=np.float32)
        rows[clients == 1] = self.value
        return reply_with(asked, reports=rows)

    def evaluate(self, number: int, arrays: ArrayRecord) -> MetricRecord:
        self.note("evaluate")
        return MetricRecord({"number": number})

    def reserve(self, round_number: int, participants: np.ndarray) -> np.ndarray | None:
        self.note("reserve")
        return participants

    def commit(self, round_number: int, present: np.ndarray) -> Spend | None:
        self.note("commit")
        self.reports += [int(present.sum())]
        columns = {"shuffled": Column("shuffled", Status.PROVEN, "", {0: 1.0})}
        spend = Spend(round_number, self.reports[-1], 1e-5, None, None, columns)
        return None if self.refusing else spend

    def amend(self, round_number: int, present: np.ndarray, unusable: int) -> tuple[Spend, str]:
        self.note(f"amend by {unusable}")
        columns = {"shuffled": Column("shuffled", Status.PROVEN, "", {0: 2.0})}
        spend = Spend(round_number, int(present.sum()), 1e-5, None, None, columns)
        return spend, "more than there is" if self.exceeding else ""

    def record(self, outcome: RoundOutcome, state: dict[str, Any] | None) -> None:
        self.note("record")
        self.recorded.append(outcome.spend.columns["shuffled"].epsilon[0])
        self.metrics.append(dict(outcome.metrics))


@pytest.mark.parametrize("sequential", [False, True])
def test_a_round_takes_no_report_less_than_it_may(sequential: bool) -> None:
    few = Rounds(answering=4, sequential=sequential)
    with pytest.raises(PrivacyBudgetError, match="4 usable reports arrived"):
        few.play()
    assert not few.reports
    enough = Rounds(answering=5, sequential=sequential)
    enough.play()
    assert enough.reports == [5] and "record after the step" in enough.events


def test_a_sequential_round_of_too_few_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reports would be released as they come: four clients are allowed, and five the least."""
    played, allowed = Rounds(sequential=True), np.arange(CLIENTS) < 4
    monkeypatch.setattr(played, "reserve", lambda number, asked: asked & allowed)
    with pytest.raises(PrivacyBudgetError, match="4 clients take part, below"):
        played.play()
    assert not played.events and played.model() == [1.0] * DIMENSION


@pytest.mark.parametrize("value", [3e38, 2.5, np.nan, -np.inf])
def test_a_sequential_model_takes_usable_reports_alone(value: float) -> None:
    """Each of seven reports moves it by one half; that of client 1 is no honest one."""
    played = Rounds(value=value, largest=2.0, sequential=True)
    assert played.play() == [1.0 - 7 * 0.5] * DIMENSION and played.reports == [7]


def test_result_and_ledger_hold_each_rounds_own_metrics() -> None:
    """Of every round that is evaluated, under its number."""
    rounds = Rounds()
    rounds.play(4)
    wanted = {number: {"number": number} for number in range(1, 5)}
    found = rounds.result.evaluate_metrics_serverapp
    assert {number: dict(found[number]) for number in found} == wanted
    assert dict(enumerate(rounds.metrics, start=1)) == wanted


def test_each_round_asks_clients_of_its_own() -> None:
    """Whether a client is asked is independent of all other clients, rounds and seeds: of 2,000
    clients in 12 rounds each share, and each overlap of two rounds, is within five deviations."""
    share, clients = 0.3, 2_000
    drawn = np.array(
        [
            Schedule(clients, SeedTree(seed), participation=share).participants(number)
            for seed in (1, 2)
            for number in range(1, 7)
        ]
    ).astype(float)
    again = Schedule(clients, SeedTree(2), participation=share).participants(6)
    assert np.array_equal(again, drawn[-1])
    assert np.abs(drawn.mean(axis=1) - share).max() < 5 * np.sqrt(0.21 / clients)
    both = drawn @ drawn.T / clients
    deviation = np.sqrt(share**2 * (1 - share**2) / clients)
    assert np.abs(both - share**2)[~np.eye(12, dtype=bool)].max() < 5 * deviation
    assert np.abs(np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]) < 5 / 150
    assert Schedule(clients, SeedTree(1)).participants(1).all()


def test_a_sequential_round_has_an_order_of_its_own() -> None:
    """Of four clients of whom three may take part every order is as likely: 1,200 rounds, 200 of
    each expected, five deviations of 12.9."""
    schedule, allowed = Schedule(4, SeedTree(3), sequential=True), np.arange(4) != 1
    orders = Counter(tuple(schedule.order(number, allowed)) for number in range(1200))
    assert len(orders) == 6 and all(sorted(order) == [0, 2, 3] for order in orders)
    assert max(abs(count - 200) for count in orders.values()) < 5 * 12.9


@pytest.mark.parametrize("refusing", [False, True])
def test_the_ledger_is_written_before_the_model_moves(refusing: bool) -> None:
    """What it refuses leaves no trace in the model."""
    played = Rounds(refusing=refusing)
    assert played.play() == [1.0 if refusing else 0.5] * DIMENSION
    after = [] if refusing else ["evaluate after the step", "record after the step"]
    assert played.events == ["reserve", "broadcast", "commit", *after]


@pytest.mark.parametrize("exceeding", [False, True])
def test_unusable_reports_are_on_record_before_the_step(
    monkeypatch: pytest.MonkeyPatch, exceeding: bool
) -> None:
    """A step that would break a budget is not taken."""
    release = SummedBatch.release
    monkeypatch.setattr(SummedBatch, "release", lambda own: replace(release(own), unusable=2))
    played = Rounds(exceeding=exceeding)
    assert played.play(2) == [1.0 if exceeding else 0.0] * DIMENSION
    assert played.events[:4] == ["reserve", "broadcast", "commit", "amend by 2"]
    assert played.recorded == [2.0] * (1 if exceeding else 2)
    assert played.strategy.failed is exceeding
    why = "unusable reports made it cost more than there is"
    assert (why in str(played.strategy.stopped)) is exceeding


def test_no_round_is_played_without_the_ledger() -> None:
    """Flower's own loop would play rounds of which no ledger knows: whoever drives the strategy, no
    client is asked and the model does not move."""
    played = Rounds()
    with nodes(played.train, 2) as grid:
        for drive in (
            lambda: Strategy.start(played.strategy, grid, START, num_rounds=1),
            lambda: played.strategy.aggregate_train(1, []),
        ):
            with pytest.raises(RunError, match=r"runs its rounds itself.*call start"):
                drive()
    assert not played.events


@pytest.mark.parametrize("value", [3e38, -3e38, 2.5, np.nan, np.inf])
def test_a_report_beyond_honest_noise_is_dropped_alone(value: float) -> None:
    played = Rounds(value=value, largest=2.0)
    assert played.play(2) == [0.0] * DIMENSION and played.reports == [7, 7]


@pytest.mark.parametrize(
    "analyzer",
    [lambda rows: rows.mean(dim=0) * np.nan, lambda rows: rows, lambda rows: 3,
     lambda rows: rows.mean(dim=0).numpy()],
)  # fmt: skip
def test_an_analyzer_without_an_answer_stops_the_run(analyzer: object) -> None:
    played = Rounds(analyzer=analyzer)
    assert played.play(2) == [1.0] * DIMENSION and played.reports == [8]
    assert played.strategy.failed
    assert "server.analyzer returned" in str(played.strategy.stopped)


def test_a_model_that_is_not_finite_stops_the_run_before_it_spends_more() -> None:
    large = Rounds(value=3e38)
    large.play(2)
    assert large.reports == [8, 8] and not large.strategy.failed
    huge = Rounds(analyzer=lambda rows: torch.full((DIMENSION,), 1e200, dtype=torch.float64))
    huge.play(2)
    assert huge.reports == [8] and huge.strategy.failed
    assert "no longer finite" in str(huge.strategy.stopped)


def message() -> Message:
    adopt_task_identity(1)
    return stamp(TrainRequest(1, np.arange(4)).message(START, 2))


@pytest.mark.parametrize("kind", [kind for kind, make in KINDS.items() if "_array" in repr(make)])
def test_what_is_no_whole_array_is_not_read(kind: str) -> None:
    causes: Counter[str] = Counter()
    for content in (KINDS[kind](np.ones((4, 5), np.float32)), RecordDict({"other": ArrayRecord()})):
        reply = Message(content, reply_to=message())
        assert messages.read_answer(reply, TrainRequest(1, np.arange(4)), 5, causes) is None
    assert causes.total() == 8 and causes["sent no report"] >= 4


@pytest.mark.parametrize(
    "changes",
    [{"span": 10**9}, {"span": 0}, {"span": -5}, {"first": 9}, {"first": -1}, {"span": 2.5},
     {"round": 0}, {"bitmap": b"\xff"}, {"bitmap": "xx"}, {"bitmap": b"\0\x3f"}, {"span": "8"}],
)  # fmt: skip
def test_a_request_is_for_clients_of_the_run(changes: dict[str, Any]) -> None:
    asked = message()
    values = {"round": 1, "first": 0, "span": 10, "bitmap": b"\xff\xc0", **changes}
    asked.content[REQUEST_RECORD] = ConfigRecord(values)
    with pytest.raises(InvalidValueError):
        TrainRequest.of(asked, 10)


def test_nobody_works_on_what_nobody_waits_for() -> None:
    assert not expired(message())
    late = TrainRequest(1, np.arange(4)).message(START, 2, 5.0)
    late.metadata.__dict__["_created_at"] = time.time() - 100.0
    assert expired(late)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("word", [0, -1])
@pytest.mark.parametrize("weights", ["uniform", "inverse-variance"])
def test_the_rarest_report_is_not_dropped(
    noise: str, word: int, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words and further bits that give the largest variates there are, on top of the largest mean:
    who is dropped is public, so no noise and no record may decide it."""
    budgets = Budgets(np.linspace(0.5, 4.0, 20), np.full(20, 1e-5))
    own = {"privacy": {"randomizer": noise}, "server": {"weights": weights}}
    config = parse_config({"run": {"entropy": "system"}, "data": {"clients": 20}, **own})
    plan = make_plan(config, budgets, np.full(20, 3))

    def rarest(words: object, ids: object, tile: int, raw: np.ndarray) -> None:
        raw[: raw.size // 8 * 8].view(np.int64)[:] = word

    monkeypatch.setattr(AesWords, "fill", rarest)
    monkeypatch.setattr(noise_exact, "more_bits", lambda *_: (0, 0))
    rows = torch.from_numpy(np.outer(plan.radius, [1.0, -1.0])).float()
    rows = make_randomizer(config, plan)(rows, np.arange(20), 1)
    assert bool((rows.abs().amax(dim=1).numpy() > 14.0 * plan.weight * plan.scale).all())
    widths = plan.weight * ({"gaussian": 14.4, "laplace": 104.1}[noise] * plan.scale + plan.radius)
    assert (plan.largest < widths + plan.step).all()  # and it is no looser than they need
    assert valid_rows(rows, plan.largest).all()
    assert ExactSum(2).add(rows, plan.largest).all()
    # As one sum, too.
    assert ExactSum(2).add_sum(rows.double().sum(dim=0), float(plan.largest.sum()))

"""What a party may send: read from its header, bounded, and never the end of a run."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from benchmarks.chaos.hostile import KINDS
from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.flower.answers import read_answer
from fl_shuffle.flower.grid import adopt_task_identity, stamp
from fl_shuffle.flower.messages import (
    REQUEST_RECORD,
    Layout,
    TrainRequest,
    expired,
    reply_with,
)
from fl_shuffle.flower.strategy import ShuffleStrategy
from fl_shuffle.randomizer_plan import make_plan
from fl_shuffle.randomizers import noise_exact
from fl_shuffle.randomizers.noise import AesWords
from fl_shuffle.randomizers.personal import make_randomizer
from fl_shuffle.shuffler.exact_sums import ExactSum, valid_rows
from tests.flower.small_rounds import OpenLedger, small_strategy
from tests.one_node import nodes

CLIENTS, DIMENSION = 8, 5


def message() -> Message:
    adopt_task_identity(1)
    return stamp(
        TrainRequest(1, np.arange(4)).message(Layout.flat(3).record(np.zeros(3, np.float32)), 2)
    )


@pytest.mark.parametrize("kind", [kind for kind, make in KINDS.items() if "_array" in repr(make)])
def test_what_is_no_whole_array_is_not_read(kind: str) -> None:
    causes: Counter[str] = Counter()
    for content in (KINDS[kind](np.ones((4, 5), np.float32)), RecordDict({"other": ArrayRecord()})):
        reply = Message(content, reply_to=message())
        assert read_answer(reply, TrainRequest(1, np.arange(4)), 5, causes) is None
    assert causes.total() == 8 and causes["sent no report"] >= 4


@pytest.mark.parametrize(
    "changes",
    [{"span": 10**9}, {"span": 0}, {"span": -5}, {"first": 9}, {"first": -1}, {"span": 2.5},
     {"round": 0}, {"bitmap": b"\xff"}, {"bitmap": "xx"}, {"bitmap": b"\0\x3f"}, {"span": "8"}],
)  # fmt: skip
def test_a_request_is_checked_before_anything_of_its_size_is_made(
    changes: dict[str, object],
) -> None:
    asked = message()
    values = {"round": 1, "first": 0, "span": 10, "bitmap": b"\xff\xc0", **changes}
    asked.content[REQUEST_RECORD] = ConfigRecord(values)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError):
        TrainRequest.of(asked, 10)


def test_nobody_works_on_what_nobody_waits_for() -> None:
    fresh = message()
    assert not expired(fresh)
    late = Message(RecordDict(), 2, "train", ttl=5.0)
    late.metadata.__dict__["_created_at"] = time.time() - 100.0
    assert expired(late)


def play(
    value: float = 0.5, *, analyzer: object = None, largest: float = 2.0
) -> tuple[ShuffleStrategy, OpenLedger]:
    """Rounds in which client 1 reports `value`, and the others .5, in each coordinate."""

    def train(asked: Message, context: Context) -> Message:
        request = TrainRequest.of(asked)
        rows = np.full((len(request.clients), DIMENSION), 0.5, dtype=np.float32)
        rows[request.clients == 1] = value
        return reply_with(asked, reports=rows)

    ledger = OpenLedger()
    strategy = small_strategy(CLIENTS, DIMENSION, ledger, largest=largest, analyzer=analyzer)
    start = Layout.flat(DIMENSION).record(np.zeros(DIMENSION, np.float32))
    with nodes(train, 2) as grid:
        strategy.start(grid, start, num_rounds=2)
    return strategy, ledger


@pytest.mark.parametrize("value", [3e38, -3e38, 2.5, np.nan, np.inf])
def test_a_report_beyond_honest_noise_is_dropped_alone(value: float) -> None:
    strategy, book = play(value)
    assert book.reports == [7, 7] and not strategy.failed
    assert strategy.optimizer.current().tolist() == [-1.0] * DIMENSION


@pytest.mark.parametrize(
    "analyzer",
    [lambda rows: rows.mean(dim=0) * np.nan, lambda rows: rows, lambda rows: 3,
     lambda rows: rows.mean(dim=0).numpy()],
)  # fmt: skip
def test_an_analyzer_without_an_answer_stops_the_run(analyzer: object) -> None:
    strategy, book = play(analyzer=analyzer)
    assert strategy.failed and book.reports == [8]
    assert "server.analyzer returned" in str(strategy.stopped)
    assert strategy.optimizer.current().tolist() == [0.0] * DIMENSION


def test_a_model_that_is_not_finite_stops_the_run_before_it_spends_more() -> None:
    strategy, book = play(3e38, largest=np.inf)
    assert book.reports == [8, 8] and not strategy.failed
    huge = lambda rows: torch.full((DIMENSION,), 1e200, dtype=torch.float64)  # noqa: E731
    strategy, book = play(analyzer=huge)
    assert strategy.failed and book.reports == [8]
    assert "no longer finite" in str(strategy.stopped)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("word", [0, -1])
@pytest.mark.parametrize("weights", ["uniform", "inverse-variance"])
def test_the_rarest_report_is_not_dropped(
    noise: str, word: int, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words and further bits that give the largest variates there are, on top of the largest mean:
    who is dropped is public, so no noise and no record may decide it."""
    budgets = Budgets(np.linspace(0.5, 4.0, 20), np.full(20, 1e-5))
    config = parse_config(
        {
            "run": {"entropy": "system"},
            "data": {"clients": 20},
            "privacy": {"randomizer": noise},
            "server": {"weights": weights},
        }
    )
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

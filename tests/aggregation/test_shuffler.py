"""The batch of reports: what is released does not depend on which reports came first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fl_shuffle.aggregation.shuffler import PooledBatch, ReportBatch
from fl_shuffle.errors import PrivacyBudgetError
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.randomizers import noise_cpu, vector

DIMENSION = 7


def chunks(count: int) -> list[Tensor]:
    """Reports on a grid of 2^-10, so large that float32 sums would not be exact."""
    generator = torch.Generator().manual_seed(1)
    whole = torch.randint(-(2**24), 2**24, (count, 5, DIMENSION), generator=generator)
    return list((whole.float() * 2.0**-10).unbind())


@pytest.mark.parametrize("keep", [False, True])
def test_the_order_of_arrival_and_the_number_of_threads_leave_no_trace(keep: bool) -> None:
    parts = chunks(40)

    def fill(order: list[int], threads: int) -> ReportBatch:
        batch = ReportBatch(DIMENSION, keep=keep)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda position: batch.add(parts[position], position), order))
        return batch

    one, other = fill(list(range(40)), 1), fill(list(range(40))[::-1], 4)
    assert one.count == other.count == 200
    if keep:
        released = [batch.release(np.random.default_rng(5)) for batch in (one, other)]
        assert torch.equal(*released)
        assert not torch.equal(released[0], torch.cat(parts))
        order = np.lexsort(released[0].numpy().T)
        assert np.array_equal(
            released[0].numpy()[order],
            torch.cat(parts).numpy()[np.lexsort(torch.cat(parts).numpy().T)],
        )
    expected = torch.cat(parts).double().sum(dim=0)
    assert torch.equal(one.release_sum(), expected)
    assert torch.equal(other.release_sum(), expected)


@pytest.fixture(params=[False, True], ids=["plain", "compiled"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are added up as in small runs, and as in large ones."""
    monkeypatch.setattr(vector._summing, "_numbers", request.param * noise_cpu.COMPILED_FROM)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 1e9])
def test_a_row_that_no_honest_client_sends_is_dropped_alone(keep: bool, bad: float) -> None:
    rows = chunks(1)[0]
    nonfinite = rows.clone()
    nonfinite[2, 3] = bad
    batch = ReportBatch(DIMENSION, keep=keep)
    largest = np.full(5, 2.0**14)
    assert batch.add(nonfinite, 0, largest).tolist() == [True, True, False, True, True]
    assert batch.count == 4
    assert torch.equal(batch.release_sum(), rows[[0, 1, 3, 4]].double().sum(dim=0))
    with pytest.raises(PrivacyBudgetError, match="below privacy.min_reports = 5"):
        batch.require(5)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("keep", [False, True])
def test_every_report_is_held_to_its_own_client_s_limit(keep: bool) -> None:
    rows = chunks(1)[0]
    largest = rows.abs().amax(dim=1).double().numpy() * 8.0 ** np.arange(5)
    batch = ReportBatch(DIMENSION, keep=keep)
    # All are honest, the widest of them far beyond the narrowest one's limit.
    assert batch.add(rows * 8.0 ** torch.arange(5)[:, None], 0, largest).all()
    beyond = rows.clone()
    beyond[1] *= 8.0 * (1.0 + 2.0**-20)
    assert batch.add(beyond, 1, largest).tolist() == [True, False, True, True, True]
    assert batch.count == 9


@pytest.mark.filterwarnings("error")
def test_a_pooled_sum_that_is_not_finite_is_left_out_without_a_warning() -> None:
    batch, good = PooledBatch(3), np.array([1.0, 2.0, 3.0])
    for bad in ([np.nan, 0.0, 0.0], [np.inf, -np.inf, 0.0], [1e308, 1e308, 0.0]):
        assert not batch.add(np.array(bad), 5)
    assert batch.add(good, 2) and batch.add(good, 1)
    assert batch.count == 3
    assert batch.release_sum().tolist() == [2.0, 4.0, 6.0]


def test_an_empty_batch_is_an_empty_array() -> None:
    released = ReportBatch(DIMENSION, keep=True).release(np.random.default_rng(0))
    assert released.shape == (0, DIMENSION)
    assert released.dtype == torch.float32


def test_what_goes_wrong_while_a_reply_is_taken_is_raised() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    grid = InProcessGrid(app, {}, nodes=2)

    def take(position: int, reply: Message) -> None:
        taken.append(position)
        if position == 3:
            raise RuntimeError("of the server's own making")

    taken: list[int] = []
    try:
        messages = [Message(RecordDict(), 2 + i % 2, "train") for i in range(6)]
        with pytest.raises(RuntimeError, match="of the server's own making"):
            grid.exchange(messages, take)
        assert 3 in taken
        taken.clear()
        grid.exchange([Message(RecordDict(), 2 + i % 2, "train") for i in range(3)], take)
        assert sorted(taken) == [0, 1, 2]
        replies = grid.send_and_receive([Message(RecordDict(), 2, "train") for _ in range(2)])
        assert [reply.has_error() for reply in replies] == [False, False]
    finally:
        grid.close()


def test_what_goes_wrong_beside_the_server_is_not_heard_and_stops_no_node() -> None:
    app = ClientApp()
    app.train()(lambda message, context: Message(RecordDict(), reply_to=message))
    done = []

    def fail() -> None:
        done.append(threading.current_thread() is not threading.main_thread())
        raise SystemExit(3)

    grid = InProcessGrid(app, {}, nodes=1)
    try:
        grid.begin(fail)
        messages = [Message(RecordDict(), 2, "train") for _ in range(2)]
        assert [reply.has_error() for reply in grid.send_and_receive(messages)] == [False, False]
        assert done == [True]
    finally:
        grid.close()

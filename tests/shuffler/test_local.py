"""The batch of reports: what is released does not depend on which reports came first."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fl_shuffle.errors import PrivacyBudgetError
from fl_shuffle.randomizers.seeds import SeedTree
from fl_shuffle.shuffler.local import (
    OUT_OF_RANGE,
    Batch,
    LocalShuffler,
    PartialSum,
    Reports,
    listed,
)

DIMENSION = 7
both_kinds = pytest.mark.parametrize("keep", [False, True])


def chunks(count: int) -> list[Tensor]:
    """Reports on a grid of 2^-10, so large that float32 sums would not be exact."""
    generator = torch.Generator().manual_seed(1)
    whole = torch.randint(-(2**24), 2**24, (count, 5, DIMENSION), generator=generator)
    return list((whole.float() * 2.0**-10).unbind())


def opened(largest: np.ndarray, **given: Any) -> Batch:
    """The batch of a round in which all clients are asked."""
    everyone = np.ones(len(largest), dtype=bool)
    return LocalShuffler(DIMENSION, largest, SeedTree(5), **given).open(1, everyone)


def added(batch: Batch, rows: Tensor, position: int = 0) -> list[bool]:
    """Whose reports are taken, of five clients."""
    clients = np.arange(5 * position, 5 * position + 5)
    return batch.add(Reports(rows.numpy()), clients, position).tolist()


def mean_of(rows: Tensor) -> Tensor:
    return (rows.double().sum(dim=0) / len(rows)).float()


@both_kinds
def test_the_order_of_arrival_and_the_number_of_threads_leave_no_trace(keep: bool) -> None:
    parts, released = chunks(40), []
    whole = torch.cat(parts)
    for order, threads in ((range(40), 1), (range(39, -1, -1), 4)):
        batch = opened(np.full(200, np.inf), keep=keep)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda k, batch=batch: added(batch, parts[k], k), order))
        assert batch.close().all()
        released.append(batch.release())
        # The mean has the same bits from single reports and from their sum.
        assert released[-1].count == 200 and torch.equal(released[-1].mean(), mean_of(whole))
    first, second = (each.reports for each in released)
    if keep:
        assert first is not None and second is not None
        assert torch.equal(first, second) and not torch.equal(first, whole)
        assert sorted(first.tolist()) == sorted(whole.tolist())


@pytest.mark.parametrize("long", [0, 1_000_000])
@both_kinds
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 1.0 + 2.0**-20])
def test_a_row_that_no_honest_client_sends_is_dropped_alone(
    keep: bool, bad: float, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every report is held to its own client's limit; where sums are long ones, too."""
    monkeypatch.setattr("fl_shuffle.shuffler.exact_sums.LONG", long)
    # All are honest, the widest of them far beyond the narrowest one's limit.
    rows, present = chunks(1)[0] * 8.0 ** torch.arange(5)[:, None], [True, True, False, True, True]
    largest, spoiled = rows.abs().amax(dim=1).double().numpy(), rows.clone()
    spoiled[2, 3] = bad * largest[2]
    few, enough = (opened(largest, keep=keep, min_reports=least) for least in (5, 4))
    assert added(opened(largest, keep=keep), rows) == [True] * 5
    assert added(few, spoiled) == added(enough, spoiled) == present
    assert few.reasons == Counter({OUT_OF_RANGE: 1})
    with pytest.raises(PrivacyBudgetError, match=r"min_reports = 5.*range: 1\)"):
        few.close()
    assert enough.close().tolist() == present
    assert torch.equal(enough.release().mean(), mean_of(rows[[0, 1, 3, 4]]))


@both_kinds
@pytest.mark.parametrize("batches", [1, 2])
def test_every_request_is_held_to_its_own_clients_limits(keep: bool, batches: int) -> None:
    """Requests in any order, for clients in no order: each at its limit, and one beyond."""
    largest = 2.0 ** np.arange(12.0)
    clients = np.random.default_rng(2).permutation(12)
    batch, position = opened(largest, keep=keep, batches=batches), 3
    for own in (clients[7:], clients[:3], clients[3:7]):
        rows = torch.from_numpy(np.tile(largest[own, None], (batches, DIMENSION))).float()
        rows[:, 2] *= -1.0
        beyond = own == 5
        rows[-len(own) :][torch.from_numpy(beyond), DIMENSION - 1] *= -1.0 - 2.0**-10
        taken = batch.add(Reports(rows.numpy()), own, position)
        assert np.array_equal(taken, ~beyond)
        position -= 1
    assert np.array_equal(batch.close(), np.arange(12) != 5)
    wanted = largest.sum() - largest[5]
    found = batch.release()
    assert found.count == 11 * batches
    assert found.mean()[0] == np.float32(wanted / 11) == -found.mean()[2]


@both_kinds
def test_of_several_batches_each_is_permuted_and_a_client_is_in_all_or_in_none(keep: bool) -> None:
    first, second = torch.cat(chunks(8)), torch.cat(chunks(16)[8:])
    rows, there = torch.cat([first, second]), np.arange(40) != 7
    rows[40 + 7, 2] = float("nan")  # client 7's report to the second batch
    batch = opened(np.full(40, 2.0**14), keep=keep, batches=2)
    assert np.array_equal(batch.add(Reports(rows.numpy()), np.arange(40), 0), there)
    assert np.array_equal(batch.close(), there)
    released = batch.release()
    sent = [part[torch.from_numpy(there)] for part in (first, second)]
    assert released.count == 78 and torch.equal(released.mean(), mean_of(torch.cat(sent)))
    if not keep:
        return
    assert released.reports is not None
    places = []
    for mine, original in zip(released.reports.split(39), sent, strict=True):
        # Whose report is at each place: all of one batch, in another order.
        same = (mine[:, None] == original[None]).all(dim=2)
        assert bool((same.sum(dim=1) == 1).all())
        places.append(same.int().argmax(dim=1))
    assert not torch.equal(places[0], torch.arange(39)) and not torch.equal(*places)


def test_batch_of_reports_takes_no_sum() -> None:
    kept = opened(np.full(5, np.inf), keep=True)
    assert not kept.add(PartialSum(np.ones(7), np.ones(5, bool)), np.arange(5), 0).any()
    assert "sent a sum" in str(kept.reasons)


@pytest.mark.parametrize("batches", [1, 3])
def test_a_nodes_sum_is_held_to_the_reports_that_are_in_it(batches: int) -> None:
    """Each of its clients may have sent the largest report there is to each batch, and the others
    nothing."""
    largest, valid = np.arange(1.0, 6.0), np.array([True, False, True, True, False])
    clients, most = np.arange(5), 8.0 * batches  # of clients 0, 2 and 3
    for sign in (1.0, -1.0):
        for size, taken in ((most, True), (most + 2.0**-10, False), (np.inf, False)):
            total = np.zeros(DIMENSION)
            total[3] = sign * size
            batch = opened(largest, keep=False, batches=batches)
            assert np.array_equal(batch.add(PartialSum(total, valid), clients, 0), valid & taken)
            if not taken:
                assert batch.reasons == Counter({OUT_OF_RANGE: 5})
                continue
            assert np.array_equal(batch.close(), valid)
            released = batch.release()
            assert released.count == 3 * batches and released.total is not None
            assert np.array_equal(released.total.numpy(), total)


def test_reasons_for_missing_reports_are_listed_the_most_frequent_five_of_them() -> None:
    assert listed(Counter()) == ""
    assert listed(Counter({"late": 2})) == " (late: 2)"
    reasons = Counter({name: place for place, name in enumerate("abcdefg", 1)})
    assert listed(reasons) == " (g: 7; f: 6; e: 5; d: 4; c: 3)"

"""The batch of reports: what is released does not depend on which reports came first."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from fl_shuffle.errors import ConfigError, PrivacyBudgetError
from fl_shuffle.randomizers.aggregate_noise import AggregateNoise
from fl_shuffle.seeds import SeedTree
from fl_shuffle.shuffler.local import OUT_OF_RANGE, Batch, LocalShuffler, PartialSum, Reports

DIMENSION = 7


def chunks(count: int) -> list[Tensor]:
    """Reports on a grid of 2^-10, so large that float32 sums would not be exact."""
    generator = torch.Generator().manual_seed(1)
    whole = torch.randint(-(2**24), 2**24, (count, 5, DIMENSION), generator=generator)
    return list((whole.float() * 2.0**-10).unbind())


def shuffler(largest: np.ndarray, *, keep: bool, least: int = 2) -> LocalShuffler:
    return LocalShuffler(DIMENSION, largest, SeedTree(5), min_reports=least, keep=keep)


def filled(parts: list[Tensor], order: list[int], threads: int, *, keep: bool) -> Batch:
    """The batch of a round in which part k is the reports of clients 5 k to 5 k + 4."""
    everyone = np.ones(5 * len(parts), dtype=bool)
    batch = shuffler(np.full(len(everyone), np.inf), keep=keep).open(1, everyone)

    def add(position: int) -> None:
        clients = np.arange(5 * position, 5 * position + 5)
        assert batch.add(Reports(parts[position].numpy()), clients, position).all()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(add, order))
    return batch


@pytest.mark.parametrize("keep", [False, True])
def test_the_order_of_arrival_and_the_number_of_threads_leave_no_trace(keep: bool) -> None:
    parts = chunks(40)
    one = filled(parts, list(range(40)), 1, keep=keep)
    other = filled(parts, list(range(40))[::-1], 4, keep=keep)
    assert one.close().all() and other.close().all()
    first, second = one.release(), other.release()
    assert first.count == second.count == 200
    whole = torch.cat(parts)
    if keep:
        assert first.reports is not None and second.reports is not None
        assert torch.equal(first.reports, second.reports)
        assert not torch.equal(first.reports, whole)
        order = np.lexsort(first.reports.numpy().T)
        wanted = whole.numpy()[np.lexsort(whole.numpy().T)]
        assert np.array_equal(first.reports.numpy()[order], wanted)
    # The mean has the same bits from single reports and from their sum.
    expected = (whole.double().sum(dim=0) / 200).float()
    assert torch.equal(first.mean(), expected) and torch.equal(second.mean(), expected)


@pytest.mark.parametrize("long", [0, 1_000_000])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 1e9])
def test_a_row_that_no_honest_client_sends_is_dropped_alone(
    keep: bool, bad: float, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where sums are long ones, too."""
    monkeypatch.setattr("fl_shuffle.shuffler.local.LONG", long)
    rows = chunks(1)[0]
    nonfinite = rows.clone()
    nonfinite[2, 3] = bad
    for least in (4, 5):
        batch = shuffler(np.full(5, 2.0**14), keep=keep, least=least).open(1, np.ones(5, bool))
        found = batch.add(Reports(nonfinite.numpy()), np.arange(5), 0)
        assert found.tolist() == [True, True, False, True, True]
        assert batch.reasons == Counter({OUT_OF_RANGE: 1})
        if least == 5:
            with pytest.raises(PrivacyBudgetError, match=r"min_reports = 5.*range: 1\)"):
                batch.close()
            continue
        assert batch.close().tolist() == [True, True, False, True, True]
        mean = (rows[[0, 1, 3, 4]].double().sum(dim=0) / 4).float()
        assert torch.equal(batch.release().mean(), mean)


@pytest.mark.parametrize("keep", [False, True])
def test_every_report_is_held_to_its_own_client_s_limit(keep: bool) -> None:
    rows = chunks(1)[0]
    largest = rows.abs().amax(dim=1).double().numpy() * 8.0 ** np.arange(5)
    batch = shuffler(largest, keep=keep).open(1, np.ones(5, bool))
    # All are honest, the widest of them far beyond the narrowest one's limit.
    honest = (rows * 8.0 ** torch.arange(5)[:, None]).numpy()
    assert batch.add(Reports(honest), np.arange(5), 0).all()
    beyond = rows.clone()
    beyond[1] *= 8.0 * (1.0 + 2.0**-20)
    found = batch.add(Reports(beyond.numpy()), np.arange(5), 1)
    assert found.tolist() == [True, False, True, True, True]


@pytest.mark.parametrize("keep", [False, True])
def test_of_several_batches_each_is_permuted_and_a_client_is_in_all_or_in_none(keep: bool) -> None:
    first, second = torch.cat(chunks(8)), torch.cat(chunks(16)[8:])
    rows = torch.cat([first, second]).clone()
    rows[40 + 7, 2] = float("nan")  # client 7's report to the second batch
    held = LocalShuffler(DIMENSION, np.full(40, 2.0**14), SeedTree(5), keep=keep, batches=2)
    batch = held.open(1, np.ones(40, bool))
    there = np.arange(40) != 7
    assert np.array_equal(batch.add(Reports(rows.numpy()), np.arange(40), 0), there)
    assert np.array_equal(batch.close(), there)
    released = batch.release()
    assert released.count == 78
    sent = [part[torch.from_numpy(there)] for part in (first, second)]
    assert torch.equal(released.mean(), (torch.cat(sent).double().sum(dim=0) / 78).float())
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


@pytest.mark.filterwarnings("error")
def test_a_partial_sum_counts_where_it_may_be_one_and_is_finite() -> None:
    valid = np.ones(3, dtype=bool)
    batch = LocalShuffler(3, np.full(12, 10.0), SeedTree(1), keep=False).open(1, np.ones(12, bool))
    bad = ([np.nan, 0.0, 0.0], [np.inf, -np.inf, 0.0], [1e308, 1e308, 0.0])
    for place, total in enumerate(bad):
        clients = np.arange(3 * place, 3 * place + 3)
        assert not batch.add(PartialSum(np.array(total), valid), clients, place).any()
    good = PartialSum(np.array([1.0, 2.0, 3.0]), np.array([True, False, True]))
    assert batch.add(good, np.arange(9, 12), 3).tolist() == [True, False, True]
    assert np.flatnonzero(batch.close()).tolist() == [9, 11]
    total = batch.release().total
    assert total is not None and total.tolist() == [1.0, 2.0, 3.0]
    # Where single reports are wanted a sum is nothing; where the shuffler adds noise, reports are.
    kept = shuffler(np.full(12, np.inf), keep=True).open(1, np.ones(12, bool))
    assert not kept.add(good, np.arange(9, 12), 0).any()
    noise = AggregateNoise("gaussian", np.ones(2), np.full(2, 2.0**-20))
    held = LocalShuffler(DIMENSION, np.full(2, 9.0), SeedTree(1), keep=False, noise=noise)
    with pytest.raises(ConfigError, match="set run.noise = 'per-report'"):
        reports = Reports(np.ones((2, DIMENSION), np.float32))
        held.open(1, np.ones(2, bool)).add(reports, np.arange(2), 0)

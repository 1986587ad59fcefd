"""Blocks of clients: one rule, and the same bits however a call is put together from them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_shuffle.gradients import Packing
from tests.gradients.gradient_modules import Problem

NAMES = [
    *("linear", "relu", "mixed", "linear, compiled", "linear without bias, compiled"),
    *("plain", "lines", "convolution", "branching"),
]
SIZES = [3, 17, 1, 300, 3, 64, 5, 5, 90, 1, 1, 33, 700, 2]


def packed(name: str, clip: str = "record") -> Problem:
    """Its few records are several blocks."""
    problem = Problem(name, SIZES, 6, clip=clip)
    problem.engine.packing = Packing(min(100, problem.engine.packing.records), 5)
    return problem


@pytest.mark.parametrize(
    ("name", "steps"),
    [*((name, 0) for name in NAMES), ("relu", 3), ("linear, compiled", 3), ("convolution", 1)],
)
def test_whole_blocks_have_the_same_bits_in_any_call(name: str, steps: int) -> None:
    problem = packed(name, "none" if steps else "record")
    together = problem.rows(steps=steps)
    assert bool(torch.isfinite(together).all())
    starts = problem.engine.packing.starts(np.array(SIZES)).tolist()
    assert len(starts) > 3
    middle = starts[len(starts) // 2]
    for first, last in (*pairwise(starts), (0, middle), (middle, len(SIZES))):
        alone = problem.part(first, last, shift=1).rows(steps=steps)
        assert torch.equal(alone, together[first:last])


def test_threads_do_not_matter() -> None:
    for name in ("relu", "linear, compiled", "plain", "convolution"):
        problem = packed(name)
        expected = problem.rows()
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(problem.rows) for _ in range(8)]
            assert all(torch.equal(call.result(), expected) for call in calls)
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            assert torch.equal(problem.rows(), expected)
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(threads)


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(1, 300), st.integers(1, 9)
)
@settings(max_examples=200, deadline=None)
def test_the_rule_of_blocks(sizes: list[int], records: int, clients: int) -> None:
    packing = Packing(records, clients)
    starts = packing.starts(np.array(sizes)).tolist()
    assert (starts[0], starts[-1]) == (0, len(sizes))
    for first, last in pairwise(starts):
        assert 0 < last - first <= clients
        assert sum(sizes[first:last]) <= records or last == first + 1
        # From a block's start on, the list is cut as the whole list is.
        rest = packing.starts(np.array(sizes[first:])) + first
        assert rest.tolist() == [start for start in starts if start >= first]

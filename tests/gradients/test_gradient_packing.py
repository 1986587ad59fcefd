"""Blocks of clients: one rule, and the same bits however a call is put together from them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fl_shuffle.gradients import GradientEngine, Packing
from tests.gradients import gradient_modules as modules
from tests.gradients.gradient_oracle import flat

NAMES = [
    *("linear", "relu", "elu in place", "linear, compiled", "linear without bias, compiled"),
    *("plain", "lines", "convolution", "branching"),
]
SIZES = [3, 17, 1, 300, 3, 64, 5, 5, 90, 1, 1, 33, 700, 2]


def data(name: str, seed: int) -> tuple[Tensor, Tensor, np.ndarray, Tensor]:
    radius = 0.1 + torch.rand(len(SIZES), generator=torch.Generator().manual_seed(seed))
    return *modules.problem_of(name, SIZES, seed), radius


def engine_of(name: str, clip: str) -> GradientEngine:
    engine = modules.engine_of(name, clip)
    # Small enough that the test's few records are several blocks.
    engine.packing = Packing(min(100, engine.packing.records), 5)
    return engine


def rows_of(engine: GradientEngine, name: str, problem: tuple, steps: int) -> Tensor:
    (x, y, offsets, radius), theta = problem, flat(modules.MODULES[name])
    if steps > 1:
        return engine.local_update(theta, x, y, offsets, steps=steps, learning_rate=0.2)
    return engine.client_means(theta, x, y, offsets, radius)


def part(problem: tuple, first: int, last: int, shift: int = 0) -> tuple:
    """The clients first .. last - 1, their records in memory of another alignment."""
    x, y, offsets, radius = problem
    records = slice(int(offsets[first]), int(offsets[last]))
    inputs, labels = x[records], y[records]
    if shift:
        inputs = torch.empty(shift + inputs.numel())[shift:].view_as(inputs).copy_(inputs)
    return inputs, labels, offsets[first : last + 1] - offsets[first], radius[first:last]


@pytest.mark.parametrize(
    ("name", "clip", "steps"),
    [
        *((name, "record", 1) for name in NAMES),
        *((name, "none", 3) for name in ("relu", "linear, compiled")),
        ("convolution", "none", 1),
    ],
)
def test_whole_blocks_have_the_same_bits_in_any_call(name: str, clip: str, steps: int) -> None:
    engine = engine_of(name, clip)
    problem = data(name, 6)
    together = rows_of(engine, name, problem, steps)
    assert bool(torch.isfinite(together).all())
    starts = engine.packing.starts(np.array(SIZES))
    assert len(starts) > 3
    for first, last in pairwise(starts.tolist()):
        alone = rows_of(engine, name, part(problem, first, last, shift=1), steps)
        assert torch.equal(alone, together[first:last])
    middle = int(starts[len(starts) // 2])
    halves = ((0, middle), (middle, len(SIZES)))
    cut = [rows_of(engine, name, part(problem, *half), steps) for half in halves]
    assert torch.equal(torch.cat(cut), together)


def test_threads_do_not_matter() -> None:
    for name in ("relu", "linear, compiled", "plain", "convolution"):
        problem = data(name, 1)
        engine = engine_of(name, "record")
        expected = rows_of(engine, name, problem, 1)
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(rows_of, engine, name, problem, 1) for _ in range(8)]
            assert all(torch.equal(call.result(), expected) for call in calls)
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            assert torch.equal(rows_of(engine, name, problem, 1), expected)
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

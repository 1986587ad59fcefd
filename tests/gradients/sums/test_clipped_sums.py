"""A sum of clipped means without the means: the same sum, and the same bits in any parts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from fl_shuffle.gradients import NonfiniteRecords, Packing, make_gradient_engine
from fl_shuffle.gradients.rounding import sum_grid
from fl_shuffle.gradients.softmax_regression import SoftmaxRegression, SumPlan
from tests.gradients.gradient_modules import SHAPE, chains, records_of
from tests.gradients.gradient_oracle import flat, offsets_of

torch.manual_seed(8)
MODELS = {name: model for name, model in chains().items() if name.endswith("compiled")}
SIZES = [3, 17, 1, 300, 3, 64, 5, 5, 90, 1, 1, 33, 700, 2]
TOLERANCE = 2e-6
"""Of the sum of the clients' weighted radii, in every coordinate."""

Problem = tuple[Tensor, Tensor, np.ndarray, Tensor]


def problem_of(sizes: list[int], seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    offsets = offsets_of(sizes)
    x = torch.randn(int(offsets[-1]), 13, generator=generator)
    y = torch.randint(0, 5, (len(x),), generator=generator)
    return x, y, offsets, 0.1 + torch.rand(len(sizes), generator=generator)


def engine_of(name: str, norm: int) -> SoftmaxRegression:
    engine = make_gradient_engine(
        MODELS[name], shape=SHAPE, clip="record", norm=norm, records=records_of(name)
    )
    assert isinstance(engine, SoftmaxRegression)
    # Small enough that the test's few records are several blocks.
    engine.packing = Packing(100, 5)
    return engine


def weights_of(clients: int) -> np.ndarray:
    return np.random.default_rng(4).uniform(0.2, 3.0, clients)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_that_of_the_rows(name: str, norm: int) -> None:
    engine, parameters = engine_of(name, norm), flat(MODELS[name])
    x, y, offsets, radius = problem_of(SIZES, 5)
    # Records that count as zero: no class, not finite, in a short and in a long client.
    y[4] = 77
    x[30], x[550] = torch.nan, torch.inf
    weights = weights_of(len(radius))
    reach = float((torch.from_numpy(weights) * radius).sum())
    for given in (weights, 1.0):
        rows_tally, tally = NonfiniteRecords(), NonfiniteRecords()
        rows = engine.client_means(parameters, x, y, offsets, radius, nonfinite=rows_tally)
        expected = (torch.as_tensor(given).reshape(-1, 1) * rows.double()).sum(0)
        grid = sum_grid(reach)
        plan = SumPlan(offsets, radius.numpy(), given, grid)
        found = engine.prepared_sum(x, y, plan)(parameters, tally)
        assert found.dtype == torch.float64
        assert float((found - expected).abs().max()) <= TOLERANCE * reach
        # It is nothing that a tolerance of this size would hide.
        assert float(found.abs().max()) > 1e4 * TOLERANCE * reach / np.sqrt(engine.dimension)
        assert not np.mod(found.numpy(), grid).any()
        assert (tally.clients, tally.records) == (rows_tally.clients, rows_tally.records)
        assert tally.records == 3


@pytest.mark.parametrize("name", MODELS)
def test_sums_of_whole_blocks_are_exact(name: str) -> None:
    engine, parameters = engine_of(name, 2), flat(MODELS[name])
    sizes = SIZES
    x, y, offsets, radius = problem_of(sizes, 6)
    weights = weights_of(len(sizes))
    grid = sum_grid(float((torch.from_numpy(weights) * radius).sum()))

    def total(first: int, last: int, shift: int) -> Tensor:
        records = slice(int(offsets[first]), int(offsets[last]))
        inputs = x[records]
        inputs = torch.empty(shift + inputs.numel())[shift:].view_as(inputs).copy_(inputs)
        bounds = offsets[first : last + 1] - offsets[first]
        plan = SumPlan(bounds, radius[first:last].numpy(), weights[first:last], grid)
        return engine.prepared_sum(inputs, y[records], plan)(parameters, NonfiniteRecords())

    together = total(0, len(sizes), 0)
    starts = engine.packing.starts(np.array(sizes)).tolist()
    assert len(starts) > 3
    parts = [total(first, last, 1) for first, last in pairwise(starts)]
    assert torch.equal(sum(parts), together)
    assert torch.equal(sum(parts[::-1]), together)
    middle = starts[len(starts) // 2]
    assert torch.equal(total(0, middle, 3) + total(middle, len(sizes), 0), together)


def test_many_records_in_one_block() -> None:
    """The blocks as they are: a stretch is a float32 sum of many records."""
    for name, model in MODELS.items():
        engine = make_gradient_engine(model, shape=SHAPE, clip="record", records=records_of(name))
        x, y, offsets, radius = problem_of([1] * 3000 + [7] * 900, 7)
        parameters, reach = flat(model), float(radius.sum())
        rows = engine.client_means(parameters, x, y, offsets, radius)
        plan = SumPlan(offsets, radius.numpy(), 1.0, sum_grid(reach))
        found = engine.prepared_sum(x, y, plan)(parameters, NonfiniteRecords())
        assert float((found - rows.double().sum(0)).abs().max()) <= TOLERANCE * reach
        assert float(found.abs().max()) > 1e3 * TOLERANCE * reach


def test_the_grid_leaves_room_for_the_whole_sum() -> None:
    for largest in (1e-12, 0.3, 1.0, 6e4, 1e12):
        grid = sum_grid(largest)
        assert grid <= largest * 2.0**-49
        assert 4.0 * largest < 2.0**53 * grid

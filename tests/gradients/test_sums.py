"""A sum of clipped means without the means, which may be clipped themselves: the rows' sum, and
the same bits in any parts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import NonfiniteRecords, Packing, make_gradient_engine
from fl_shuffle.gradients.rounding import sum_grid
from fl_shuffle.gradients.row_clips import clip_rows, row_clips
from fl_shuffle.gradients.softmax_regression import PreparedSum, SoftmaxRegression, SumPlan
from tests.gradients.gradient_modules import ALWAYS_COMPILED
from tests.gradients.gradient_oracle import flat, offsets_of

torch.manual_seed(11)
MODELS = {
    "biased": nn.Linear(13, 5),
    "unbiased": nn.Linear(13, 23, bias=False),
    "many features": nn.Linear(70, 10),
}
SIZES = [1, 3, 2, 3, 3, 1, 2, 3, 3, 2, 1, 1, 3, 40, 3, 1, 1, 200, 2, 3, 1, 3, 2, 2, 3, 1, 90, 3]
"""Clients of few records, and some of many."""
CLOSE = 2e-6
"""Of the sum of the clients' weighted radii, in every coordinate."""


def engine_of(model: nn.Linear, clip: str = "none", norm: int = 2) -> SoftmaxRegression:
    engine = make_gradient_engine(
        model, shape=(model.in_features,), clip=clip, norm=norm, records=ALWAYS_COMPILED
    )
    assert isinstance(engine, SoftmaxRegression)
    # Small enough that the test's few clients are several blocks, of either kind.
    engine.packing = Packing(100, 5)
    return engine


class Federation:
    """Clients' records, radii and weights; with a `second` clip of the means or without."""

    def __init__(self, name: str, sizes: list[int] = SIZES, second: float | None = 1.5) -> None:
        generator = torch.Generator().manual_seed(5)
        self.sizes, self.offsets = np.array(sizes), offsets_of(sizes)
        shape = int(self.offsets[-1]), MODELS[name].in_features
        self.x = torch.randn(shape, generator=generator)
        self.y = torch.randint(0, 5, (len(self.x),), generator=generator)
        drawn = np.random.default_rng(4)
        self.first, self.second = drawn.uniform(0.3, 4.0, len(sizes)), second
        self.weights = drawn.uniform(0.2, 3.0, len(sizes))
        self.reach = float(np.sum(self.weights * np.minimum(self.first, second or np.inf)))
        self.parameters = flat(MODELS[name])

    def by_rows(self, engine: SoftmaxRegression, tally: NonfiniteRecords) -> Tensor:
        """What the rows give."""
        rows = engine.client_means(
            self.parameters, self.x, self.y, self.offsets, self.first, nonfinite=tally
        )
        for radii in (self.first, self.second) if self.second else ():
            tally.add_clients(int((~clip_rows(rows, radii, engine.norm)).sum()))
        return (torch.from_numpy(self.weights)[:, None] * rows.double()).sum(0)

    def prepared(self, engine: SoftmaxRegression, first: int, last: int) -> PreparedSum:
        some, records = slice(first, last), slice(int(self.offsets[first]), int(self.offsets[last]))
        radii = [self.first[some], self.second] if self.second else []
        plan = SumPlan(
            self.offsets[first : last + 1] - self.offsets[first],
            self.first[some],
            self.weights[some],
            sum_grid(self.reach),
            row_clips(radii, last - first, engine.norm) if radii else None,
        )
        return engine.prepared_sum(self.x[records], self.y[records], plan)

    def summed(
        self,
        engine: SoftmaxRegression,
        first: int = 0,
        last: int | None = None,
        tally: NonfiniteRecords | None = None,
    ) -> Tensor:
        prepared = self.prepared(engine, first, len(self.sizes) if last is None else last)
        return prepared(self.parameters, tally or NonfiniteRecords())

    def by_blocks(self, engine: SoftmaxRegression) -> list[Tensor]:
        starts = engine.packing.starts(self.sizes).tolist()
        return [self.summed(engine, first, last) for first, last in pairwise(starts)]


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize(("clip", "second"), [("none", 1.5), ("record", 1.5), ("record", None)])
@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_that_of_the_clipped_rows(
    name: str, clip: str, second: float | None, norm: int
) -> None:
    engine, federation = engine_of(MODELS[name], clip, norm), Federation(name, second=second)
    bounds = federation.offsets
    # In clients of one record, of a few, and of many: no class, not finite, beyond float32.
    federation.y[bounds[1] + 1], federation.y[bounds[10]] = 77, -3
    federation.x[bounds[5], 3] = torch.nan
    federation.x[bounds[9], 0] = torch.inf
    federation.x[bounds[13] + 7, 2] = -torch.inf
    federation.x[bounds[24] + 1, 1] = 3e38
    expected_tally, tally = NonfiniteRecords(), NonfiniteRecords()
    expected = federation.by_rows(engine, expected_tally)
    found = federation.summed(engine, tally=tally)
    assert float((found - expected).abs().max()) <= CLOSE * federation.reach
    # It is nothing that a tolerance of this size would hide.
    assert float(found.abs().max()) > 1e3 * CLOSE * federation.reach
    assert not np.mod(found.numpy(), sum_grid(federation.reach)).any()
    assert (tally.clients, tally.records) == (expected_tally.clients, expected_tally.records)
    assert tally.clients >= 5


@pytest.mark.parametrize(("clip", "second"), [("none", 1.5), ("record", None)])
@pytest.mark.parametrize("name", MODELS)
def test_sums_of_whole_blocks_are_exact(name: str, clip: str, second: float | None) -> None:
    engine, federation = engine_of(MODELS[name], clip), Federation(name, second=second)
    together, parts = federation.summed(engine), federation.by_blocks(engine)
    assert len(parts) > 5
    assert torch.equal(sum(parts), together)
    assert torch.equal(sum(parts[::-1]), together)


@pytest.mark.parametrize("longest", [10.0, 90.0, 1e6, 1e16])
def test_what_rounding_leaves_of_records_that_cancel_is_clipped(longest: float) -> None:
    """Others' sums, and those of blocks in any order, are what they are."""
    engine = engine_of(MODELS["many features"])
    federation = Federation("many features", [4] * 60, second=1.0)
    federation.first[:] = federation.weights[:] = 1.0
    federation.reach = 60.0
    federation.parameters = torch.zeros_like(federation.parameters)
    # Errors 0.1 - e_y of one input under four labels, and what undoes them in the others.
    x = federation.x.reshape(60, 4, -1)
    x *= 0.5 / x.norm(dim=2, keepdim=True)
    for client in (0, 7, 31):
        x[client, :] = x[client, 0] / x[client, 0].norm() * longest
        federation.y[4 * client : 4 * client + 4] = torch.tensor([3, 3, 3, 3])
        x[client, 2:] *= -1.0
    together = federation.summed(engine)
    own = [federation.summed(engine, k, k + 1) for k in range(60)]
    assert max(float(part.norm()) for part in own) <= 1.0 + 1e-6
    exact = federation.by_rows(engine, NonfiniteRecords())
    assert float((together - exact).abs().max()) <= CLOSE * federation.reach
    assert torch.equal(sum(federation.by_blocks(engine)[::-1]), together)


def test_prepared_sums_are_called_from_several_threads_again_and_again() -> None:
    """What one call leaves behind changes no other: neither marks, nor what is not finite."""
    engine, federation = engine_of(MODELS["biased"], "record"), Federation("biased")
    federation.x[federation.offsets[5], 3] = torch.nan
    prepared = federation.prepared(engine, 0, len(SIZES))
    generator = torch.Generator().manual_seed(8)
    models = [torch.randn(engine.dimension, generator=generator) for _ in range(5)]
    models[2][0] = torch.inf

    def called(total: PreparedSum, number: int) -> tuple[bytes, int, int]:
        tally = NonfiniteRecords()
        found = total(models[number % 5], tally).numpy().tobytes()
        return found, tally.clients, tally.records

    expected = [called(federation.prepared(engine, 0, len(SIZES)), k) for k in range(5)]
    assert expected[2][2] > expected[0][2] > 0
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: called(prepared, k), range(100)))
    assert found == expected * 20


def test_the_grid_leaves_room_for_the_whole_sum() -> None:
    for largest in (1e-12, 0.3, 6e4, 1e12):
        grid = sum_grid(largest)
        assert grid <= largest * 2.0**-49 and 4.0 * largest < 2.0**53 * grid

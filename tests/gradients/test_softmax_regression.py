"""A sum of clipped means without the means, which may be clipped themselves: the rows' sum, and
the same bits in any parts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import NonfiniteRecords, Packing
from fl_shuffle.gradients.rounding import sum_grid
from fl_shuffle.gradients.row_clips import clip_rows
from fl_shuffle.gradients.softmax_regression import PreparedSum, SoftmaxRegression, SumPlan
from tests.gradients.gradient_modules import Problem

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


class Federation(Problem):
    """Clients with radii and weights; with a `second` clip of the means or without."""

    def __init__(
        self, name: str, sizes: list[int] = SIZES, second: float | None = 1.5, **more: object
    ) -> None:
        super().__init__("compiled", sizes, 5, module=MODELS[name], radius=1.0, **more)
        # Small enough that the test's few clients are several blocks, of either kind.
        self.engine.packing = Packing(100, 5)
        drawn = np.random.default_rng(4)
        self.radius = torch.from_numpy(drawn.uniform(0.3, 4.0, len(sizes)))
        self.weights, self.second = drawn.uniform(0.2, 3.0, len(sizes)), second
        self.clips = np.minimum(self.radius.numpy(), second) if second else None
        self.reach = float(np.sum(self.weights * np.minimum(self.radius.numpy(), second or np.inf)))

    def by_rows(self, tally: NonfiniteRecords) -> Tensor:
        """What the rows give."""
        rows, own = self.rows(tally=tally), NonfiniteRecords()
        for radii in (self.radius.numpy(), self.second) if self.second else ():
            tally.add_clients(int((~clip_rows(rows, radii, self.engine.norm)).sum()))
        # As the loop clips them, at once; it adds squares up in another order and flushes to zero.
        clipped = self.rows(tally=own, clips=self.clips)
        assert torch.allclose(clipped, rows, rtol=1e-5, atol=1e-37) and own == tally
        return (torch.from_numpy(self.weights)[:, None] * rows.double()).sum(0)

    def prepared(self, first: int = 0, last: int | None = None) -> PreparedSum:
        last = len(self.sizes) if last is None else last
        own, radii = self.part(first, last), self.radius[first:last].numpy()
        clips = None if self.clips is None else self.clips[first:last]
        plan = SumPlan(own.offsets, radii, self.weights[first:last], sum_grid(self.reach), clips)
        assert isinstance(self.engine, SoftmaxRegression)
        return self.engine.prepared_sum(own.x, own.y, plan)

    def summed(self, first: int = 0, last: int | None = None) -> Tensor:
        return self.prepared(first, last)(self.theta, NonfiniteRecords())

    def by_blocks(self) -> list[Tensor]:
        starts = self.engine.packing.starts(np.array(self.sizes)).tolist()
        return [self.summed(first, last) for first, last in pairwise(starts)]


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize(("clip", "second"), [("none", 1.5), ("record", 1.5), ("record", None)])
@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_that_of_the_clipped_rows(
    name: str, clip: str, second: float | None, norm: int
) -> None:
    """And to the last bit that of its blocks, in any order."""
    federation = Federation(name, second=second, clip=clip, norm=norm)
    bounds = federation.offsets
    # In clients of one record, of a few, and of many: no class, not finite, beyond float32.
    federation.y[bounds[1] + 1], federation.y[bounds[10]] = 77, -3
    federation.x[bounds[5], 3] = torch.nan
    federation.x[bounds[9], 0] = torch.inf
    federation.x[bounds[13] + 7, 2] = -torch.inf
    federation.x[bounds[24] + 1, 1] = 3e38
    wanted, tally = NonfiniteRecords(), NonfiniteRecords()
    expected = federation.by_rows(wanted)
    found = federation.prepared()(federation.theta, tally)
    assert float((found - expected).abs().max()) <= CLOSE * federation.reach
    # It is nothing that a tolerance of this size would hide.
    assert float(found.abs().max()) > 1e3 * CLOSE * federation.reach
    assert not np.mod(found.numpy(), sum_grid(federation.reach)).any()
    # Six records of six clients; without a clip of records a client's mean may hide that of one.
    assert tally == wanted and tally.clients in ((5, 6) if clip == "none" else (6,))
    parts = federation.by_blocks()
    assert len(parts) > 5
    assert torch.equal(sum(parts), found) and torch.equal(sum(parts[::-1]), found)


@pytest.mark.parametrize("longest", [10.0, 90.0, 1e6, 1e16])
def test_what_rounding_leaves_of_records_that_cancel_is_clipped(longest: float) -> None:
    """Others' sums, and those of blocks in any order, are what they are."""
    federation = Federation("many features", [4] * 60, second=1.0, clip="none")
    federation.radius[:], federation.clips = 1.0, np.ones(60)
    federation.weights[:], federation.reach = 1.0, 60.0
    federation.theta = torch.zeros_like(federation.theta)
    # Errors 0.1 - e_y of one input under four labels, and what undoes them in the others.
    x = federation.x.reshape(60, 4, -1)
    x *= 0.5 / x.norm(dim=2, keepdim=True)
    for client in (0, 7, 31):
        x[client, :] = x[client, 0] / x[client, 0].norm() * longest
        federation.y[4 * client : 4 * client + 4] = 3
        x[client, 2:] *= -1.0
    together = federation.summed()
    assert max(float(federation.summed(k, k + 1).norm()) for k in range(60)) <= 1.0 + 1e-6
    exact = federation.by_rows(NonfiniteRecords())
    assert float((together - exact).abs().max()) <= CLOSE * federation.reach
    assert torch.equal(sum(federation.by_blocks()[::-1]), together)


def test_prepared_sums_are_called_from_several_threads_again_and_again() -> None:
    """What one call leaves behind changes no other: neither marks, nor what is not finite."""
    federation = Federation("biased")
    federation.x[federation.offsets[5], 3] = torch.nan
    generator = torch.Generator().manual_seed(8)
    models = [torch.randn(len(federation.theta), generator=generator) for _ in range(5)]
    models[2][0] = torch.inf

    def called(total: PreparedSum, number: int) -> tuple[bytes, int, int]:
        tally = NonfiniteRecords()
        found = total(models[number % 5], tally).numpy().tobytes()
        return found, tally.clients, tally.records

    expected, prepared = [called(federation.prepared(), k) for k in range(5)], federation.prepared()
    assert expected[2][2] > expected[0][2] > 0
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda k: called(prepared, k), range(100))) == expected * 20


def test_the_grid_leaves_room_for_the_whole_sum() -> None:
    for largest in (1e-12, 0.3, 6e4, 1e12):
        grid = sum_grid(largest)
        assert grid <= largest * 2.0**-49 and 4.0 * largest < 2.0**53 * grid

"""A sum of means that are clipped themselves, without their rows: what these add up to."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.gradients import NonfiniteRecords, Packing, make_gradient_engine
from fl_shuffle.gradients.rounding import sum_grid
from fl_shuffle.gradients.row_clips import clip_rows, row_clips
from fl_shuffle.gradients.softmax_regression import SoftmaxRegression, SumPlan
from tests.gradients.gradient_modules import records_of
from tests.gradients.gradient_oracle import flat, offsets_of

torch.manual_seed(11)
MODELS: dict[str, nn.Module] = {
    "biased": nn.Linear(13, 5),
    "unbiased": nn.Linear(13, 23, bias=False),
    "many features": nn.Linear(70, 10),
}
SIZES = [1, 3, 2, 3, 3, 1, 2, 3, 3, 2, 1, 1, 3, 40, 3, 1, 1, 200, 2, 3, 1, 3, 2, 2, 3, 1, 90, 3]
"""Clients of few records, and some of many."""
CLOSE = 2e-6
"""Of the sum of the clients' weighted radii, in every coordinate."""


def engine_of(name: str, clip: str = "none", norm: int = 2, clients: int = 5) -> SoftmaxRegression:
    engine = make_gradient_engine(
        MODELS[name],
        shape=(MODELS[name].in_features,),
        clip=clip,
        norm=norm,
        records=records_of("compiled"),
    )
    assert isinstance(engine, SoftmaxRegression)
    # Small enough that the test's few clients are several blocks, of either kind.
    engine.packing = Packing(100, clients)
    return engine


class Federation:
    """Clients' records, radii and weights."""

    def __init__(self, name: str, sizes: list[int] = SIZES) -> None:
        generator = torch.Generator().manual_seed(5)
        model = MODELS[name]
        self.sizes, self.offsets = np.array(sizes), offsets_of(sizes)
        features = model.in_features
        assert isinstance(features, int)
        self.x = torch.randn(int(self.offsets[-1]), features, generator=generator)
        self.y = torch.randint(0, 5, (len(self.x),), generator=generator)
        drawn = np.random.default_rng(4)
        self.first = drawn.uniform(0.3, 4.0, len(sizes))
        self.second = 1.5
        self.weights = drawn.uniform(0.2, 3.0, len(sizes))
        self.reach = float(np.sum(self.weights * np.minimum(self.first, self.second)))
        self.parameters = flat(model)

    def by_rows(self, engine: SoftmaxRegression, tally: NonfiniteRecords) -> Tensor:
        """What the rows give."""
        rows = engine.client_means(
            self.parameters, self.x, self.y, self.offsets, self.first, nonfinite=tally
        )
        for radii in (self.first, self.second):
            tally.add_clients(int((~clip_rows(rows, radii, engine.norm)).sum()))
        return (torch.from_numpy(self.weights)[:, None] * rows.double()).sum(0)

    def summed(
        self,
        engine: SoftmaxRegression,
        tally: NonfiniteRecords | None = None,
        first: int = 0,
        last: int | None = None,
    ) -> Tensor:
        some = slice(first, len(self.sizes) if last is None else last)
        records = slice(int(self.offsets[some.start]), int(self.offsets[some.stop]))
        radii = [self.first[some], self.second]
        plan = SumPlan(
            self.offsets[some.start : some.stop + 1] - self.offsets[some.start],
            self.first[some],
            self.weights[some],
            sum_grid(self.reach),
            row_clips(radii, some.stop - some.start, engine.norm),
        )
        prepared = engine.prepared_sum(self.x[records], self.y[records], plan)
        return prepared(self.parameters, tally or NonfiniteRecords())


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("clip", ["none", "record"])
@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_that_of_the_clipped_rows(name: str, clip: str, norm: int) -> None:
    engine, federation = engine_of(name, clip, norm), Federation(name)
    bounds = federation.offsets
    # In clients of one record, of a few, and of many: no class, not finite, beyond float32.
    federation.y[bounds[1] + 1], federation.y[bounds[10]] = 77, -3
    federation.x[bounds[5], 3] = torch.nan
    federation.x[bounds[9], 0] = torch.inf
    federation.x[bounds[13] + 7, 2] = -torch.inf
    federation.x[bounds[24] + 1, 1] = 3e38
    expected_tally, tally = NonfiniteRecords(), NonfiniteRecords()
    expected = federation.by_rows(engine, expected_tally)
    found = federation.summed(engine, tally)
    assert float((found - expected).abs().max()) <= CLOSE * federation.reach
    assert float(found.abs().max()) > 1e3 * CLOSE * federation.reach
    assert not np.mod(found.numpy(), sum_grid(federation.reach)).any()
    assert (tally.clients, tally.records) == (expected_tally.clients, expected_tally.records)
    assert tally.clients >= 5


@pytest.mark.parametrize("name", MODELS)
def test_sums_of_whole_blocks_are_exact(name: str) -> None:
    engine, federation = engine_of(name), Federation(name)
    together = federation.summed(engine)
    starts = engine.packing.starts(federation.sizes).tolist()
    parts = [federation.summed(engine, None, a, b) for a, b in pairwise(starts)]
    assert len(parts) > 5
    assert torch.equal(sum(parts), together)
    assert torch.equal(sum(parts[::-1]), together)
    middle = starts[len(starts) // 2]
    halves = federation.summed(engine, None, 0, middle), federation.summed(engine, None, middle)
    assert torch.equal(halves[0] + halves[1], together)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_records_that_nearly_cancel(scale: float) -> None:
    """A mean is much shorter than its records: it is not taken for longer than it is by more than
    their rounding, and never for shorter."""
    classes, model = 4, nn.Linear(40, 4)
    generator = torch.Generator().manual_seed(2)
    clients = 60
    inputs = scale * torch.randn(clients, 40, generator=generator)
    # One input under every label: errors p - e_y add up to zero where every p is 1/4.
    x = inputs.repeat_interleave(classes, 0)
    y = torch.arange(classes).repeat(clients)
    # Of a few clients one record is another one's neighbour: the mean is what they are apart.
    x[classes * 5] *= 1.0 + 2.0**-12
    offsets, parameters = offsets_of([classes] * clients), torch.zeros(164)
    engine = make_gradient_engine(model, shape=(40,), clip="none", records=1 << 40)
    assert isinstance(engine, SoftmaxRegression)
    for radius in (1e-9 * scale, 1e-5 * scale, scale):
        rows = engine.client_means(parameters, x, y, offsets)
        exact = rows.double().numpy().copy()
        clip_rows(rows, radius, 2)
        for client in (5, 7):
            weights = (np.arange(clients) == client).astype(float)
            clips = row_clips([radius], clients, 2)
            plan = SumPlan(offsets, 1.0, weights, sum_grid(radius), clips)
            found = engine.prepared_sum(x, y, plan)(parameters, NonfiniteRecords()).numpy()
            length = float(np.linalg.norm(found))
            records = float(np.linalg.norm(inputs[client].double().numpy()))
            # Float32 sums of errors that cancel: a last place of the records is what they leave.
            assert length <= radius * (1 + 1e-6) + 1e-7 * records
            wanted = min(float(np.linalg.norm(exact[client])), radius)
            assert length >= wanted * (1 - 1e-4) - 1e-7 * records


@pytest.mark.parametrize("longest", [10.0, 90.0, 1e6, 1e12, 1e16])
def test_what_rounding_leaves_of_records_that_cancel_is_clipped(longest: float) -> None:
    """Others' sums, and those of blocks in any order, are what they are."""
    engine, federation = engine_of("many features"), Federation("many features", [4] * 60)
    radius = 1.0
    federation.first[:], federation.weights[:] = radius, 1.0
    federation.reach = 60 * radius
    federation.parameters = torch.zeros_like(federation.parameters)
    # Errors 0.1 - e_y of one input under four labels, and what undoes them in the others.
    x = federation.x.reshape(60, 4, -1)
    x *= 0.5 / x.norm(dim=2, keepdim=True)
    for client in (0, 7, 31):
        x[client, :] = x[client, 0] / x[client, 0].norm() * longest * radius
        federation.y[4 * client : 4 * client + 4] = torch.tensor([3, 3, 3, 3])
        x[client, 2:] *= -1.0
    together = federation.summed(engine)
    own = [federation.summed(engine, None, k, k + 1) for k in range(60)]
    assert max(float(part.norm()) for part in own) <= radius * (1 + 1e-6)
    exact = federation.by_rows(engine, NonfiniteRecords())
    assert float((together - exact).abs().max()) <= CLOSE * federation.reach
    starts = engine.packing.starts(federation.sizes).tolist()
    parts = [federation.summed(engine, None, a, b) for a, b in pairwise(starts)]
    assert torch.equal(sum(parts[::-1]), together)


@pytest.mark.parametrize("view", ["every other", "one for all", "turned", "watched"])
def test_records_that_lie_otherwise_are_the_same_records(view: str) -> None:
    """Views that are no rows one behind the other."""
    engine = engine_of("many features")
    federation = Federation("many features", [3, 2, 1, 2])
    federation.first[:] = 0.5
    given = torch.randn(16, 7, 10, generator=torch.Generator().manual_seed(3))
    given[1::2] *= 1e-3
    x = {
        "every other": given.flatten(1)[::2],
        "one for all": given.flatten(1)[:1].expand(8, 70),
        "turned": given[:8].flatten(1).T.contiguous().T,
        "watched": given.flatten(1)[:8].clone().requires_grad_(),
    }[view]
    federation.x = x.detach().reshape(8, 70).clone()
    expected = federation.summed(engine)
    assert float((expected - federation.by_rows(engine, NonfiniteRecords())).abs().max()) < 1e-5
    federation.x = x
    assert torch.equal(federation.summed(engine), expected)


@pytest.mark.parametrize(
    ("records", "field"),
    [
        (torch.zeros(7, 70), "offsets"),
        (torch.zeros(8, 69), "inputs"),
        (torch.zeros(8, 70).double(), "inputs"),
    ],
)
def test_records_that_do_not_fit_are_refused(records: Tensor, field: str) -> None:
    federation = Federation("many features", [3, 2, 1, 2])
    federation.x = records
    with pytest.raises(InvalidValueError, match=field):
        federation.summed(engine_of("many features"))


def test_prepared_sums_are_called_from_several_threads_again_and_again() -> None:
    """What one call leaves behind changes no other: neither marks, nor what is not finite."""
    engine, federation = engine_of("biased", "record"), Federation("biased")
    federation.x[federation.offsets[5], 3] = torch.nan
    clips = row_clips([federation.first, federation.second], len(SIZES), 2)
    grid = sum_grid(federation.reach)
    plan = SumPlan(federation.offsets, federation.first, federation.weights, grid, clips)
    prepared = engine.prepared_sum(federation.x, federation.y, plan)
    generator = torch.Generator().manual_seed(8)
    models = [torch.randn(engine.dimension, generator=generator) for _ in range(5)]
    models[2][0] = torch.inf
    expected = []
    for parameters in models:
        tally = NonfiniteRecords()
        fresh = engine.prepared_sum(federation.x, federation.y, plan)(parameters, tally)
        expected.append((fresh, tally.clients, tally.records))
    assert expected[2][2] > expected[0][2] > 0

    def again(number: int) -> bool:
        fresh, clients, records = expected[number % 5]
        tally = NonfiniteRecords()
        found = prepared(models[number % 5], tally)
        return torch.equal(found, fresh) and (tally.clients, tally.records) == (clients, records)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(again, range(100)))

"""A record on which a user's module raises counts as zero: nobody else's data decide over it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import GradientEngine, NonfiniteRecords, make_gradient_engine
from tests.gradients.gradient_modules import SHAPE
from tests.gradients.gradient_oracle import flat, offsets_of

SIZES = [3, 5, 40, 1, 6]
RADIUS = np.array([0.5, 0.4, 0.3, 0.7, 0.4])
BAD = 99.0


class Raising(nn.Module):
    """Looks at its records in Python, which torch.func does not allow: a loop does."""

    def __init__(self, error: type[BaseException] = ValueError) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.last = nn.Linear(13, 6), nn.Linear(6, 5)
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if bool((x == BAD).any()):
            raise self.error("a record's secret")
        return self.last(hidden)


class Exiting(Raising):
    def __init__(self) -> None:
        super().__init__(SystemExit)


class Indexed(nn.Module):
    """torch.func serves it; an index beyond the table raises."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.table, self.head = nn.Embedding(7, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(x.abs().floor().long())).mean(1))


MODULES = {"torch.func": Indexed, "functional loop": Raising, "exits": Exiting}


def problem() -> tuple[Tensor, Tensor, np.ndarray]:
    generator = torch.Generator().manual_seed(7)
    offsets = offsets_of(SIZES)
    x = torch.randn(int(offsets[-1]), 13, generator=generator)
    return x, torch.randint(0, 5, (len(x),), generator=generator), offsets


def computed(
    engine: GradientEngine, x: Tensor, y: Tensor, theta: Tensor
) -> tuple[Tensor, NonfiniteRecords]:
    found = NonfiniteRecords()
    rows = engine.client_means(theta, x, y, offsets_of(SIZES), RADIUS, nonfinite=found)
    return rows, found


@pytest.mark.parametrize("path", MODULES)
def test_a_raising_record_counts_as_zero_and_no_other_row_changes(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    module = MODULES[path]()
    engine, theta = make_gradient_engine(module, shape=SHAPE, clip="record"), flat(module)
    x, y, offsets = problem()
    clean, found = computed(engine, x, y, theta)
    assert found == NonfiniteRecords() and not caplog.records
    assert engine.path == ("functional loop" if path == "exits" else path)
    for client in (1, 2, 3):
        bad = x.clone()
        bad[int(offsets[client])] = BAD
        rows, found = computed(engine, bad, y, theta)
        assert found == NonfiniteRecords(1, 1)
        others = [k for k in range(len(SIZES)) if k != client]
        assert torch.equal(rows[others], clean[others])
        assert float((rows - clean)[client].norm()) <= 2.0 * RADIUS[client] / SIZES[client]
        # The record's label is no way to the same zero: it has the same bits.
        unusable = y.clone()
        unusable[int(offsets[client])] = -1
        assert torch.equal(rows, computed(engine, x, unusable, theta)[0])
        # And the engine is none the worse.
        assert torch.equal(computed(engine, x, y, theta)[0], clean)
    assert {record.name for record in caplog.records} == {"fl_shuffle.client.gradients"}


@pytest.mark.parametrize("path", MODULES)
def test_where_no_record_is_clipped_the_mean_of_the_raising_one_is_not_finite(path: str) -> None:
    """`ClippedRows` makes zeros of it."""
    module = MODULES[path]()
    engine, theta = make_gradient_engine(module, shape=SHAPE, clip="none"), flat(module)
    x, y, offsets = problem()
    clean, _ = computed(engine, x, y, theta)
    x[int(offsets[2]) + 7] = BAD
    rows, _ = computed(engine, x, y, theta)
    assert bool(rows[2].isnan().all())
    assert torch.equal(rows[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


def test_a_local_update_that_raises_is_not_finite_and_the_others_are_as_ever() -> None:
    module = Raising()
    engine, theta = make_gradient_engine(module, shape=SHAPE, clip="none"), flat(module)
    x, y, offsets = problem()

    def updates() -> Tensor:
        return engine.local_update(theta, x, y, offsets, steps=2, learning_rate=0.1)

    clean = updates()
    x[int(offsets[1])] = BAD
    rows = updates()
    assert bool(rows[1].isnan().all())
    assert torch.equal(rows[[0, 2, 3, 4]], clean[[0, 2, 3, 4]])


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(13, 5)

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no record's doing")


@pytest.mark.parametrize("clip", ["record", "none"])
def test_a_broken_module_is_heard(clip: str) -> None:
    module = Broken()
    x, y, _ = problem()
    with pytest.raises(RuntimeError, match="no record's doing"):
        computed(make_gradient_engine(module, shape=SHAPE, clip=clip), x, y, flat(module))


def test_a_lack_of_memory_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """What records raise together and none of them alone."""
    module = Indexed()
    x, y, _ = problem()
    engine = make_gradient_engine(module, shape=SHAPE, clip="record")
    right = engine._by_vmap  # type: ignore[attr-defined]

    def full(parameters: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        if len(inputs) > 2:
            raise RuntimeError("out of memory")
        return right(parameters, inputs, labels)

    monkeypatch.setattr(engine, "_by_vmap", full)
    with pytest.raises(RuntimeError, match="out of memory"):
        computed(engine, x, y, flat(module))

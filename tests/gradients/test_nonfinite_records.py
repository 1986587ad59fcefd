"""A record whose gradient is not finite, or whose label is no class, counts as zero; no client is
left out for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import GradientEngine, NonfiniteRecords, make_gradient_engine
from tests.gradients.gradient_modules import (
    NETWORKS,
    SHAPE,
    Branching,
    Small,
    Tied,
    chains,
    problem_of,
    records_of,
    shape_of,
)
from tests.gradients.gradient_oracle import flat, offsets_of

torch.manual_seed(2)
MODULES: dict[str, nn.Module] = {
    "linear": chains()["linear"],
    "linear, compiled": chains()["linear, compiled"],
    "relu": chains()["relu"],
    "tanh, gelu": chains()["tanh, gelu"],
    "convolution": Small(),
    "branching": Branching(),
    "lines": NETWORKS["lines"],
}
SIZES = [3, 5, 70, 1, 5, 33]
RADIUS = np.array([0.5, 0.4, 0.3, 0.7, 0.4, 0.2])


class Overflowing(nn.Module):
    """The gradient of a record with a large first feature is finite, its float32 norm is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(13, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).clamp(-1.0, 1.0) + 1e25 * self.layer.bias * (x[:, :1] > 1e3)


def problem(name: str = "linear") -> tuple[Tensor, Tensor, np.ndarray]:
    return problem_of(name, SIZES, 7)


def computed(
    engine: GradientEngine, theta: Tensor, x: Tensor, y: Tensor, offsets: np.ndarray,
    radius: np.ndarray,
) -> tuple[Tensor, NonfiniteRecords]:  # fmt: skip
    found = NonfiniteRecords()
    rows = engine.client_means(theta, x, y, offsets, radius, nonfinite=found)
    assert bool(torch.isfinite(rows).all())
    return rows, found


def poisons(x: Tensor, record: int) -> dict[str, Tensor]:
    """Copies of the records, one of them not finite."""
    result = {}
    for name, value in (("nan", torch.nan), ("inf", torch.inf), ("long", 3e38)):
        result[name] = x.clone()
        result[name][record] = value
    result["one feature"] = x.clone()
    result["one feature"][record] = 0.0
    result["one feature"][record].view(-1)[4] = torch.nan
    return result


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("name", MODULES)
def test_one_nonfinite_record_moves_its_client_no_further_than_any_other(
    name: str, norm: int
) -> None:
    """Replace-one: from finite to nonfinite, from one nonfinite record to two."""
    module = MODULES[name]
    engine = make_gradient_engine(
        module, shape=shape_of(name), clip="record", norm=norm, records=records_of(name)
    )
    theta = flat(module)
    x, y, offsets = problem(name)
    clean, found = computed(engine, theta, x, y, offsets, RADIUS)
    assert found == NonfiniteRecords()
    for client in (1, 2, 3):
        first = int(offsets[client])
        others = [k for k in range(len(SIZES)) if k != client]
        allowed = 2.0 * RADIUS[client] / SIZES[client]
        for kind, bad in poisons(x, first).items():
            rows, found = computed(engine, theta, bad, y, offsets, RADIUS)
            if kind != "long":  # finite where an activation or a norm brings it back to scale
                assert found == NonfiniteRecords(1, 1)
                without = rows[client] * SIZES[client]
                if SIZES[client] > 1:
                    left = slice(first + 1, int(offsets[client + 1]))
                    rest, _ = computed(
                        engine, theta, x[left], y[left], offsets_of([SIZES[client] - 1]),
                        RADIUS[client : client + 1],
                    )  # fmt: skip
                    torch.testing.assert_close(
                        without, rest[0] * (SIZES[client] - 1), rtol=1e-3, atol=1e-5
                    )
                else:
                    assert not rows[client].any()
            assert torch.equal(rows[others], clean[others])
            moved = torch.linalg.vector_norm((rows - clean)[client].double(), norm)
            assert float(moved) <= allowed
            assert float(torch.linalg.vector_norm(rows[client].double(), norm)) <= RADIUS[client]
            if SIZES[client] > 1 and kind != "long":
                worse = bad.clone()
                worse[first + 1] = torch.inf
                again, found = computed(engine, theta, worse, y, offsets, RADIUS)
                assert found == NonfiniteRecords(1, 2)
                moved = torch.linalg.vector_norm((rows - again)[client].double(), norm)
                assert float(moved) <= allowed


def test_a_gradient_whose_length_float32_cannot_hold_is_clipped_like_any_other() -> None:
    torch.manual_seed(0)  # with some weights the huge record is simply right
    module = Overflowing()
    engine, theta = make_gradient_engine(module, shape=SHAPE, clip="record"), flat(module)
    x, y, offsets = problem()
    y[:] = 1
    clean, _ = computed(engine, theta, x, y, offsets, RADIUS)
    bad = x.clone()
    bad[offsets[2], 0] = 2e3
    leaf = theta.clone().requires_grad_()
    logits = torch.func.functional_call(
        module, {"layer.weight": leaf[:65].view(5, 13), "layer.bias": leaf[65:]},
        (bad[offsets[2] : offsets[2] + 1],),
    )  # fmt: skip
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(logits, y[:1]), leaf)
    assert bool(torch.isfinite(gradient).all())
    assert float(torch.linalg.vector_norm(gradient.double())) > 1e20
    rows, found = computed(engine, theta, bad, y, offsets, RADIUS)
    assert found == NonfiniteRecords()
    moved = float(torch.linalg.vector_norm((rows - clean)[2].double()))
    assert 0.0 < moved <= 2.0 * RADIUS[2] / SIZES[2]


@pytest.mark.parametrize("clip", ["record", "none"])
@pytest.mark.parametrize("name", MODULES)
def test_a_label_that_is_no_class_is_a_record_like_one_that_is_not_finite(
    name: str, clip: str
) -> None:
    module = MODULES[name]
    theta = flat(module)
    x, y, offsets = problem(name)
    for record, label in ((int(offsets[2]) + 40, 5), (int(offsets[1]), -1), (0, 1 << 40)):
        poisoned, wrong = x.clone(), y.clone()
        poisoned[record], wrong[record] = torch.nan, label
        engine = make_gradient_engine(
            module, shape=shape_of(name), clip=clip, records=records_of(name)
        )
        found, expected = NonfiniteRecords(), NonfiniteRecords()
        rows = engine.client_means(theta, x, wrong, offsets, RADIUS, nonfinite=found)
        same = engine.client_means(theta, poisoned, y, offsets, RADIUS, nonfinite=expected)
        assert found == expected
        if clip != "none":
            assert torch.equal(rows, same)
            continue
        own = sum(record >= offsets[1:])
        others = [k for k in range(len(SIZES)) if k != own]
        assert torch.equal(rows[others], same[others])
        assert not bool(torch.isfinite(rows[own]).all())
        update = engine.local_update(theta, x, wrong, offsets, steps=2, learning_rate=0.1)
        assert bool(torch.isfinite(update[others]).all())
        assert not bool(torch.isfinite(update[own]).all())


def test_a_nonfinite_first_record_does_not_choose_the_path() -> None:
    """The path, hence everybody's rounding, is that of the module."""
    x, y, offsets = problem()
    paths = set()
    for value in (0.0, torch.nan, torch.inf):
        bad = x.clone()
        bad[:2] = value
        engine = make_gradient_engine(Tied(), shape=SHAPE, clip="record")
        computed(engine, flat(Tied()), bad, y, offsets, RADIUS)
        paths.add(engine.path)
    assert paths == {"torch.func"}

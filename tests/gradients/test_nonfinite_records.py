"""A record whose gradient is not finite counts as zero, and no client is left out for it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from gradient_modules import Branching, Small, chains, records_of
from gradient_oracle import flat, offsets_of
from torch import Tensor, nn

from fl_shuffle.gradients import GradientEngine, Spoilt, make_gradient_engine, mend_, spoilt

torch.manual_seed(2)
MODULES: dict[str, nn.Module] = {
    "linear": chains()["linear"],
    "linear, compiled": chains()["linear, compiled"],
    "relu": chains()["relu"],
    "tanh, gelu": chains()["tanh, gelu"],
    "convolution": Small(),
    "branching": Branching(),
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


def problem(sizes: list[int] = SIZES) -> tuple[Tensor, Tensor, np.ndarray]:
    generator = torch.Generator().manual_seed(7)
    offsets = offsets_of(sizes)
    x = torch.randn(int(offsets[-1]), 13, generator=generator)
    return x, torch.randint(0, 5, (len(x),), generator=generator), offsets


def mended(
    engine: GradientEngine, theta: Tensor, x: Tensor, y: Tensor, offsets: np.ndarray,
    radius: np.ndarray,
) -> tuple[Tensor, Spoilt]:  # fmt: skip
    rows = engine.client_means(theta, x, y, offsets, radius)
    found = mend_(engine, rows, theta, x, y, offsets, radius)
    assert bool(torch.isfinite(rows).all())
    return rows, found


def poisons(x: Tensor, record: int) -> dict[str, Tensor]:
    """Copies of the records, one of them spoilt."""
    result = {}
    for name, value in (("nan", torch.nan), ("inf", torch.inf), ("long", 3e38)):
        result[name] = x.clone()
        result[name][record] = value
    result["one feature"] = x.clone()
    result["one feature"][record] = 0.0
    result["one feature"][record, 4] = torch.nan
    return result


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("name", MODULES)
def test_one_spoilt_record_moves_its_client_no_further_than_any_other(name: str, norm: int) -> None:
    """Replace-one: from finite to spoilt, from one spoilt record to two."""
    module = MODULES[name]
    engine = make_gradient_engine(module, clip="record", norm=norm, records=records_of(name))
    theta = flat(module)
    x, y, offsets = problem()
    clean, found = mended(engine, theta, x, y, offsets, RADIUS)
    assert found == Spoilt()
    for client in (1, 2, 3):
        first = int(offsets[client])
        others = [k for k in range(len(SIZES)) if k != client]
        allowed = 2.0 * RADIUS[client] / SIZES[client] + SIZES[client] * 2.0**-24 * RADIUS[client]
        for kind, bad in poisons(x, first).items():
            rows, found = mended(engine, theta, bad, y, offsets, RADIUS)
            if kind != "long":  # finite where an activation or a norm brings it back to scale
                assert found == Spoilt(1, 1)
                without = rows[client] * SIZES[client]
                if SIZES[client] > 1:
                    left = slice(first + 1, int(offsets[client + 1]))
                    rest, _ = mended(
                        engine, theta, x[left], y[left], offsets_of([SIZES[client] - 1]),
                        RADIUS[client : client + 1],
                    )  # fmt: skip
                    torch.testing.assert_close(
                        without, rest[0] * (SIZES[client] - 1), rtol=1e-4, atol=1e-5
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
                again, found = mended(engine, theta, worse, y, offsets, RADIUS)
                assert found == Spoilt(1, 2)
                moved = torch.linalg.vector_norm((rows - again)[client].double(), norm)
                assert float(moved) <= allowed


def test_a_gradient_that_is_finite_but_too_long_counts_as_zero() -> None:
    module = Overflowing()
    engine, theta = make_gradient_engine(module, clip="record"), flat(module)
    x, y, offsets = problem()
    y[:] = 1
    clean, _ = mended(engine, theta, x, y, offsets, RADIUS)
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
    rows, found = mended(engine, theta, bad, y, offsets, RADIUS)
    assert found == Spoilt(1, 1)
    moved = float(torch.linalg.vector_norm((rows - clean)[2].double()))
    assert 0.0 < moved <= 2.0 * RADIUS[2] / SIZES[2]


@pytest.mark.parametrize("name", MODULES)
def test_bits_of_spoilt_clients_do_not_depend_on_the_packing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = MODULES[name]
    theta = flat(module)
    x, y, offsets = problem()
    for record in (0, int(offsets[2]) + 40, int(offsets[5])):
        x[record] = torch.nan
    together, found = mended(
        make_gradient_engine(module, clip="record", records=records_of(name)),
        theta,
        x,
        y,
        offsets,
        RADIUS,
    )
    assert found == Spoilt(3, 3)
    mindful = make_gradient_engine(module, clip="record", records=records_of(name))
    mindful.remember(x)
    assert torch.equal(mended(mindful, theta, x, y, offsets, RADIUS)[0], together)
    engine = make_gradient_engine(module, clip="record", records=records_of(name))
    for client, (start, stop) in enumerate(pairwise(offsets)):
        alone, _ = mended(
            engine, theta, x[start:stop], y[start:stop], offsets_of([stop - start]),
            RADIUS[client : client + 1],
        )  # fmt: skip
        assert torch.equal(alone[0], together[client])
    order = [5, 0, 2, 1]
    index = torch.cat([torch.arange(offsets[k], offsets[k + 1]) for k in order])
    shuffled, _ = mended(
        engine, theta, x[index], y[index], offsets_of([SIZES[k] for k in order]), RADIUS[order]
    )
    assert torch.equal(shuffled, together[order])
    # In many blocks the sum is another rounding of the same numbers.
    monkeypatch.setattr(spoilt, "HELD_NUMBERS", 7 * engine.dimension)
    torch.testing.assert_close(mended(engine, theta, x, y, offsets, RADIUS)[0], together)


def test_a_spoilt_first_record_does_not_choose_the_path() -> None:
    """The path, hence everybody's rounding, is that of the module."""
    x, y, offsets = problem()
    paths = set()
    for value in (0.0, torch.nan, torch.inf):
        bad = x.clone()
        bad[:2] = value
        engine = make_gradient_engine(Small(), clip="record")
        mended(engine, flat(Small()), bad, y, offsets, RADIUS)
        paths.add(engine.path)
    assert paths == {"torch.func"}


@pytest.mark.parametrize("name", ["relu", "convolution"])
def test_a_spoilt_average_is_zero(name: str) -> None:
    module = MODULES[name]
    engine, theta = make_gradient_engine(module, clip="average"), flat(module)
    x, y, offsets = problem()
    clean, _ = mended(engine, theta, x, y, offsets, RADIUS)
    x[offsets[2]] = torch.nan
    rows, found = mended(engine, theta, x, y, offsets, RADIUS)
    assert found == Spoilt(1)
    assert not rows[2].any()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(rows[others], clean[others])

"""A client's row has the same bits whoever is computed beside it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from gradient_modules import Cells, Small, chains, records_of
from gradient_oracle import flat, offsets_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fl_shuffle.gradients import GradientEngine, chain, make_gradient_engine
from fl_shuffle.gradients.blocks import blocks
from fl_shuffle.gradients.steadiness import Steady

torch.manual_seed(8)
MODELS = {
    **chains(),
    "wide": nn.Sequential(nn.Linear(13, 700), nn.ReLU(), nn.Linear(700, 10)),
    "deep": nn.Sequential(
        nn.Linear(13, 130), nn.SiLU(), nn.Linear(130, 70), nn.ReLU(), nn.Linear(70, 10)
    ),
    "convolution": Small(),
    "cells": Cells(),
}
PARAMETERS = {name: flat(model) for name, model in MODELS.items()}


def data(sizes: list[int], seed: int) -> tuple[Tensor, Tensor, np.ndarray, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    offsets = offsets_of(sizes)
    x = torch.randn(int(offsets[-1]), 13, generator=generator)
    y = torch.randint(0, 5, (len(x),), generator=generator)
    return x, y, offsets, 0.1 + torch.rand(len(sizes), generator=generator)


def packed(
    engine: GradientEngine,
    theta: Tensor,
    problem: tuple[Tensor, Tensor, np.ndarray, Tensor],
    packs: list[list[int]],
) -> Tensor:
    """Rows of the clients, computed in these packs, whatever their order."""
    x, y, offsets, radius = problem
    rows = torch.full((len(radius), engine.dimension), torch.nan)
    for pack in packs:
        index = torch.cat([torch.arange(offsets[k], offsets[k + 1]) for k in pack])
        local = offsets_of([int(offsets[k + 1] - offsets[k]) for k in pack])
        rows[pack] = engine.client_means(theta, x[index], y[index], local, radius[pack])
    return rows


@st.composite
def packings(draw: st.DrawFn) -> tuple[list[int], list[list[int]], int]:
    sizes = draw(
        st.lists(st.sampled_from([1, 2, 3, 5, 16, 17, 60, 64, 91]), min_size=2, max_size=24)
    )
    if draw(st.booleans()):
        sizes = [sizes[0]] * len(sizes)
    order = draw(st.permutations(range(len(sizes))))
    cuts = sorted(draw(st.sets(st.integers(1, len(sizes) - 1))))
    return (
        sizes,
        [list(order[a:b]) for a, b in pairwise([0, *cuts, len(sizes)])],
        draw(st.integers(0, 1000)),
    )


@pytest.mark.parametrize("clip", ["record", "none"])
@pytest.mark.parametrize("name", MODELS)
def test_bits_do_not_depend_on_the_packing(name: str, clip: str) -> None:
    engines = [
        make_gradient_engine(MODELS[name], clip=clip, norm=norm, records=records_of(name))
        for norm in (1, 2)
    ]
    theta = PARAMETERS[name]

    @settings(max_examples=5 if name in ("convolution", "cells") else 12, deadline=None)
    @given(packings(), st.sampled_from(engines))
    def check(packing: tuple[list[int], list[list[int]], int], engine: GradientEngine) -> None:
        sizes, packs, seed = packing
        problem = data(sizes, seed)
        together = packed(engine, theta, problem, [list(range(len(sizes)))])
        assert bool(torch.isfinite(together).all())
        assert torch.equal(together, packed(engine, theta, problem, packs))
        alone = packed(engine, theta, problem, [[k] for k in range(len(sizes))])
        assert torch.equal(together, alone)

    check()


@pytest.mark.parametrize(
    ("features", "hidden", "size", "clients"),
    [(60, 1000, 600, 3), (60, 1000, 60, 30), (60, 0, 60, 400), (60, 0, 6, 3000), (60, 0, 1, 9000)],
)
@pytest.mark.parametrize("clip", ["record", "none"])
@pytest.mark.parametrize("records", [0, 1 << 40])
def test_bits_of_large_equal_packs(
    features: int, hidden: int, size: int, clients: int, clip: str, records: int
) -> None:
    if hidden and records:
        return  # The same path as without.
    generator = torch.Generator().manual_seed(4)
    torch.manual_seed(4)
    module: nn.Module = nn.Linear(features, 10)
    if hidden:
        module = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    theta = flat(module)
    x = torch.randn(clients * size, features, generator=generator)
    y = torch.randint(0, 10, (len(x),), generator=generator)
    engine = make_gradient_engine(module, clip=clip, records=records)
    together = engine.client_means(theta, x, y, offsets_of([size] * clients), 0.5)
    edges = [0, 1, 2, clients // 3, clients // 2, clients - 1, clients]
    for start, stop in pairwise(sorted(set(edges))):
        members = slice(start * size, stop * size)
        local = offsets_of([size] * (stop - start))
        # An unaligned copy, as a gather in another pack would make.
        shifted = torch.empty(1 + x[members].numel())[1:].view(-1, features).copy_(x[members])
        assert torch.equal(
            together[start:stop], engine.client_means(theta, shifted, y[members], local, 0.5)
        )


def test_bits_do_not_depend_on_threads_or_the_layout_of_out() -> None:
    problem = data([60] * 50, 1)
    x, y, offsets, radius = problem
    for name in ("wide", "deep", "linear", "linear, compiled"):
        engine = make_gradient_engine(MODELS[name], clip="record", records=records_of(name))
        theta = PARAMETERS[name]
        expected = engine.client_means(theta, x, y, offsets, radius)
        with ThreadPoolExecutor(4) as pool:
            calls = [
                pool.submit(packed, engine, theta, problem, [list(range(k, 50)), list(range(k))])
                for k in range(1, 9)
            ]
            assert all(torch.equal(call.result(), expected) for call in calls)
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            assert torch.equal(engine.client_means(theta, x, y, offsets, radius), expected)
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(threads)
        wide = torch.zeros(50, engine.dimension + 7)
        view = wide[:, 3:-4]
        assert engine.client_means(theta, x, y, offsets, radius, view) is view
        assert torch.equal(view, expected)
        assert not wide[:, :3].any()
        assert not wide[:, -4:].any()


@pytest.mark.parametrize(
    "name", ["linear", "linear, compiled", "wide", "deep", "tanh, gelu", "convolution"]
)
def test_bits_of_local_updates_do_not_depend_on_the_packing(name: str) -> None:
    sizes = [3, 1, 40, 3, 3, 91, 1, 40]
    x, y, offsets, _ = data(sizes, 6)
    engine = make_gradient_engine(MODELS[name], clip="none", records=records_of(name))
    theta = PARAMETERS[name]
    together = engine.local_update(theta, x, y, offsets, steps=3, learning_rate=0.2)
    for client, (start, stop) in enumerate(pairwise(offsets)):
        local = np.array([0, stop - start])
        alone = engine.local_update(
            theta, x[start:stop], y[start:stop], local, steps=3, learning_rate=0.2
        )
        assert torch.equal(together[client], alone[0])


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([1, 8, 64]),
)
@settings(max_examples=200, deadline=None)
def test_blocks_cover_every_record_once(
    sizes: list[int], factor: int, clients: int, grain: int
) -> None:
    bounds = offsets_of(sizes)
    rows = factor * grain
    covered = np.zeros(int(bounds[-1]), dtype=int)
    seen = np.zeros(len(sizes), dtype=int)
    for block in blocks(bounds, rows, clients, grain):
        assert 0 < block.stop - block.start <= rows
        end = 0
        for part in block.segments:
            assert part.row == end
            end += part.count * part.size
            for client in range(part.client, part.client + part.count):
                assert part.total == sizes[client]
                assert part.add == (seen[client] > 0)
                seen[client] += part.size
        assert end == block.stop - block.start
        assert sum(part.count for part in block.segments) <= clients
        covered[block.start : block.stop] += 1
    assert (covered == 1).all()
    assert (seen == sizes).all()


@pytest.mark.parametrize("form", ["tiles", "clients"])
@pytest.mark.parametrize("name", ["linear", "wide", "deep"])
def test_processors_that_need_other_forms_get_the_same_gradients(
    name: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products by tiles, or client by client, forced here: same values, and bits in any packing."""
    problem = data([5, 70, 5, 1, 5, 300, 33, 17], 4)
    together = [list(range(8))]
    usual = packed(
        make_gradient_engine(MODELS[name], clip="record"), PARAMETERS[name], problem, together
    )
    monkeypatch.setattr(chain, "steady_products", lambda *_: Steady(form))
    engine = make_gradient_engine(MODELS[name], clip="record")
    rows = packed(engine, PARAMETERS[name], problem, together)
    torch.testing.assert_close(rows, usual, rtol=1e-4, atol=1e-6)
    for packs in ([[k] for k in range(8)], [[7, 2, 0], [5, 1], [6, 3, 4]]):
        assert torch.equal(packed(engine, PARAMETERS[name], problem, packs), rows)
    engine.remember(problem[0])
    assert torch.equal(
        engine.client_means(PARAMETERS[name], *problem[:3], clip_radius=problem[3]), rows
    )


@pytest.mark.parametrize("clip", ["record", "average", "none"])
def test_long_and_short_clients_share_a_compiled_call(clip: str) -> None:
    name = "linear, compiled"
    problem = data([5, 600, 513, 1, 512, 70, 2000, 33], 5)
    engine = make_gradient_engine(MODELS[name], clip=clip, records=records_of(name))
    if clip == "record":
        engine.remember(problem[0])
    theta = PARAMETERS[name]
    together = engine.client_means(theta, *problem[:3], clip_radius=problem[3])
    for packs in ([[k] for k in range(8)], [[7, 2, 0], [5, 1], [6, 3, 4]]):
        assert torch.equal(packed(engine, theta, problem, packs), together)
    plain = make_gradient_engine(MODELS[name], clip=clip)
    torch.testing.assert_close(
        together,
        plain.client_means(theta, *problem[:3], clip_radius=problem[3]),
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.parametrize(("clip", "norm"), [("record", 1), ("record", 2), ("average", 2)])
def test_remembered_records_give_the_same_bits(clip: str, norm: int) -> None:
    x, y, offsets, radius = data([5, 70, 5, 1, 300, 33], 3)
    for name in ("linear", "linear, compiled", "wide", "convolution"):
        plain, mindful = (
            make_gradient_engine(MODELS[name], clip=clip, norm=norm, records=records_of(name))
            for _ in "ab"
        )
        mindful.remember(x)
        theta = PARAMETERS[name]
        expected = plain.client_means(theta, x, y, offsets, radius)
        assert torch.equal(mindful.client_means(theta, x, y, offsets, radius), expected)
        for first, last in ((1, 3), (2, 6), (3, 4)):
            members = slice(int(offsets[first]), int(offsets[last]))
            local = offsets[first : last + 1] - offsets[first]
            for inputs in (x[members], x[members].clone()):
                rows = mindful.client_means(theta, inputs, y[members], local, radius[first:last])
                assert torch.equal(rows, expected[first:last])
        # Other records, in other memory, are measured anew.
        doubled = 2.0 * x
        assert torch.equal(
            mindful.client_means(theta, doubled, y, offsets, radius),
            plain.client_means(theta, doubled, y, offsets, radius),
        )

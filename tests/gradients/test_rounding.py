"""Rounding included, a record moves its client's mean by at most 2 clip / records; and what follows
a mean, a second clip or a weight, by no more than the plan says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.gradients import rounding
from fl_shuffle.gradients.clipper import ClientRecords, engine_clip
from fl_shuffle.gradients.row_clips import clip_rows
from fl_shuffle.randomizers.additive import weigh_
from fl_shuffle.randomizers.calibration import make_plan
from tests.gradients.gradient_modules import Branching, OwnForward, OwnProduct, Problem


def linear(path: str, size: int, norm: int, radius: float = 0.7, features: int = 13) -> Problem:
    """A client of so many records of two classes, and weights of zero: a record's gradients under
    the two labels are opposite."""
    layer = nn.Linear(features, 2, bias=False)
    others = {
        "layers": OwnForward(layer),
        "torch.func": OwnProduct(layer),
        "functional loop": Branching(features, 2, bias=False),
    }
    module = others.get(path, layer)
    problem = Problem(path, [size], module=module, norm=norm, radius=radius)
    problem.theta = torch.zeros_like(problem.theta)
    return problem


def apart(problem: Problem, one: Tensor, other: Tensor) -> float:
    """How far the client's two means are from one another, over 2 C / B."""
    length = float(torch.linalg.vector_norm(one.double() - other.double(), problem.norm))
    return length * problem.sizes[0] / (2.0 * float(problem.radius))


def farthest(path: str, size: int, norm: int) -> float:
    """How far relabelling one of `size` equal records moves the mean."""
    problem, found = linear(path, size, norm), []
    y = torch.zeros_like(problem.y)
    # Sums of equal records round in one direction.
    for seed in range(3 if size < 1000 else 1):
        record = 9.0 * torch.rand(1, 13, generator=torch.Generator().manual_seed(seed))
        x = record.expand(size, 13)
        base = problem.rows(x, y)
        assert problem.engine.path == path
        for place in (0, size // 3, size - 1)[: 3 if size < 1000 else 1]:
            other = y.clone()
            other[place] = 1
            found.append(apart(problem, problem.rows(x, other), base))
    return max(found)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("closed-form network", [2, 700, 65_536]),
        ("closed-form linear, compiled", [2, 9, 700, 65_536]),
        ("layers", [2, 700, 8_192]),
        ("torch.func", [2, 700, 8_192]),
        ("functional loop", [2, 70]),
    ],
)
def test_one_record_moves_a_mean_by_at_most_the_sensitivity(
    name: str, sizes: list[int], norm: int
) -> None:
    # The test would see it: the records are clipped and turned around.
    assert all(0.99 < farthest(name, size, norm) <= 1.0 for size in sizes)


def test_bounds_against_the_worst_that_sums_can_do() -> None:
    """Shares of one, added one after the other; every sum with the first one errs by all it may."""
    tile = 32
    sizes = np.array([1, 2, 31, 32, 33, 64, 65, 128, 129, 1000, 65_536])
    bounds = rounding.move_error_float32(sizes, tile)
    for size, found in zip(sizes.tolist(), bounds.tolist(), strict=True):
        inside = min(size, tile)
        # Of its own stretch: a product's rounding for every share, then the sums.
        units = inside + sum(range(2, inside + 1)) if size > 1 else 0
        groups = -(-size // tile)
        expected = units * 2.0**-24
        if groups > 1:
            exact = sum(min(k * tile, size) for k in range(2, groups + 1))
            expected += exact * 2.0**-53 + size * 2.0**-24
        assert found >= expected * (1.0 - 1e-12)
        assert found <= 1.5 * expected + 2 * tile * 2.0**-24


@pytest.mark.parametrize("terms", [1, 2, 100, 1_000_000])
def test_a_length_errs_by_no_more_than_is_allowed_for(terms: int) -> None:
    """Standard model: so many additions less one, half of that behind a square root, which rounds
    itself, as every square does."""
    half_ulp = 2.0**-24
    assert rounding.length_error(terms, 1) >= (terms - 1) * half_ulp
    assert rounding.length_error(terms, 2) >= 0.5 * terms * half_ulp + half_ulp


@pytest.mark.parametrize("many", [1, 5, 1_000])
@pytest.mark.parametrize("weights", ["uniform", "inverse-variance"])
def test_a_second_clip_as_wide_as_the_first_does_nothing_in_l1(many: int, weights: str) -> None:
    """There it is no contraction: it would stretch the move of a record."""
    privacy = {"randomizer": "laplace", "clip_norm": 1.0, "client_clip_norm": 1.0}
    tables = {"data": {"clients": 2}, "privacy": privacy, "server": {"weights": weights}}
    config = parse_config(tables)
    plan = make_plan(config, Budgets(np.array([1.0, 2.5]), np.full(2, 1e-5)), np.full(2, many))
    records = ClientRecords(torch.zeros(0), torch.zeros(0), many * np.arange(3))
    radius = engine_clip(config, records, plan)
    assert plan.mean_clip is not None
    rows = torch.from_numpy(np.outer(radius, [0.75, -0.25, 0.0])).float()
    before = rows.clone()
    clip_rows(rows, plan.mean_clip, plan.norm)
    assert torch.equal(rows, before)


@pytest.mark.parametrize("norm", [1, 2])
def test_whole_means_of_a_million_numbers_stay_in_their_radius(norm: int) -> None:
    """Float32 norms of so many numbers were off by 1e-4."""
    for value in (1.0, 1.1, 0.3):
        update = torch.full((1, 1_000_000), value)
        assert clip_rows(update, 0.01, norm).all()
        length = float(torch.linalg.vector_norm(update.double(), norm))
        assert 0.01 * (1.0 - 1e-4) < length <= 0.01


def across_a_power_of_two(size: int) -> Tensor:
    """Records' features [size, 1] for gradients (-x/2, x/2) whose float32 sum drifts, or does not.

    Half of them carry the mean to 1 (x = 4), or, with the first one negated, to just below. Above 1
    floats lie twice as far apart: there the others, 1.25 and -0.75 of the spacing below 1, one
    after the other, round to +2 and 0 spacings, and to +1 and -1 below.
    """
    x = torch.full((size, 1), 4.0)
    spacing = 2.0 * size * 2.0**-24
    x[size // 2 :: 2] = 1.25 * spacing
    x[size // 2 + 1 :: 2] = -0.75 * spacing
    return x


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("path", ["closed-form network", "closed-form linear, compiled"])
def test_records_that_break_running_sums_in_float32(norm: int, path: str) -> None:
    size, radius = 65_536, 2.95 if norm == 2 else 4.1
    x = across_a_power_of_two(size)
    neighbour = x.clone()
    neighbour[0] *= -1.0
    # The records have the power: added one after the other in float32 they move it 30 times as far.
    shares = [(0.5 * records / size).numpy().ravel() for records in (x, neighbour)]
    running, moved = (np.add.accumulate(share, dtype=np.float32)[-1] for share in shares)
    length = abs(float(running) - float(moved)) * 2.0 ** (1.0 / norm)
    assert length > 20.0 * 2.0 * radius / size

    problem, labels = linear(path, size, norm, radius, 1), torch.ones(size, dtype=torch.int64)
    assert 0.9 < apart(problem, *(problem.rows(given, labels) for given in (x, neighbour))) <= 1.0
    assert problem.engine.path == path


DIMENSION = 27
"""Of a linear model of 8 features and 3 classes."""


def across(radius: float, many: int, draw: np.random.Generator) -> list[np.ndarray]:
    """Means along one axis, about as long as a second clip of 0.35; and a record across them turns
    around, which another one had made up for."""
    before = np.zeros((200, DIMENSION), np.float32)
    before[:, 0] = 0.35 * draw.uniform(0.9, 1.1, 200)
    after = before.copy()
    after[:, 1] = 0.99999 * 2.0 * radius / many
    return [before, after]


def all_alike(radius: float, many: int, draw: np.random.Generator) -> list[np.ndarray]:
    """All coordinates equal, and all a record's share lower: products with a weight round each
    of them alike."""
    longest = draw.uniform(0.5, 1.0, (60, 1)) * radius
    before = np.repeat((longest / DIMENSION**0.5).astype(np.float32), DIMENSION, axis=1)
    spacing = np.spacing(before)
    share = np.floor(2.0 * radius / many / DIMENSION**0.5 / spacing) * spacing
    return [before, before - share.astype(np.float32)]


def at_the_sphere(radius: float, many: int, draw: np.random.Generator) -> list[np.ndarray]:
    """Means a little longer than a second clip of 1 (or as long as they may be), and as far apart
    as a record's share across them."""
    before, aside = draw.standard_normal((2, 20_000, DIMENSION))
    longest = np.minimum(draw.uniform(1.0, 1.00001, (len(before), 1)), 0.999 * radius)
    before *= longest / lengths(before)
    aside -= before * np.sum(before * aside, axis=1, keepdims=True) / lengths(before) ** 2
    after = before + aside * (0.97 * 2.0 * radius / many) / lengths(aside)
    return [rows.astype(np.float32) for rows in (before, after)]


def lengths(rows: np.ndarray, norm: int = 2) -> np.ndarray:
    return np.linalg.norm(rows.astype(np.float64), norm, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("pairs", "many", "privacy", "weights", "least"),
    [
        (all_alike, 65_536, {}, "inverse-variance", 0.99),
        (at_the_sphere, 1 << 22, {"clip_norm": 1.01, "client_clip_norm": 1.0}, "uniform", 0.3),
        # In l2 a second clip leaves a record its own reach; in l1 scaling is no contraction.
        (across, 20, {"client_clip_norm": 0.35}, "uniform", 0.9),
        (across, 20, {"client_clip_norm": 0.35, "randomizer": "laplace"}, "uniform", 0.6),
    ],
    ids=["a weight", "a second clip", "turned around", "turned around in l1"],
)
def test_what_follows_a_mean_keeps_the_move_of_a_record(
    pairs: Callable[..., list[np.ndarray]],
    many: int,
    privacy: dict[str, Any],
    weights: str,
    least: float,
) -> None:
    """Of pairs of means as far apart as a record's clip allows, that which is carried farthest; of
    two clients in the record unit."""
    tables = {"data": {"clients": 2}, "privacy": {"unit": "record", "clip_norm": 1.0, **privacy}}
    config = parse_config({**tables, "server": {"weights": weights}})
    plan = make_plan(config, Budgets(np.array([1.0, 2.5]), np.full(2, 1e-5)), np.full(2, many))
    records = ClientRecords(torch.zeros(0), torch.zeros(0), many * np.arange(3))
    radius = float(np.broadcast_to(engine_clip(config, records, plan), 2)[0])
    both = pairs(radius, many, np.random.default_rng(1))
    given = lengths(np.subtract(*both, dtype=np.float64), plan.norm) * many / (2.0 * radius)
    allowed = (given > 0.9) & (given <= 1.0) & (lengths(both[0], plan.norm) <= radius)
    assert allowed.mean() > 0.5
    for rows in map(torch.from_numpy, both):
        if plan.mean_clip is not None:
            clip_rows(rows, plan.mean_clip[0], plan.norm)
        weigh_(rows, np.full(len(rows), plan.weight[0]))
    moved = lengths(np.subtract(*both, dtype=np.float64), plan.norm)[allowed].max()
    assert least < moved / float((plan.weight * plan.sensitivity)[0]) <= 1.0

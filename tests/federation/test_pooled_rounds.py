"""Rounds with pooled noise have the law of rounds of reports: equal means, noise equal in law."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.task import Task
from fl_shuffle.randomizers.aggregate_noise import AggregateNoise
from fl_shuffle.seeds import SeedTree
from fl_shuffle.shuffler.local import ExactSum
from tests.federation.small_tasks import SIZES, configured, parameters_of, task_of
from tests.gradients.tuning import choose_path
from tests.one_node import OneNode

ROUNDS = 2500
EVERYBODY = np.arange(len(SIZES))

FALSE_ALARM = 1e-6
"""Of each comparison, for fresh seeds. Power: see `test_power`."""


def all_but(*missing: int) -> NDArray[np.bool_]:
    return ~np.isin(EVERYBODY, missing)


HERE = all_but()


def personal(noise: str, model: str = "linear", run: str = "per-report", **more: Any) -> Config:
    """Personal scales, and weights that follow from them."""
    base = configured(model=model, randomizer=noise, **more).to_dict()
    base["budgets"] = {"distribution": "uniform", "low": 0.5, "high": 3.0, "seed": 1}
    base["server"]["weights"] = "inverse-variance"
    base["run"]["noise"] = run
    return parse_config(base)


@cache
def sums_of_reports(noise: str, *missing: int) -> NDArray[np.float64]:
    """[ROUNDS, d]: what the server has of each round of reports."""
    config, present = personal(noise), all_but(*missing)
    player = OneNode(config, task_of(config))
    clients = EVERYBODY[present]
    means = player.means(clients, parameters_of(config))
    found = np.empty((ROUNDS, means.shape[1]))
    for number in range(ROUNDS):
        rows = player.federation.randomizer(means.clone(), clients, number)
        added = ExactSum(rows.shape[1])
        assert added.add(rows, task_of(config).plan.largest[clients]).all()
        found[number] = added.total.numpy()
    return found


def noise_of(config: Config, **changed: Any) -> AggregateNoise:
    plan = replace(task_of(config).plan, **changed)
    return AggregateNoise(plan.noise, plan.weight * plan.scale, plan.step)


def pooled_sums(
    config: Config, present: NDArray[np.bool_], noise: AggregateNoise | None = None
) -> NDArray[np.float64]:
    """The same of rounds in which noise is pooled."""
    pooled = parse_config({**config.to_dict(), "run": {"seed": 3, "noise": "pooled"}})
    player = OneNode(pooled, task_of(config))
    total = np.zeros(27)
    for client in EVERYBODY[present].tolist():
        total += player.means(np.array([client]), parameters_of(config)).numpy()
    seeds = SeedTree(12)
    noise = noise or noise_of(config)
    return np.stack(
        [
            noise.add_to(total, present, seeds.numpy_generator(number, "pooled noise"))
            for number in range(ROUNDS)
        ]
    )


def differs(left: NDArray[np.float64], right: NDArray[np.float64]) -> list[str]:
    """In what two samples of rounds [ROUNDS, d] differ, if they do: means, variance of all
    coordinates, correlations, law of one coordinate."""
    rounds, dimension = left.shape
    both = np.concatenate([left, right])
    centred = [side - side.mean(0) for side in (left, right)]
    deviation = math.sqrt(float(np.mean(np.square(np.concatenate(centred)))))
    far = float(stats.norm.isf(FALSE_ALARM / (2 * dimension)))
    found = []
    apart = np.abs(left.mean(0) - right.mean(0)) / (deviation * math.sqrt(2.0 / rounds))
    if apart.max() > far:
        found.append("means")
    squares = [np.square(side / deviation) for side in centred]
    error = math.sqrt(sum(float(np.var(square)) / square.size for square in squares))
    if abs(squares[0].mean() - squares[1].mean()) > float(stats.norm.isf(FALSE_ALARM / 2)) * error:
        found.append("variance")
    for side in centred:
        correlations = np.corrcoef(side.T)[np.triu_indices(dimension, 1)]
        if np.abs(correlations).max() * math.sqrt(rounds) > 1.05 * float(
            stats.norm.isf(FALSE_ALARM / (2 * correlations.size))
        ):
            found.append("correlations")
    shifted = [np.sort((side - both.mean(0)).reshape(-1)) for side in (left, right)]
    if stats.ks_2samp(*shifted, method="asymp").pvalue < FALSE_ALARM:
        found.append("law")
    return found


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("missing", [(), (1,)])
def test_rounds_have_one_law(noise: str, missing: tuple[int, ...]) -> None:
    present = all_but(*missing)
    reports = sums_of_reports(noise, *missing)
    pooled = pooled_sums(personal(noise, run="pooled"), present)
    assert differs(reports, pooled) == []
    # Both lie on the finest grid of those who take part.
    step = task_of(personal(noise)).plan.step[present].min()
    assert not np.mod(reports, step).any()
    assert not np.mod(pooled, step).any()


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_power(noise: str) -> None:
    """What the comparison sees: each of these with near certainty (here: it does)."""
    config = personal(noise)
    plan, reports = task_of(config).plan, sums_of_reports(noise)
    pooled = pooled_sums(config, HERE)
    loudest = int(np.argmax(plan.weight * plan.scale))
    for wrong in (1.04, 0.96):
        scaled = noise_of(config, scale=wrong * plan.scale)
        assert "variance" in differs(reports, pooled_sums(config, HERE, scaled))
    # The weights forgotten, or the noise of one client.
    unweighted = noise_of(config, weight=np.ones(4))
    assert "variance" in differs(reports, pooled_sums(config, HERE, unweighted))
    assert "variance" in differs(reports, pooled_sums(config, all_but(loudest)))
    moved = pooled.copy()
    moved[:, 5] += 0.25 * pooled[:, 5].std()
    assert differs(reports, moved) == ["means"]
    if noise == "laplace":
        # The same variance, but normal.
        scale = plan.weight * plan.scale
        normal = AggregateNoise("gaussian", math.sqrt(2.0) * scale, plan.step)
        assert differs(reports, pooled_sums(config, HERE, normal)) == ["law"]
    # The same noise in two coordinates.
    twice = pooled.copy()
    twice[:, 1] = twice[:, 0]
    assert "correlations" in differs(reports, twice)


def sum_without_noise(config: Config, task: Task) -> NDArray[np.float64]:
    """That of the reports without noise and without rounding."""
    single = parse_config({**config.to_dict(), "run": {"seed": 3}})
    rows = OneNode(single, task).means(EVERYBODY, parameters_of(config))
    weighted = rows.double() * torch.from_numpy(task.plan.weight)[:, None]
    return np.asarray(weighted.sum(0).numpy())


def pooled_sum(config: Config, task: Task, *clients: int) -> NDArray[np.float64]:
    """What a node adds up of these clients."""
    means = OneNode(config, task).means(np.array(clients), parameters_of(config))
    assert means.dim() == 1
    return np.asarray(means.numpy())


PRIVACY: list[dict[str, Any]] = [
    {},
    {"client_clip": 0.05},
    {"clip": "average"},
    {"unit": "client"},
    {"unit": "client", "client_clip": 0.05},
    {"personalization": "clipping"},
]


@pytest.mark.parametrize(
    ("model", "noise", "privacy"),
    [
        *(("linear, compiled", "gaussian", privacy) for privacy in PRIVACY),
        ("linear, compiled", "laplace", {}),
        ("linear", "gaussian", {"client_clip": 0.05}),
        ("mlp", "laplace", {}),
        ("own", "gaussian", {"unit": "client", "client_clip": 0.05}),
    ],
)
def test_without_noise_the_sums_are_equal(
    model: str, noise: str, privacy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-6 of the clients' weighted radii together, on every path, with spoilt records too."""
    if model.endswith("compiled"):
        choose_path(monkeypatch, compiled=True)
    config = personal(noise, model.split(",", maxsplit=1)[0], "pooled", **privacy)
    task = task_of(config, {0: math.nan, 5: math.inf, 34: 3e38})
    expected = sum_without_noise(config, task)
    reach = float(np.sum(task.plan.weight * task.plan.radius))
    whole = pooled_sum(config, task, 0, 1, 2, 3)
    assert np.abs(whole - expected).max() <= 1e-6 * reach
    assert np.abs(whole).max() > 1e-3 * reach


@pytest.mark.parametrize("turned", [False, True])
def test_sums_of_clipped_means_are_those_of_the_reports(
    turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of records that do not lie as they are read."""
    choose_path(monkeypatch, compiled=True)
    config = personal("gaussian", "linear", "pooled", unit="client", client_clip=0.05)
    task = task_of(config)
    if turned:
        task = replace(task, inputs=task.inputs.t().contiguous().t())
    found = pooled_sum(config, task, 0, 1, 2, 3)
    assert np.abs(found - sum_without_noise(config, task)).max() <= 1e-6 * np.sum(
        task.plan.weight * task.plan.radius
    )


def test_a_clients_part_does_not_hang_on_who_else_is_asked() -> None:
    config = personal("gaussian", "mlp", "pooled")
    task = task_of(config)
    apart = [pooled_sum(config, task, client) for client in (0, 2, 3)]
    assert np.abs(pooled_sum(config, task, 0, 2, 3) - sum(apart)).max() < 1e-6

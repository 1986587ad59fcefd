"""Local training: against a plain PyTorch loop over each client's own records; and what a client
may not do."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.configuration.reading import parse_config, resolve_config
from fl_shuffle.data.models import flatten_parameters
from fl_shuffle.data.task import load_task
from fl_shuffle.errors import ConfigError, FlShuffleError
from fl_shuffle.federation import Federation
from fl_shuffle.gradients import make_gradient_engine
from fl_shuffle.gradients.local_training import LocalTraining
from fl_shuffle.randomizers.seeds import SeedTree
from tests.one_node import OneNode
from tests.small_federation import Launch, model_bytes

OFFSETS = np.array([0, 7, 8, 20])
KINDS = [
    LocalTraining(0.2, steps=4),
    LocalTraining(0.2, steps=5, batch_size=3),
    LocalTraining(0.1, epochs=3, batch_size=5, momentum=0.7),
    LocalTraining(0.1, epochs=2, batch_size=4, proximal_mu=0.5),
    LocalTraining(0.1, epochs=2, momentum=0.5, proximal_mu=2.0),
]


def orders() -> list[np.random.Generator]:
    return [SeedTree(3).numpy_generator(1, client, "batches") for client in range(3)]


def by_torch(module: nn.Module, x: Tensor, y: Tensor, training: LocalTraining) -> Tensor:
    """What torch.optim.SGD comes to, with batches of the same order; float64 [3, d]."""
    rows = []
    for (start, stop), order in zip(pairwise(OFFSETS.tolist()), orders(), strict=True):
        model = copy.deepcopy(module).double()
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=training.learning_rate, momentum=training.momentum
        )
        size = stop - start
        batch = training.batch_size or size
        steps = training.epochs * -(-size // batch) or training.steps
        left: list[int] = []
        for _ in range(steps):
            left = left or (order.permutation(size).tolist() if batch < size else list(range(size)))
            some, left = left[:batch], left[batch:]
            loss = nn.functional.cross_entropy(model(x[start:stop][some].double()),
                                               y[start:stop][some])  # fmt: skip
            now = nn.utils.parameters_to_vector(model.parameters())
            loss = loss + 0.5 * training.proximal_mu * (now - before).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rows.append(nn.utils.parameters_to_vector(model.parameters()).detach() - before)
    return torch.stack(rows)


@pytest.mark.parametrize("training", KINDS)
@pytest.mark.parametrize("kind", ["linear", "network", "own"])
def test_updates_are_those_of_a_plain_loop(kind: str, training: LocalTraining) -> None:
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    module: nn.Module = nn.Linear(6, 3) if kind == "linear" else network
    if kind == "own":

        class Own(nn.Sequential):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x)

        module = Own(*network)
    x, y = torch.randn(20, 6), torch.randint(0, 3, (20,))
    engine = make_gradient_engine(module, shape=(6,), clip="none")
    theta = nn.utils.parameters_to_vector(module.parameters()).detach()
    found = engine.local_update(theta, x, y, OFFSETS, training, orders())
    expected = by_torch(module, x, y, training)
    assert float((found - expected).abs().max()) < 1e-5 * float(expected.abs().max())


def test_every_pass_takes_each_record_once_in_another_order() -> None:
    training = LocalTraining(0.1, epochs=3, batch_size=4)
    found = [batch for batch in training.batches(10, np.random.default_rng(0)) if batch is not None]
    assert [len(batch) for batch in found] == [4, 4, 2] * 3
    passes = [np.concatenate(found[k : k + 3]) for k in (0, 3, 6)]
    assert all(sorted(one.tolist()) == list(range(10)) for one in passes)
    assert not np.array_equal(passes[0], passes[1])
    assert list(training.batches(4, None)) == [None] * 3


LOCAL = {
    "data.clients": 12, "data.records_per_client": 6, "privacy.unit": "client",
    "training.local_epochs": 2,
    "training.batch_size": 4, "training.local_optimizer": "momentum", "training.proximal_mu": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("randomizer", ["gaussian", "laplace"])
def test_a_client_moves_its_report_by_no_more_than_it_may(randomizer: str) -> None:
    """Whatever its records are; and nobody else's report."""
    config = resolve_config("quickstart", {**LOCAL, "privacy.randomizer": randomizer,
                                           "privacy.clip_norm": 0.01})  # fmt: skip
    task, clients = load_task(config), np.arange(12)
    parameters = flatten_parameters(task.model(config))
    before = OneNode(config, task).means(clients, parameters).double()
    norm = task.plan.norm
    radius = torch.from_numpy(task.plan.radius)
    lengths = torch.linalg.vector_norm(before, norm, dim=1)
    assert bool((lengths <= radius).all()) and float((lengths / radius).max()) > 0.99
    for value in (1e3, torch.nan):
        inputs = task.inputs.clone()
        inputs[task.offsets[4] : task.offsets[5]] = value
        other = OneNode(config, replace(task, inputs=inputs))
        after = other.means(clients, parameters).double()
        moved = torch.linalg.vector_norm(after - before, norm, dim=1)
        assert 0.0 < float(moved[4]) <= 2.0 * float(radius[4])
        assert not moved[np.arange(12) != 4].any()


def test_the_order_of_records_is_the_rounds_own() -> None:
    """The seed, the client and the round decide it; never who else is asked."""
    config = resolve_config("quickstart", LOCAL)
    clip = Federation(config, load_task(config)).clipper
    parameters = flatten_parameters(load_task(config).model(config))
    every = clip(parameters, np.arange(12), 1)
    assert torch.equal(clip(parameters, np.array([5]), 1)[0], every[5])
    assert torch.equal(clip(parameters, np.arange(12), 1), every)
    assert not torch.equal(clip(parameters, np.arange(12), 2), every)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"training": {"local_epochs": 2, "local_steps": 3}}, "leave one of them out"),
        ({"training": {"local_epochs": 2}, "privacy": {"unit": "record"}}, "per-record"),
        ({"training": {"batch_size": 2}, "privacy": {"unit": "record"}}, "gets no credit"),
        ({"training": {"proximal_mu": -1.0}}, "proximal_mu"),
        ({"training": {"local_optimizer": "adam"}}, "local_optimizer"),
    ],
)
def test_what_the_guarantee_does_not_allow_is_refused(
    tables: dict[str, dict[str, object]], said: str
) -> None:
    with pytest.raises(FlShuffleError, match=said):
        parse_config({"privacy": {"unit": "client"}, **tables})


@pytest.mark.parametrize("setting", ["local_optimizer='momentum'", "proximal_mu=0.1"])
def test_local_settings_without_local_training_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="no effect without several local steps, epochs, or"):
        resolve_config("quickstart", ["privacy.unit=client", f"training.{setting}"])


def test_a_batch_alone_is_local_training() -> None:
    config = resolve_config("quickstart", ["privacy.unit=client", "training.batch_size=1",
                                           "training.proximal_mu=0.1"])  # fmt: skip
    assert not config.training.single_step


@pytest.mark.slow
def test_jobs_do_not_change_a_bit(launch: Launch, tmp_path: Path) -> None:
    settings = [
        f"{key}={value}" for key, value in LOCAL.items() if key != "data.records_per_client"
    ]
    few = "run.rounds=2", "budgets.levels=2", "budgets.low=0.2", "budgets.high=0.4"
    assert launch("one", *settings, *few, "run.jobs=1") == 0
    assert launch("many", *settings, *few, "run.jobs=4") == 0
    assert model_bytes(tmp_path / "one") == model_bytes(tmp_path / "many")

"""Every client's mean and update is as long as its own clip allows, in whatever company it is asked
for; where budgets decide clips, and where a client takes several steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.federation import Federation
from fl_shuffle.gradients import packing_of
from fl_shuffle.randomizers.calibration import make_plan
from tests.federation.small_tasks import SIZES, configured, parameters_of, task_of

EVERYBODY = np.arange(len(SIZES))


def by_budgets(model: str, radius: float, **privacy: Any) -> Config:
    """One noise for all: each client's clip is what makes it fit its budget."""
    tables = configured(
        model=model, clip_norm=radius, personalization="clipping", **privacy
    ).to_dict()
    tables["budgets"] = {"distribution": "listed", "epsilons": [0.5, 4.0, 1.0, 2.0]}
    return parse_config(tables)


CLIPPINGS: list[dict[str, Any]] = [
    {},
    {"clip": "average"},
    {"unit": "client"},
    {"randomizer": "laplace"},
    {"client_clip_norm": 0.01},
    {"unit": "client", "randomizer": "laplace"},
]


@pytest.mark.parametrize(
    ("model", "privacy"),
    [
        *(("linear", privacy) for privacy in CLIPPINGS),
        *(("mlp", privacy) for privacy in CLIPPINGS),
        # Slow: torch.func traces the module first.
        *(pytest.param("own", privacy, marks=pytest.mark.slow) for privacy in CLIPPINGS),
    ],
)
def test_a_mean_is_clipped_to_its_own_clients_clip(model: str, privacy: dict[str, Any]) -> None:
    """Clips so short that every gradient is longer: a client of one record is as long as it may
    be, and nobody is longer."""
    config = by_budgets(model, 0.02, **privacy)
    task = task_of(config)
    clipper, parameters = Federation(config, task).clipper, parameters_of(config)
    radius, norm = task.plan.radius, task.plan.norm
    assert privacy.get("client_clip_norm") or np.ptp(radius) > 0.5 * radius.max()
    together = clipper(parameters, EVERYBODY, 1).double()
    for clients in ([0, 1, 2, 3], [1, 3], [2], [0, 2, 3]):
        rows = clipper(parameters, np.array(clients), 1).double()
        lengths = torch.linalg.vector_norm(rows, norm, dim=1).numpy()
        assert (lengths <= radius[clients]).all()
        assert torch.allclose(rows, together[clients], rtol=1e-5, atol=1e-9)
        alone = [SIZES[client] == 1 or config.clipping != "record" for client in clients]
        assert (lengths[alone] > 0.999 * radius[clients][alone]).all()


@pytest.mark.parametrize("randomizer", ["gaussian", "laplace"])
def test_several_local_steps_are_clipped_as_a_whole(randomizer: str) -> None:
    """And point uphill, as one gradient does: the server steps against them."""
    rows = []
    for steps, clip in ((1, 1e3), (5, 1e3), (5, 0.02)):
        tables = by_budgets("linear", clip, unit="client", randomizer=randomizer).to_dict()
        tables["training"] = {"local_steps": steps}
        if steps > 1:
            tables["training"]["local_learning_rate"] = 0.01
        config = parse_config(tables)
        task = task_of(config)
        clipper, parameters = Federation(config, task).clipper, parameters_of(config)
        rows.append(clipper(parameters, EVERYBODY, 1).double())
        # Whoever is asked beside it.
        some = clipper(parameters, np.array([1, 3]), 1).double()
        assert torch.allclose(some, rows[-1][[1, 3]], rtol=1e-4, atol=1e-9)
        lengths = torch.linalg.vector_norm(rows[-1], task.plan.norm, dim=1).numpy()
        assert (lengths <= task.plan.radius).all()
    assert (lengths > 0.999 * task.plan.radius).all()
    # Five short steps carry a client about five times as far as its gradient times the rate.
    cosine = torch.nn.functional.cosine_similarity(rows[0], rows[1])
    assert bool((cosine > 0.9).all())
    ratio = rows[1].norm(dim=1) / rows[0].norm(dim=1)
    assert torch.allclose(ratio, torch.full((4,), 0.05, dtype=torch.float64), rtol=0.2)


@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize("randomizer", ["gaussian", "laplace"])
def test_clips_by_budgets_are_at_most_the_clip_norm(randomizer: str, unit: str) -> None:
    config = by_budgets("linear", 0.7, unit=unit, randomizer=randomizer)
    budgets = Budgets(np.array([0.5, 4.0, 1.0, 2.0]), np.full(4, 1e-5))
    plan = make_plan(config, budgets, np.array([5, 5, 5, 5]))
    assert plan.clip.max() == pytest.approx(0.7) and plan.clip.argmax() == 1
    assert np.ptp(plan.scale) == 0.0 and np.ptp(plan.step) == 0.0


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_blocks_are_those_of_the_clients_that_are_asked(model: str) -> None:
    """Requests are cut where blocks begin: of any clients by their own sizes, and the same when
    all are asked as when each is asked by its number."""
    config = configured(model=model)
    task = task_of(config)
    # So many records that no two clients share a block with all the others.
    sizes = np.array([10**7, 3, 2, 10**7])
    task = replace(task, offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
    federation, everybody = Federation(config, task), np.arange(4)
    found = set()
    for clients in (everybody, everybody[1:], everybody[[0, 2]], everybody[[1, 2]], everybody[2:]):
        blocks = federation.blocks(clients)
        assert blocks[0] == 0 and blocks[-1] == len(clients)
        alone = packing_of(federation.model(), (8,)).starts(sizes[clients])
        assert blocks.tolist() == alone.tolist()
        found.add(tuple(blocks.tolist()))
    assert (0, 2) in found and (0, 1, 2) in found

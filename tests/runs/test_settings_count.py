"""Each setting of a configuration changes something that a run leaves, or the run is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.configuration.reading import SETTINGS
from fl_shuffle.errors import FlShuffleError
from tests.small_federation import model_bytes, notes, rows, stored, summary

BASE: dict[str, Any] = {
    "run.rounds": 2, "run.seed": 5, "data.source": "digits", "data.clients": 12,
    "privacy.unit": "client", "privacy.randomizer": "laplace", "privacy.clip_norm": 0.5,
    "budgets.distribution": "uniform", "budgets.low": 1.0, "budgets.high": 4.0,
}  # fmt: skip
GROUPS = {"budgets.distribution": "groups"}
MEDIAN = {"server.analyzer": "trimmed-mean"}
EPOCHS = {"training.local_epochs": 3}
ADAM = {"server.optimizer": "adam"}
GAUSSIAN = {"privacy.randomizer": "gaussian"}
CHANGED: dict[str, tuple[dict[str, Any], Any]] = {
    "run.rounds": ({}, 3),
    "run.seed": ({}, 6),
    "run.entropy": ({}, "system"),
    "run.ray_address": ({}, "head:1"),
    "run.noise": ({}, "per-sum"),
    "run.evaluate_every": ({}, 2),
    "run.supernodes": ({}, "no-such-file.csv"),
    "data.source": ({"model.metrics": "default"}, "gapminder"),
    "data.source_options": ({}, {"no_such_option": 1}),
    "data.clients": ({}, 11),
    "data.records_per_client": ({}, 7),
    "data.partition": ({}, "shards"),
    "data.dirichlet_alpha": ({"data.partition": "dirichlet"}, 5.0),
    "data.shards_per_client": ({"data.partition": "shards"}, 3),
    "data.classes_per_client": ({"data.partition": "classes"}, 3),
    "data.sizes": ({}, "unequal"),
    "data.sizes_alpha": ({"data.sizes": "dirichlet"}, 9.0),
    "data.features": ({}, "hog"),
    "data.feature_options": ({"data.features": "hog"}, {"components": 16}),
    "data.validation_fraction": ({}, 0.25),
    "data.seed": ({}, 1),
    "model.kind": ({}, "mlp"),
    "model.hidden": ({"model.kind": "mlp"}, [5]),
    "model.width": ({"model.kind": "cnn", "data.features": "pixels"}, 8),
    "model.vocabulary": ({"model.kind": "lstm", "model.width": 8}, 40),
    "model.init": ({}, "zeros"),
    "model.bias": ({}, False),
    "model.loss": ({}, "squared-error"),
    "model.metrics": ({}, f"{__name__}:measured"),
    "training.schedule": ({}, "sequential"),
    "training.participation": ({}, 0.6),
    "training.local_steps": ({}, 3),
    "training.local_epochs": ({}, 2),
    "training.batch_size": (EPOCHS, 5),
    "training.local_optimizer": (EPOCHS, "momentum"),
    "training.local_learning_rate": ({"training.local_steps": 3}, 1e-4),
    "training.local_momentum": ({**EPOCHS, "training.local_optimizer": "momentum"}, 0.3),
    "training.proximal_mu": (EPOCHS, 2.0),
    "server.optimizer": ({}, "adam"),
    "server.learning_rate": ({}, 0.25),
    "server.learning_rate_unit": ({}, "clipping-norm"),
    "server.momentum": ({"server.optimizer": "momentum"}, 0.5),
    "server.beta2": (ADAM, 0.5),
    "server.tau": (ADAM, 0.01),
    "server.warmup": ({}, 1),
    "server.lr_schedule": ({}, "cosine"),
    "server.lr_final_fraction": ({"server.lr_schedule": "linear"}, 0.5),
    "server.averaging_fraction": ({}, 1.0),
    "server.weights": ({}, "inverse-variance"),
    "server.analyzer": ({}, "coordinate-median"),
    "server.trim_fraction": (MEDIAN, 0.3),
    "privacy.unit": ({}, "record"),
    "privacy.clipping": ({"privacy.unit": "record"}, "average"),
    "privacy.clip_norm": ({}, 0.25),
    "privacy.client_clip_norm": ({"privacy.unit": "record"}, 1e-3),
    "privacy.randomizer": ({}, "gaussian"),
    "privacy.declared_sigma": ({"privacy.randomizer": "declared"}, 1.0),
    "privacy.calibration": (GAUSSIAN, "classical"),
    "privacy.personalization": ({}, "clipping"),
    "privacy.target_delta": ({}, 1e-3),
    "privacy.target_epsilon": ({}, 0.01),
    "privacy.lifetime_epsilon": ({}, 1.5),
    "privacy.min_reports": ({"training.participation": 0.5}, 11),
    "privacy.reports_per_round": ({}, 2),
    "privacy.report_bits": ({}, 6),
    "privacy.metrics": ({"privacy.metrics_every": 2}, {"loss": [0.0, 4.0]}),
    "privacy.metrics_every": ({"privacy.metrics": {"loss": [0.0, 4.0]}}, 2),
    "privacy.release": ({}, "sum"),
    "privacy.shuffler": ({}, "separate"),
    "privacy.assumed_honest": (GAUSSIAN, 0.5),
    "budgets.distribution": ({}, "unif2"),
    "budgets.epsilon": ({"budgets.distribution": "constant"}, 2.0),
    "budgets.low": ({}, 2.0),
    "budgets.high": ({}, 3.0),
    "budgets.delta": (GAUSSIAN, 1e-7),
    "budgets.file": ({"budgets.distribution": "file"}, "no-such-file.csv"),
    "budgets.epsilons": ({"budgets.distribution": "listed"}, [1.0] * 12),
    "budgets.levels": ({}, 2),
    "budgets.conservative": (GROUPS, 0.2),
    "budgets.moderate": (GROUPS, 0.7),
    "budgets.liberal": (GROUPS, 2.0),
    "budgets.conservative_fraction": (GROUPS, 0.3),
    "budgets.moderate_fraction": (GROUPS, 0.2),
    "budgets.seed": ({}, 1),
    "app.server": ({}, "no_such_module:app"),
    "app.client": ({}, "no_such_module:app"),
    "app.config": ({}, {"x": 1}),
}  # fmt: skip
"""Setting -> what else must be set for it to count, and another value of it."""
ELSEWHERE = {
    "run.engine": "tests/apps and tests/flower play all of them",
    "run.out": "tests/ledger/test_ledger.py says where runs lie",
    "run.device": "needs a GPU to be another one",
    "run.jobs": "changes no result, by design",
    "budgets.of": "each total has a noise of its own, whose shuffles take minutes to certify",
    "budgets.expected_share": "is for budgets.of = 'run'",
    "budgets.against": "is for budgets.of = 'run': tests/randomizers/test_total_budgets.py",
    "run.checkpoint_every": "adds files and changes no result: tests/runs/test_checkpoints.py",
    "model.fix": "is for a user-defined model: tests/data/test_named_models.py",
    "run.timeout": "seconds until a silent node is given up: tests/flower/test_strategy.py",
    "privacy.declared_steps": "needs a client app of one's own: tests/apps/test_own_federation.py",
    "data.root": "where images lie: tests/data/test_sources.py",
}
UNIFORM = ("budgets.low", "budgets.high")
APART = {"run_directory", "ledger_hash", "ledger_link", "seconds", "accounting_seconds"}


def measured(outputs: Any, labels: Any) -> dict[str, float]:
    """A user's own metric."""
    return {"own": 3.0}


@pytest.fixture(scope="module", autouse=True)
def _cheap_accounting(halving_shuffles: None) -> Iterator[None]:
    """Nothing here is about bounds: shuffles cost a formula, attacks are not computed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Accountant, "lower_bounds", lambda self: {})
        yield


@cache
def folder(base: Path, settings: str) -> Path | str:
    """The run's folder; why it is refused."""
    place = base / str(abs(hash(settings)))
    try:
        fs.simulate({}, overrides=json.loads(settings), out=place)
    except FlShuffleError as error:
        return f"{type(error).__name__}: {error}"
    return place


def left(base: Path, settings: dict[str, Any]) -> Any:
    """Everything that a run leaves but its configuration, its times, and what names it."""
    found = folder(base, json.dumps(settings, sort_keys=True))
    if isinstance(found, str):
        return found
    lines = [{name: cell for name, cell in row.items() if name != "seconds"} for row in rows(found)]
    select = "SELECT * FROM classes"
    final = {name: value for name, value in summary(found).items() if name not in APART}
    kept = notes(found, "assumption"), stored(found, select), stored(found, "SELECT * FROM clients")
    return model_bytes(found), lines, final, kept


def test_every_setting_is_tried_or_tried_elsewhere() -> None:
    assert CHANGED.keys() | ELSEWHERE.keys() == SETTINGS.keys()
    assert not CHANGED.keys() & ELSEWHERE.keys()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings")


@pytest.mark.parametrize("key", CHANGED)
def test_another_value_changes_what_a_run_leaves(key: str, base: Path) -> None:
    needed, value = CHANGED[key]
    before = {**BASE, **needed}
    assert left(base, without_idle(before)) != left(base, without_idle({**before, key: value}))


def without_idle(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of other budgets are left out: they would be refused as such."""
    if settings["budgets.distribution"] == "uniform":
        return settings
    return {key: each for key, each in settings.items() if key not in UNIFORM}


def test_the_same_settings_leave_the_same(base: Path, tmp_path: Path) -> None:
    """Else the test above would see nothing: what is compared has no chance and no time in it."""
    first = left(base, BASE)
    assert not isinstance(first, str)
    assert left(tmp_path, BASE) == first

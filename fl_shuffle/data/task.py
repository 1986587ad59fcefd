"""What every side of a simulated federation derives from the configuration: data, features, plan.

Data and task are kept in the process's `run_cache`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle._internal.csv_files import content_of
from fl_shuffle.budgets import Budgets, make_budgets, require_readable
from fl_shuffle.configuration.sections import BudgetsSection, Config, DataSection
from fl_shuffle.data.features import Features, make_features, named, try_features, vectors_of
from fl_shuffle.data.features.base import FeatureMap
from fl_shuffle.data.features.cache import CachedFeatures
from fl_shuffle.data.models import SHIPPED_MODELS, build_loss, build_model
from fl_shuffle.data.partitions import client_names, make_partition
from fl_shuffle.data.run_cache import run_cache
from fl_shuffle.data.sources import SHIPPED, STAMPED, load_records, stamps_of
from fl_shuffle.errors import DataError
from fl_shuffle.gradients.engine import Loss
from fl_shuffle.randomizers.calibration import Calibration, make_plan
from fl_shuffle.randomizers.total_budgets import Tell, silent
from fl_shuffle.trials import takes_whole_numbers_alone


@dataclass(frozen=True, kw_only=True)
class Data:
    """Records in client order, as features: everything that depends on the data section alone.

    Client i trains on rows `offsets[i]:offsets[i+1]` of `inputs` [N, ...] and `labels` [N].
    `classes` is how many numbers the model returns; in `regression` labels are [N, classes].
    `names`: the clients', where the source has any. `record_shape`: of a record of the source,
    before its features. `whole`: training and test inputs as the source has them, where these are
    whole numbers and no features change them.
    """

    inputs: Tensor
    labels: Tensor
    offsets: NDArray[np.int64]
    test_inputs: Tensor
    test_labels: Tensor
    classes: int
    features_use_data: bool
    fingerprint: str
    regression: bool = False
    record_shape: tuple[int, ...] = ()
    whole: tuple[NDArray[Any], NDArray[Any]] | None = None
    names: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Task(Data):
    """The same with what budgets and settings make of it; `loss` is None for cross entropy."""

    budgets: Budgets
    plan: Calibration
    loss: Loss | None = None

    def model(self, config: Config) -> nn.Module:
        """Return a fresh model, initialized from the run's seed."""
        return build_model(
            config.model, tuple(self.inputs.shape[1:]), self.classes, config.run.seed
        )


MOST_OUTSIDE = 0.1
"""The share of training labels outside of the classes, or of records whose inputs are no numbers,
from which on they are a mistake."""


def load_task(config: Config, tell: Tell = silent, run: Hashable = None) -> Task:
    """Return the configuration's task; built once per process and `run`, since a user's own code is
    called anew for each, and anew when its budgets file or files of its data have changed.

    Without a `run` it may be any run's. Raises as data, budgets and plan do.
    """
    data = _data_key(config.data)
    content = config.to_json(), _content(config.budgets), *data
    return run_cache.get("task", content, lambda: _build(config, data, tell, run), run=run)


def _data_key(section: DataSection) -> tuple[object, ...]:
    """Return all that the data depend on which can be told without reading it."""
    return json.dumps(asdict(section), sort_keys=True), stamps_of(section)


def _content(section: BudgetsSection) -> str:
    """Return a digest of the budgets file, if there is one: the configuration holds its name
    alone."""
    if section.distribution != "file":
        return ""
    try:
        return hashlib.blake2b(content_of(Path(section.file)), digest_size=16).hexdigest()
    except OSError:
        # No task is kept for such a file: it is refused, with the reason, where it is read.
        return ""


def _build(config: Config, key: tuple[object, ...], tell: Tell, run: Hashable) -> Task:
    require_readable(config)
    data = _load_data(config.data, key, tell, run)
    if config.run.entropy == "seeded":
        _require_inputs(data.inputs)
        if not data.regression:
            _require_labels(data.labels, data.classes)
    budgets = make_budgets(config.budgets, config.data.clients, data.names)
    return Task(
        **{**vars(data), **_whole_numbers(config, data)},
        budgets=budgets,
        plan=make_plan(config, budgets, np.diff(data.offsets), tell),
        loss=build_loss(config.model, data.classes, regression=data.regression),
    )


def _require_inputs(inputs: Tensor) -> None:
    """Raise `DataError` in a seeded simulation if a tenth of the training records have inputs that
    are no finite numbers: a mistake in the data, as for labels."""
    usable = torch.isfinite(inputs).reshape(len(inputs), -1)
    wrong = int((~usable.all(dim=1)).sum())
    if wrong >= max(2, MOST_OUTSIDE * len(inputs)):
        worst = int((~usable).sum(dim=0).argmax())
        raise DataError(
            f"{wrong:,} of {len(inputs):,} training records have inputs that are not finite "
            f"numbers, most of them at input {worst}: correct the data (for a .csv, check "
            "data.source_options.decimal or separator). This message appears because the noise is "
            "seeded; with run.entropy = 'system' such records count as zero, without a message"
        )


def _whole_numbers(config: Config, data: Data) -> dict[str, Tensor]:
    """Return inputs as int64, where the source has whole numbers and a user's model takes no
    others."""
    shape = tuple(data.inputs.shape[1:])
    if data.whole is None or config.model.kind in SHIPPED_MODELS:
        return {}
    model = build_model(config.model, shape, data.classes, config.run.seed)
    if not takes_whole_numbers_alone(model, shape):
        return {}
    train, test = (torch.from_numpy(each.astype(np.int64)) for each in data.whole)
    return {"inputs": train, "test_inputs": test}


def _require_labels(labels: Tensor, classes: int) -> None:
    """Raise `DataError` in a seeded simulation, which protects nobody: a tenth of the training
    labels outside of the classes, or labels 1 .. `classes` without any 0, are a mistake in the
    data, and those records would train nothing.

    A single one is its holder's mistake, of which nobody is told. Raises `DataError`.
    """
    outside = (labels < 0) | (labels >= classes)
    wrong = int(outside.sum())
    from_one = (int(labels.min()), int(labels.max())) == (1, classes)
    if wrong >= max(2, 0.0 if from_one else MOST_OUTSIDE * len(labels)):
        own = labels[outside]
        raise DataError(
            f"{wrong:,} of {len(labels):,} training labels are not in 0 .. {classes - 1}, for "
            "example "
            f"{int(own[0])}: labels count from 0, so correct them or the number of classes. This "
            "message appears because the noise is seeded; with run.entropy = 'system' such records "
            "count as zero, without a message"
        )


def _load_data(section: DataSection, key: tuple[object, ...], tell: Tell, run: Hashable) -> Data:
    """Load the data; those of the last run in this process are kept: a sweep computes its features
    once. What a user's own code returns is kept for its run alone."""
    own = section.source not in STAMPED or ":" in section.features
    return run_cache.get("data", key, lambda: _read(section, tell), run=run if own else None)


PROGRESS_SECONDS = 2.0
"""Between two lines that say how many features are computed."""


def _progress_line(kind: str, tell: Tell) -> Callable[[int, int], None]:
    """Return what tells, every few seconds, how many records have their features and how long the
    rest will take."""
    started = told = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told < PROGRESS_SECONDS or done == total:
            return
        told = now
        left = (now - started) * (total - done) / done
        tell(f"features {kind}: {done:,} of {total:,} records, about {left:.0f} s left")

    return progress


def _read(section: DataSection, tell: Tell) -> Data:
    """Return records as features, in the order of their clients."""
    tell(f"reading {section.source}")
    records = load_records(section)
    partition = make_partition(
        section, records.train_labels, records.classes, records.train_clients
    )
    images = records.train_images[partition.order]
    features = make_features(section, images.shape[1:])
    if isinstance(features, FeatureMap):
        features.progress = _progress_line(named(section), tell)
        if not section.validation_fraction:
            features.require_range(records.test_images)
        if features.costly and section.source in SHIPPED:
            features = CachedFeatures(features)
    whole = section.features == "none" and images.dtype.kind in "iu"
    vectors: Features = features
    if not section.validation_fraction:  # Else the test records are private ones.
        try_features(section, images.shape[1:], records.test_images)
    vectors.fit(images)
    tell(f"features {named(section)} of {len(images):,} records")
    return Data(
        inputs=vectors_of(section, vectors, images),
        labels=torch.from_numpy(records.targets(records.train_labels[partition.order])),
        offsets=partition.offsets,
        test_inputs=vectors_of(section, vectors, records.test_images),
        test_labels=torch.from_numpy(records.targets(records.test_labels)),
        classes=records.size,
        regression=records.regression,
        features_use_data=features.data_dependent,
        fingerprint=records.fingerprint(),
        record_shape=tuple(images.shape[1:]),
        whole=(images, records.test_images) if whole else None,
        names=client_names(section, records.train_clients),
    )

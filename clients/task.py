"""What every side of a simulated federation derives from the configuration: data, features, plan.

The result is kept per process, so that many virtual clients of one node share one copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clients.data import load_records, make_partition
from clients.features import build_features
from clients.models import build_model
from fl_shuffle.budgets import Budgets, make_budgets
from fl_shuffle.config import Config
from fl_shuffle.plan import RandomizerPlan, make_plan


@dataclass(frozen=True)
class Task:
    """Client i trains on rows `offsets[i]:offsets[i+1]` of `inputs` [N, ...] and `labels` [N]."""

    inputs: Tensor
    labels: Tensor
    offsets: NDArray[np.int64]
    test_inputs: Tensor
    test_labels: Tensor
    classes: int
    features_use_data: bool
    fingerprint: str
    budgets: Budgets
    plan: RandomizerPlan

    def model(self, config: Config) -> nn.Module:
        """A fresh model, initialised from the run's seed."""
        return build_model(
            config.model, tuple(self.inputs.shape[1:]), self.classes, config.run.seed
        )


_cache: dict[str, Task] = {}
_lock = Lock()


def load_task(config: Config) -> Task:
    """The configuration's task; built once per process. Raises as data, budgets and plan do."""
    key = config.to_json()
    with _lock:
        if key not in _cache:
            _cache.clear()
            _cache[key] = _build(config)
        return _cache[key]


def _build(config: Config) -> Task:
    records = load_records(config.data)
    partition = make_partition(config.data, records.train_labels)
    budgets = make_budgets(config.budgets, config.data.clients)
    plan = make_plan(config, budgets, partition.sizes)
    features = build_features(config.data.features, **config.data.feature_options)
    images = records.train_images[partition.order]
    features.fit(images)
    return Task(
        inputs=torch.from_numpy(features.transform(images)),
        labels=torch.from_numpy(records.train_labels[partition.order]),
        offsets=partition.offsets,
        test_inputs=torch.from_numpy(features.transform(records.test_images)),
        test_labels=torch.from_numpy(records.test_labels),
        classes=records.classes,
        features_use_data=features.data_dependent,
        fingerprint=records.fingerprint(),
        budgets=budgets,
        plan=plan,
    )

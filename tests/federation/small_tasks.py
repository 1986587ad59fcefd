"""Four clients of a few records each, and the models that they train."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fl_shuffle.budgets import make_budgets
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.models import build_model, flatten_parameters
from fl_shuffle.data.task import Task
from fl_shuffle.randomizers.calibration import make_plan
from tests.gradients.gradient_modules import Small

SIZES = [4, 30, 1, 9]
CLIP = 0.3


def convolution(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A module of the user's own."""
    return Small(shape[0], classes)


MODELS: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear"},
    "mlp": {"kind": "mlp", "hidden": [6]},
    "own": {"kind": f"{__name__}:convolution"},
}


def configured(
    entropy: str = "seeded", model: str = "linear", noise: str = "per-report", **privacy: Any
) -> Config:
    return parse_config(
        {
            "run": {"seed": 3, "entropy": entropy, "noise": noise},
            "data": {"clients": len(SIZES)},
            "model": MODELS[model],
            "privacy": {"unit": "record", "clip_norm": CLIP, **privacy},
            "budgets": {"epsilon": 1.0},
        }
    )


def task_of(config: Config, spoil: dict[int, float] | None = None) -> Task:
    """Four clients' records, some of them spoilt: {record: value}."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(sum(SIZES), 8, generator=generator)
    labels = torch.randint(0, 3, (sum(SIZES),), generator=generator)
    for record, value in (spoil or {}).items():
        inputs[record] = value
    budgets = make_budgets(config.budgets, len(SIZES))
    return Task(
        inputs=inputs,
        labels=labels,
        offsets=np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int64),
        test_inputs=inputs[:0],
        test_labels=labels[:0],
        classes=3,
        features_use_data=False,
        fingerprint="",
        budgets=budgets,
        plan=make_plan(config, budgets, np.array(SIZES)),
    )


def parameters_of(config: Config) -> Tensor:
    return flatten_parameters(build_model(config.model, (8,), 3, 3))

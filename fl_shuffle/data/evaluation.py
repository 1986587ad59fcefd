"""What the global model is worth on the test records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fl_shuffle._internal.plugins import load_function
from fl_shuffle.configuration.sections import ModelSection
from fl_shuffle.data.task import Task
from fl_shuffle.errors import ConfigError, DataError
from fl_shuffle.gradients.engine import Loss

BATCH = 2048
"""Records classified at a time: bounds the memory."""
IGNORED = -100
"""torch's own mark of a label that does not count."""

Metrics = Callable[[Tensor, Tensor], Mapping[str, float]]
"""(outputs [N, C], labels [N] or [N, C]) of all test records -> numbers by name."""
Measure = Callable[[int, Tensor], dict[str, float]]


def require_readable_held_out(task: Task) -> None:
    """Raise `DataError` where a run measures on private records held out of training
    (`data.validation_fraction`) and nothing of an input, or no label, of any of these can be read.

    The guarantee covers none of these records, as the run says, so they may decide this. Cells of
    records that train must not: a run that stops for one record less than all would tell of it.
    """
    records = len(task.test_labels)
    if records < 2:
        return
    inputs = torch.isfinite(task.test_inputs).reshape(records, -1).any(dim=0)
    labels = torch.isfinite(task.test_labels)
    if not task.regression:
        labels = (task.test_labels >= 0) & (task.test_labels < task.classes)
    what = "" if labels.any() else "a label that can be read"
    if not inputs.all():
        what = f"a finite number at input {int((~inputs).int().argmax())}"
    if what:
        raise DataError(
            f"none of the {records:,} records that data.validation_fraction holds out has {what}, "
            "so the evaluation would be empty: correct the data (for a .csv, check "
            "data.source_options.decimal, separator, categories or class_names), or leave the "
            "column out (data.source_options.columns)"
        )


def evaluator(model: nn.Module, task: Task, section: ModelSection) -> Measure:
    """Return a function of (round, parameters) that returns mean `loss`, `accuracy` (0 to 1, where
    there are classes), and the section's own metrics.

    Exact numbers about the test records, so these must be public. Among records held out of the
    private ones a label may be outside of the classes: it counts as wrong, without a loss.
    """
    own = build_metrics(section)

    def evaluate(_round: int, parameters: Tensor) -> dict[str, float]:
        nn.utils.vector_to_parameters(parameters, model.parameters())
        model.eval()
        correct, loss = 0, 0.0
        kept: list[Tensor] = []
        with torch.no_grad():
            for start in range(0, len(task.test_labels), BATCH):
                labels = task.test_labels[start : start + BATCH]
                outputs = model(task.test_inputs[start : start + BATCH])
                if not task.regression:
                    correct += int((outputs.argmax(dim=1) == labels).sum())
                loss += _total(task.loss, outputs, labels, task.classes)
                if own is not None:
                    kept.append(outputs)
            total = len(task.test_labels)
            found = {} if task.regression else {"accuracy": correct / total}
            found["loss"] = loss / total
            if own is not None:
                found |= own(torch.cat(kept), task.test_labels)
        return found

    return evaluate


def _total(loss: Loss | None, outputs: Tensor, labels: Tensor, classes: int) -> float:
    """Return the sum of the records' losses; a label that is NaN or no class has none."""
    if loss is not None:
        return float(loss(outputs, labels).nansum())
    known = labels.where((labels >= 0) & (labels < classes), IGNORED)
    entropy = nn.functional.cross_entropy
    return float(entropy(outputs, known, reduction="sum", ignore_index=IGNORED))


def build_metrics(section: ModelSection) -> Metrics | None:
    """Return a user's own `module:function` of (outputs, labels), over all test records; None
    without."""
    if section.metrics == "default":
        return None
    own: Metrics = load_function(section.metrics, "outputs", "labels", field="model.metrics")
    whose = f"model.metrics = {section.metrics!r}"
    return lambda outputs, labels: numbers_by_name(own(outputs, labels), whose)


def numbers_by_name(found: Any, whose: str) -> dict[str, float]:
    """Return what somebody's function of metrics has returned, if it is that; raises
    `ConfigError`."""
    try:
        return {str(name): float(value) for name, value in dict(found).items()}
    except (TypeError, ValueError):
        raise ConfigError(
            f"{whose} returned {type(found).__name__}; it must return a mapping of names to "
            "numbers, for example {'accuracy': 0.9}"
        ) from None

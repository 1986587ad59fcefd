"""Accuracy and loss of the global model on the test records."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fl_shuffle.tasks.models import load_parameters
from fl_shuffle.tasks.task import Task

BATCH = 2048
"""Records classified at a time: bounds the memory."""
IGNORED = -100
"""torch's own mark of a label that does not count."""


def evaluator(model: nn.Module, task: Task) -> Callable[[int, Tensor], dict[str, float]]:
    """A function of (round, parameters) that returns `accuracy` (0 to 1) and mean `loss` (nats).

    Exact numbers about the test records, so these must be public. Among records held out of the
    private ones a label may be outside of the classes: it counts as wrong, without a loss.
    """

    def evaluate(_round: int, parameters: Tensor) -> dict[str, float]:
        load_parameters(model, parameters)
        model.eval()
        correct, loss = 0, 0.0
        with torch.no_grad():
            for start in range(0, len(task.test_labels), BATCH):
                inputs = task.test_inputs[start : start + BATCH]
                labels = task.test_labels[start : start + BATCH]
                logits = model(inputs)
                correct += int((logits.argmax(dim=1) == labels).sum())
                known = labels.where((labels >= 0) & (labels < task.classes), IGNORED)
                loss += float(
                    nn.functional.cross_entropy(
                        logits, known, reduction="sum", ignore_index=IGNORED
                    )
                )
        total = len(task.test_labels)
        return {"accuracy": correct / total, "loss": loss / total}

    return evaluate

"""Training loss and accuracy of each client, for evaluation rounds: exact, and never published."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fl_shuffle._internal.arrays import FloatArray, Ids
from fl_shuffle.data.task import Task


class OwnMetrics:
    """Each client's mean loss and accuracy over its records, with numbers clipped record by record.

    With `by_record`, every record is given to the model by itself: then what the model makes of
    one record, or that it raises, changes nothing for another.
    """

    def __init__(
        self, model: nn.Module, task: Task, names: tuple[str, ...], ranges: FloatArray,
        *, by_record: bool,
    ) -> None:  # fmt: skip
        self._model = model.eval()
        self._task = task
        self._names = names
        self._ranges = ranges
        self._by_record = by_record

    def __call__(self, parameters: Tensor, clients: Ids) -> FloatArray:
        """Return the clients' numbers [k, m]; the lower end where the model raises."""
        nn.utils.vector_to_parameters(parameters.cpu(), self._model.parameters())
        return np.array([self._of_client(client) for client in clients.tolist()])

    def _of_client(self, client: int) -> FloatArray:
        start, end = (int(each) for each in self._task.offsets[client : client + 2])
        step = 1 if self._by_record else max(1, end - start)
        each = [self._of_records(at, min(end, at + step)) for at in range(start, end, step)]
        mean: FloatArray = np.concatenate(each).mean(axis=0)
        return mean

    def _of_records(self, start: int, end: int) -> FloatArray:
        """Return numbers [b, m] of these records, each in its range."""
        low, high = self._ranges
        found = np.full((end - start, len(self._names)), np.nan)
        try:
            with torch.no_grad():
                labels = self._task.labels[start:end]
                outputs = self._model(self._task.inputs[start:end])
                for column, name in enumerate(self._names):
                    made = self._losses if name == "loss" else _right
                    found[:, column] = made(outputs, labels).double().numpy()
        except Exception:
            # Which records a model raises on is as private as they are: no word of it leaves.
            found[:] = np.nan
        return np.clip(np.where(np.isfinite(found), found, low), low, high)

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        task = self._task
        if task.loss is not None:
            return task.loss(outputs, labels)
        known = (labels >= 0) & (labels < task.classes)
        losses = nn.functional.cross_entropy(
            outputs, labels.where(known, 0).long(), reduction="none"
        )
        return losses.where(known, torch.nan)


def _right(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return 1 where the largest output is the label's, else 0."""
    return outputs.argmax(dim=1) == labels

"""One client's mean gradient in closed form: softmax regression, or one hidden ReLU layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES = 10


class NumpyGradients:
    """A client's mean gradient with NumPy; inputs have a last column of ones for the bias."""

    def __init__(self, hidden: int) -> None:
        self.hidden = hidden

    def start(self, width: int) -> Any:
        """The first parameters [d]: those of the hidden layer, then those of the last."""
        rng = np.random.default_rng(1)
        shapes = [(CLASSES, width)]
        if self.hidden:
            shapes = [(self.hidden, width), (CLASSES, self.hidden + 1)]
        weights = [rng.standard_normal(shape) / shape[1] ** 0.5 for shape in shapes]
        return np.concatenate([weight.ravel() for weight in weights]).astype(np.float32)

    def records(self, inputs: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[Any, Any]:
        """A client's data as this library wants them."""
        return inputs, labels

    def of(self, parameters: Any, x: Any, labels: Any) -> Any:
        """The mean gradient [d]."""
        edge = self.hidden * x.shape[1]
        last = parameters[edge:].reshape(CLASSES, -1)
        if not self.hidden:
            return (self._error(x @ last.T, labels).T @ x).reshape(-1) / len(x)
        h = (x @ parameters[:edge].reshape(self.hidden, -1).T).clip(0.0)
        error = self._error(h @ last[:, :-1].T + last[:, -1], labels) / len(x)
        found = self._empty(parameters)
        found[:edge].reshape(self.hidden, -1)[:] = ((error @ last[:, :-1]) * (h > 0.0)).T @ x
        top = found[edge:].reshape(CLASSES, -1)
        top[:, :-1] = error.T @ h
        top[:, -1] = error.sum(0)
        return found

    def _empty(self, parameters: Any) -> Any:
        return np.empty_like(parameters)

    def _error(self, logits: Any, labels: Any) -> Any:
        """Softmax minus one-hot."""
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(axis=1, keepdims=True)
        logits[np.arange(len(labels)), labels] -= 1.0
        return logits


class TorchGradients(NumpyGradients):
    """The same with PyTorch."""

    def __init__(self, hidden: int, threads: int) -> None:
        super().__init__(hidden)
        import torch

        torch.set_num_threads(threads)
        self.torch = torch

    def start(self, width: int) -> Any:
        return self.torch.from_numpy(super().start(width))

    def records(self, inputs: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[Any, Any]:
        return self.torch.from_numpy(inputs), self.torch.from_numpy(labels)[:, None]

    def _empty(self, parameters: Any) -> Any:
        return self.torch.empty_like(parameters)

    def _error(self, logits: Any, labels: Any) -> Any:
        minus_one = self.torch.full((1, 1), -1.0).expand(len(labels), 1)
        return self.torch.softmax(logits, dim=1).scatter_add_(1, labels, minus_one)

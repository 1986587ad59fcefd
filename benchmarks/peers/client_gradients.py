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
        """The first parameters [d]."""
        rng = np.random.default_rng(1)
        if not self.hidden:
            return rng.standard_normal(CLASSES * width).astype(np.float32) / width**0.5
        first = rng.standard_normal(self.hidden * width) / width**0.5
        last = rng.standard_normal(CLASSES * (self.hidden + 1)) / (self.hidden + 1) ** 0.5
        return np.concatenate([first, last]).astype(np.float32)

    def records(self, inputs: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[Any, Any]:
        """A client's data as this library wants them."""
        return inputs, labels

    def of(self, parameters: Any, x: Any, labels: Any) -> Any:
        """The mean gradient [d]."""
        width, count = x.shape[1], len(x)
        if not self.hidden:
            error = self._error(x @ parameters.reshape(CLASSES, width).T, labels)
            return (error.T @ x).ravel() / np.float32(count)
        edge = self.hidden * width
        first = parameters[:edge].reshape(self.hidden, width)
        last = parameters[edge:].reshape(CLASSES, self.hidden + 1)
        h = np.maximum(x @ first.T, 0.0)
        error = self._error(h @ last[:, :-1].T + last[:, -1], labels) / np.float32(count)
        below = (error @ last[:, :-1]) * (h > 0.0)
        found = np.empty_like(parameters)
        np.matmul(below.T, x, out=found[:edge].reshape(self.hidden, width))
        top = found[edge:].reshape(CLASSES, self.hidden + 1)
        top[:, :-1] = error.T @ h
        top[:, -1] = error.sum(axis=0)
        return found

    def _error(self, logits: Any, labels: Any) -> Any:
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

    def of(self, parameters: Any, x: Any, labels: Any) -> Any:
        width, count = x.shape[1], len(x)
        if not self.hidden:
            error = self._error(x @ parameters.view(CLASSES, width).T, labels)
            return (error.T @ x).view(-1).div_(count)
        edge = self.hidden * width
        first = parameters[:edge].view(self.hidden, width)
        last = parameters[edge:].view(CLASSES, self.hidden + 1)
        h = (x @ first.T).clamp_(min=0.0)
        error = self._error(self.torch.addmm(last[:, -1], h, last[:, :-1].T), labels).div_(count)
        below = (error @ last[:, :-1]).mul_(h > 0.0)
        found = self.torch.empty_like(parameters)
        self.torch.mm(below.T, x, out=found[:edge].view(self.hidden, width))
        top = found[edge:].view(CLASSES, self.hidden + 1)
        top[:, :-1] = error.T @ h
        top[:, -1] = error.sum(dim=0)
        return found

    def _error(self, logits: Any, labels: Any) -> Any:
        minus_one = self.torch.full((1, 1), -1.0).expand(len(labels), 1)
        return self.torch.softmax(logits, dim=1).scatter_add_(1, labels, minus_one)

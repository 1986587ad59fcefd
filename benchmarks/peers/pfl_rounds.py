"""Rounds of apple/pfl-research, tuned: one flat parameter, gradients in closed form.

Runs in a Python that has pfl (0.6), NumPy and, for `--framework torch`, PyTorch; nothing of this
product. Users are made once and visited in turn, none is evaluated, no metric is sent anywhere. The
unit is the client: its whole mean gradient is clipped and noised, as pfl does.

Prints one JSON line per round, as `fl-shuffle simulate --json` does.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import FederatedAlgorithm
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import AlgorithmHyperParams, ModelHyperParams
from pfl.metrics import Metrics
from pfl.model.base import Model
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl.stats import MappedVectorStatistics

CLASSES = 10
RATE = 0.5


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
        from pfl.internal.ops import pytorch_ops
        from pfl.internal.ops.selector import set_framework_module

        set_framework_module(pytorch_ops)
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
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


class FlatModel(Model):  # type: ignore[misc]
    """One flat parameter and plain steps."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters

    def apply_model_update(self, statistics: Any) -> tuple[FlatModel, Metrics]:
        self.parameters = self.parameters - (RATE / statistics.weight) * statistics["w"]
        return self, Metrics()


class Rounds(FederatedAlgorithm):  # type: ignore[misc]
    """One gradient of every client a round."""

    def __init__(self, gradients: NumpyGradients, clients: int, rounds: int) -> None:
        super().__init__()
        self.gradients, self.clients, self.rounds = gradients, clients, rounds

    def get_next_central_contexts(
        self,
        model: Any,
        iteration: int,
        algorithm_params: Any,
        model_train_params: Any,
        model_eval_params: Any = None,
    ) -> tuple[Any, Any, Metrics]:
        if iteration == self.rounds:
            return None, model, Metrics()
        context = CentralContext(
            current_central_iteration=iteration,
            do_evaluation=False,
            cohort_size=self.clients,
            population=Population.TRAIN,
            algorithm_params=algorithm_params,
            model_train_params=model_train_params,
            seed=self._get_seed(),
        )
        return (context,), model, Metrics()

    def simulate_one_user(
        self, model: Any, user_dataset: Any, central_context: Any
    ) -> tuple[Any, Metrics]:
        gradient = self.gradients.of(model.parameters, *user_dataset.raw_data)
        return MappedVectorStatistics({"w": gradient}), Metrics()

    def process_aggregated_statistics(
        self, central_context: Any, aggregate_metrics: Any, model: Any, statistics: Any
    ) -> tuple[Any, Metrics]:
        updated = model.apply_model_update(statistics)
        number = central_context.current_central_iteration + 1
        print(json.dumps({"event": "round", "round": number}), flush=True)
        return updated  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--clip", type=float, required=True)
    parser.add_argument("--scale", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--framework", choices=("numpy", "torch"), required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mechanism", choices=("local", "approximate", "central"), required=True)
    given = parser.parse_args()
    with np.load(given.file) as data:
        inputs, labels = data["inputs"], data["labels"].astype(np.int64)
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1), np.float32)], axis=1)
    if given.framework == "torch":
        gradients: NumpyGradients = TorchGradients(given.hidden, given.threads)
    else:
        gradients = NumpyGradients(given.hidden)
    edges = np.linspace(0, len(labels), given.clients + 1).astype(int)
    users = [
        Dataset(gradients.records(inputs[a:b].copy(), labels[a:b].copy()))
        for a, b in itertools.pairwise(edges)
    ]
    cohort = FederatedDataset(
        users.__getitem__, get_user_sampler("minimize_reuse", list(range(given.clients)))
    )
    relative = given.scale / given.clip
    mechanism: Any = GaussianMechanism(given.clip, relative)
    if given.mechanism == "approximate":
        mechanism = mechanism.approximate_as_central_mechanism()
    elif given.mechanism == "central":
        summed = GaussianMechanism(given.clip, relative * given.clients**0.5)
        mechanism = CentrallyAppliedPrivacyMechanism(summed)
    asyncio.set_event_loop(asyncio.new_event_loop())
    Rounds(gradients, given.clients, given.rounds).run(
        AlgorithmHyperParams(),
        SimulatedBackend(cohort, cohort, postprocessors=[mechanism]),
        FlatModel(gradients.start(inputs.shape[1])),
        ModelHyperParams(),
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()

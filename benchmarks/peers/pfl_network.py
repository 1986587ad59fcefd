"""Rounds of apple/pfl-research with its PyTorch backend: a network, client unit, noise per client.

Runs in a Python that has pfl (0.6); nothing of this product but the network. It plays one round for
each line on its standard input, and prints the processor seconds of the round as a JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from torch import Tensor, nn


class Network(nn.Module):
    """A network with the loss and the metrics that pfl asks for."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        return nn.functional.cross_entropy(self.body(x), y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:
        return {}


class Rounds(FederatedAveraging):  # type: ignore[misc]
    """Rounds that begin at a line of the standard input."""

    def get_next_central_contexts(self, *given: Any, **more: Any) -> Any:
        if not sys.stdin.readline():
            return None, given[0], Metrics()
        self.begun = time.process_time()
        return super().get_next_central_contexts(*given, **more)

    def process_aggregated_statistics(self, *given: Any, **more: Any) -> Any:
        updated = super().process_aggregated_statistics(*given, **more)
        print(json.dumps({"seconds": time.process_time() - self.begun}), flush=True)
        return updated


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", help=".npz with inputs and labels")
    parser.add_argument("network", help="torch.save of the network")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--noise", type=float, required=True, help="times the clipping norm")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with np.load(given.file) as data:
        inputs, labels = torch.from_numpy(data["inputs"]), torch.from_numpy(data["labels"])
    records = len(labels) // given.clients
    edges = [records * client for client in range(given.clients + 1)]
    users = [PyTorchTensorDataset((inputs[a:b], labels[a:b])) for a, b in itertools.pairwise(edges)]
    cohort = FederatedDataset(
        users.__getitem__, get_user_sampler("minimize_reuse", list(range(given.clients)))
    )
    network = Network(torch.load(given.network, weights_only=False))
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    training = NNTrainHyperParams(
        local_batch_size=records, local_num_epochs=1, local_learning_rate=0.1
    )
    asyncio.set_event_loop(asyncio.new_event_loop())
    Rounds().run(
        NNAlgorithmParams(
            central_num_iterations=1_000_000,
            evaluation_frequency=1_000_000_000,
            train_cohort_size=given.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(cohort, cohort, postprocessors=[GaussianMechanism(1.0, given.noise)]),
        model,
        training,
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()

"""Rounds of apple/pfl-research, tuned: one flat parameter, gradients in closed form.

Runs in a Python that has pfl (0.6) and NumPy; nothing of this product. Users are made once and
visited in turn, none is evaluated, no metric is sent anywhere. The unit is the client: its whole
mean gradient is clipped and noised, as pfl does.

Prints one JSON line per round, as `fl-shuffle simulate --json` does.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from typing import Any

import numpy as np
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

from benchmarks.peers.client_gradients import gradient, start

RATE = 0.5


class FlatModel(Model):  # type: ignore[misc]
    """One flat parameter and plain steps."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters

    def apply_model_update(self, statistics: Any) -> tuple[FlatModel, Metrics]:
        self.parameters = self.parameters - (RATE / statistics.weight) * statistics["w"]
        return self, Metrics()


class Rounds(FederatedAlgorithm):  # type: ignore[misc]
    """One gradient of every client a round."""

    def __init__(self, clients: int, rounds: int) -> None:
        super().__init__()
        self.clients, self.rounds = clients, rounds

    def get_next_central_contexts(
        self, model: Any, iteration: int, own: Any, train: Any, evaluation: Any = None
    ) -> tuple[Any, Any, Metrics]:
        if iteration == self.rounds:
            return None, model, Metrics()
        context = CentralContext(
            current_central_iteration=iteration,
            do_evaluation=False,
            cohort_size=self.clients,
            population=Population.TRAIN,
            algorithm_params=own,
            model_train_params=train,
            seed=self._get_seed(),
        )
        return (context,), model, Metrics()

    def simulate_one_user(
        self, model: Any, user_dataset: Any, central_context: Any
    ) -> tuple[Any, Metrics]:
        own = gradient(model.parameters, *user_dataset.raw_data)
        return MappedVectorStatistics({"w": own}), Metrics()

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
    for name in ("clients", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("clip", "scale"):
        parser.add_argument(f"--{name}", type=float, required=True)
    parser.add_argument("--mechanism", choices=("local", "approximate", "central"), required=True)
    given = parser.parse_args()
    with np.load(given.file) as data:
        inputs, labels = data["inputs"], data["labels"].astype(np.int64)
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1), np.float32)], axis=1)
    edges = np.linspace(0, len(labels), given.clients + 1).astype(int)
    users = [
        Dataset((inputs[a:b].copy(), labels[a:b].copy())) for a, b in itertools.pairwise(edges)
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
    Rounds(given.clients, given.rounds).run(
        AlgorithmHyperParams(),
        SimulatedBackend(cohort, cohort, postprocessors=[mechanism]),
        FlatModel(start(inputs.shape[1])),
        ModelHyperParams(),
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()

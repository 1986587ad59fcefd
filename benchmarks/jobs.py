"""The jobs: sizes of federations, and the settings that the product gets for each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data import Records

FEATURES, CLASSES, TEST = 60, 10, 200


class Job(NamedTuple):
    """`clients` with `records` each, and softmax regression. Networks: `scripts/bench kernels`."""

    clients: int
    records: int

    @property
    def dimension(self) -> int:
        return (FEATURES + 1) * CLASSES

    @property
    def fits_mnist(self) -> bool:
        return self.clients * self.records <= 60_000

    def settings(self, *, unit: str, mnist: str) -> dict[str, Any]:
        """Of `fl-shuffle simulate`."""
        synthetic = {"data.source": f"{__name__}:records", "data.features": "none"}
        images = {
            "data.source": "mnist",
            "data.root": mnist,
            "data.features": "pca",
            "data.feature_options.components": FEATURES,
        }
        return {
            "run.seed": 1,
            "run.evaluate_every": 1_000_000,
            **(images if mnist and self.fits_mnist else synthetic),
            "data.clients": self.clients,
            "data.records_per_client": self.records,
            "model.kind": "linear",
            "privacy.unit": unit,
            "privacy.randomizer": "gaussian",
            "privacy.clip_norm": 1.0,
            "privacy.target_delta": 1e-5,
            "budgets.distribution": "constant",
            "budgets.epsilon": 1.0,
            "budgets.delta": 1e-5,
            "server.optimizer": "sgd",
            "server.learning_rate": 0.5,
        }


JOBS = {
    "JS1000": Job(1_000, 60),
    "JS10000": Job(10_000, 6),
    "JS60000": Job(60_000, 1),
    "million": Job(1_000_000, 1),
    "smoke": Job(40, 5),
}
SIZES = tuple(JOBS)[:3]
"""Those that are played unless another one is named."""


def records(section: DataSection) -> Records:
    """Synthetic data: Gaussian features, labels from a random linear rule; `clients * records`
    training records and a small test set, from `section.seed`."""
    rng = np.random.default_rng(section.seed)
    total = section.clients * section.records_per_client + TEST
    features = rng.standard_normal((total, FEATURES), dtype=np.float32)
    rule = rng.standard_normal((FEATURES, CLASSES), dtype=np.float32)
    labels = np.argmax(features @ rule, axis=1).astype(np.int64)
    return Records(features[TEST:], labels[TEST:], features[:TEST], labels[:TEST], CLASSES)

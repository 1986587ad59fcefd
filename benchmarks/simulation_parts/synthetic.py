"""A synthetic data source: Gaussian features, labels from a random linear rule."""

from __future__ import annotations

import numpy as np

from benchmarks.simulation_parts.jobs import CLASSES, FEATURES
from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data import Records

TEST = 200


def records(section: DataSection) -> Records:
    """`clients * records` training records and a small test set, from `section.seed`."""
    rng = np.random.default_rng(section.seed)
    total = section.clients * section.records + TEST
    features = rng.standard_normal((total, FEATURES), dtype=np.float32)
    rule = rng.standard_normal((FEATURES, CLASSES), dtype=np.float32)
    labels = np.argmax(features @ rule, axis=1).astype(np.int64)
    return Records(features[TEST:], labels[TEST:], features[:TEST], labels[:TEST], CLASSES)

"""The shuffler of a simulation without reports: a round's sum, and the noise of all of it."""

from __future__ import annotations

import numpy as np
import pytest

from fl_shuffle.randomizers.aggregate_noise import AggregateNoise
from fl_shuffle.randomizers.seeds import SeedTree
from fl_shuffle.shuffler.aggregate import SENT_REPORTS, AggregateShuffler
from fl_shuffle.shuffler.local import Batch, PartialSum, Reports

DIMENSION = 7
EVERYBODY = np.ones(5, dtype=bool)
SCALES = np.array([1.0, 2.0, 1.0, 4.0, 2.0])


def opened(number: int = 1, batches: int = 1) -> Batch:
    """A round in which five clients are asked."""
    noise = AggregateNoise("gaussian", SCALES, np.full(5, 2.0**-20), batches)
    largest = np.full(5, 99.0)
    shuffler = AggregateShuffler(
        DIMENSION, largest, SeedTree(5), keep=False, batches=batches, noise=noise
    )
    return shuffler.open(number, EVERYBODY)


def test_report_with_noise_is_not_taken() -> None:
    batch = opened()
    assert not batch.add(Reports(np.ones((5, DIMENSION), np.float32)), np.arange(5), 0).any()
    assert batch.reasons == {SENT_REPORTS: 5}


@pytest.mark.parametrize("batches", [1, 3])
def test_release_adds_noise_of_clients_that_are_present(batches: int) -> None:
    present = np.array([True, False, True, True, False])
    released = []
    for number in (1, 1, 2):
        batch = opened(number, batches)
        batch.add(PartialSum(np.full(DIMENSION, 3.0), present), np.arange(5), 0)
        assert np.array_equal(batch.close(), present)
        found = batch.release()
        assert found.count == 3 * batches and found.total is not None and found.reports is None
        released.append(found.total.numpy())
    # The round's own noise, from the seed.
    assert np.array_equal(released[0], released[1]) and not np.array_equal(released[0], released[2])
    draws = SeedTree(5).numpy_generator(1, "pooled noise").standard_normal(DIMENSION)
    deviation = np.sqrt(batches * np.sum(np.square(SCALES[present])))
    assert released[0] == pytest.approx(3.0 * batches + deviation * draws, abs=2.0**-20)

"""The personal local randomizer: each client's clipped mean becomes its report.

Which randomizer, whose noise and how much of it is decided once, in `make_randomizer`, from the
public plan; the rows of a call are only looked up in it.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fl_shuffle._internal.arrays import Ids
from fl_shuffle.configuration.sections import Config
from fl_shuffle.randomizers.base import LocalRandomizer
from fl_shuffle.randomizers.calibration import Calibration, noise_bits
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.randomizers.seeds import KEY_BYTES, SeedTree


class NoiseSource:
    """Where noise comes from: the run's seed, or the operating system, anew for every call.

    `bits` of a noise word: 64 where noise protects real data, else 32. A seeded source gives a
    round and client the same noise for every caller and every call; the operating system's is never
    used twice.
    """

    def __init__(self, seed: int | None, bits: int) -> None:
        self._seeds = None if seed is None else SeedTree(seed)
        self._bits = bits

    @classmethod
    def of(cls, config: Config) -> NoiseSource:
        """Return the source that the settings ask for."""
        seed = config.run.seed if config.run.entropy == "seeded" else None
        return cls(seed, noise_bits(config))

    @property
    def protects(self) -> bool:
        """Whether nobody can compute the noise again."""
        return self._seeds is None

    def stream(self, round_number: int, rows: Tensor, batch: int = 0) -> NoiseStream:
        """Return noise for rows [k, d] of a round's batch of that number."""
        seeds, others = self._seeds, [batch] if batch else []
        key = os.urandom(KEY_BYTES) if seeds is None else seeds.key(round_number, "noise", *others)
        return NoiseStream(key, rows.shape[1], bits=self._bits, device=rows.device)


class Randomizer(Protocol):
    """What makes reports.

    Called with the clipped means float32 [k, d] of ascending clients [k], and the round. Returns
    their reports on the processor, float32 [m k, d] for the m batches of the round one after the
    other; the means are overwritten.
    """

    def __call__(self, means: Tensor, clients: Ids, round_number: int) -> Tensor:
        """See the class."""


class PersonalRandomizer:
    """Every client's own local randomizer, with noise from a source: `batches` times a round."""

    def __init__(self, local: LocalRandomizer, source: NoiseSource, batches: int = 1) -> None:
        self._local = local
        self._source = source
        self._batches = batches

    def __call__(self, means: Tensor, clients: Ids, round_number: int) -> Tensor:
        """See `Randomizer`."""
        # Noise that protects is drawn on the processor: other devices' generators are not
        # cryptographic (docs/concepts/noise.md).
        here = self._source.protects or not self._local.on_device
        rows = means.cpu() if here else means
        last = self._batches - 1
        made = [
            self._local.reports(
                rows if batch == last else rows.clone(),
                np.asarray(clients),
                self._source.stream(round_number, rows, batch),
            ).cpu()
            for batch in range(self._batches)
        ]
        return made[0] if last == 0 else torch.cat(made)


def make_randomizer(
    config: Config, plan: Calibration, source: NoiseSource | None = None
) -> Randomizer:
    """Return the randomizer that the settings ask for, with their noise unless a `source` is
    given."""
    return PersonalRandomizer(plan.local, source or NoiseSource.of(config), plan.reports_per_round)

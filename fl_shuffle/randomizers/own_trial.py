"""The trial of a user's own randomizer, before a round is paid for."""

from __future__ import annotations

import numpy as np
import torch

from fl_shuffle._internal.arrays import FloatArray, Ids
from fl_shuffle.errors import InvalidValueError, text_of
from fl_shuffle.randomizers.base import LocalRandomizer, Noise
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.trials import Subject
from fl_shuffle.trials.check import POOL, made_up

ROUNDING = 1e-6
"""A report may differ by this share of its largest number."""
NUMBERS = 1 << 18
"""Numbers in all of the means that are tried at once, but for two clients' means."""
NOISE_OF_ITS_OWN = (
    "draw from the `noise` (or the `generator`) that it is given, which is the client's own"
)


def try_randomizer(local: LocalRandomizer, dimension: int, name: str) -> None:
    """Have a user's randomizer make reports of made-up means of a few clients, of each alone and of
    all together, with the same noise.

    Raises `InvalidValueError` where it raises, returns something else than finite reports, or where
    a client's report depends on more than its own mean, budget and noise.
    """
    subject = Subject("privacy.randomizer", name)
    clients, means = _made_up_means(local, dimension)

    def reports(*rows: int) -> FloatArray:
        asked, given = clients[list(rows)], means[list(rows)]
        stream = NoiseStream(bytes(range(16)), dimension, bits=32)
        try:
            made = np.asarray(local.randomize(given.copy(), asked, Noise(stream, asked)), float)
        except InvalidValueError:
            raise
        except Exception as error:
            raise subject.refused(
                f"raised {type(error).__name__} on made-up means {list(given.shape)}: "
                f"{text_of(error)}",
                "nothing is spent",
            ) from error
        if made.shape != given.shape or not np.isfinite(made).all():
            what = f"shape {made.shape}" if made.shape != given.shape else "what is not finite"
            raise subject.refused(
                f"returned {what} for made-up means {list(given.shape)}",
                "it must return as many finite numbers; nothing is spent",
            )
        return made

    every = range(len(clients))
    alone = np.concatenate([reports(row) for row in every])
    if not _close(np.concatenate([reports(row) for row in every]), alone):
        raise subject.refused(
            "returns another report for the same mean and noise", NOISE_OF_ITS_OWN
        )
    for company in (every, every[: len(clients) // 2 + 1], every[1::2], every[-2:]):
        if company and not _close(reports(*company), alone[list(company)]):
            raise subject.refused(
                "mixes clients: a client's report changes with the means beside it, so that the "
                "budgets of both say nothing",
                "compute row k from means[k], from the budget and radius of clients[k], and from "
                "row k of the noise",
            )


def _made_up_means(local: LocalRandomizer, dimension: int) -> tuple[Ids, np.ndarray]:
    """Return some clients in ascending order, and a mean for each, as long as it may be or
    shorter."""
    count = len(local.radius)
    few = max(2, min(POOL, NUMBERS // dimension))
    clients = np.unique(np.linspace(0, count - 1, few).round().astype(np.int64))
    rows = made_up((dimension,))[: len(clients)]
    lengths = torch.linalg.vector_norm(rows, local.norm, dim=1).clamp(min=1e-30)
    wanted = torch.from_numpy(local.radius[clients]) * torch.linspace(1.0, 0.2, len(clients))
    return clients, (rows * (0.999 * wanted / lengths)[:, None]).numpy().astype(np.float32)


def _close(found: FloatArray, expected: FloatArray) -> bool:
    largest = np.abs(expected).max(axis=1, keepdims=True)
    return bool((np.abs(found - expected) <= ROUNDING * largest).all())

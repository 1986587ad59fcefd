"""From executed rounds to guarantees: per class of clients, cumulative, and for the worst client.

Pure: `preview` computes what a round would cost without changing anything; `commit` assigns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.events import ClientClass, Column, Spend
from fl_shuffle.accounting.gaussian import gaussian_epsilon
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.laplace import laplace_epsilon

Mask = NDArray[np.bool_]

GSPA_SOURCE = "Chen, Cao, Ge (AAAI 2024), Theorem 2"
LOCAL_SOURCE = "exact composition of the client's own noise"
SPECIFIC_SOURCE = "Su, Cheng, Wang (2025), Theorem 4"
NOT_YET = "not computed"


class Accountant:
    """Counts one run's privacy for every client, in five columns.

    `gspa`: Chen, Cao, Ge (AAAI 2024) Theorem 2 with sqrt(T) composition, as published.
    `specific`: the blanket bound of the randomizer (Su, Cheng, Wang 2025), as the papers apply it.
    `local`: the exact guarantee of the client's own noise, whatever the shuffler does; proven.
    `proven`: the smallest proven number: local, or the shuffled bound where a theorem gives one.
    `lower`: what a known attack certainly achieves.

    Relation: replace-one of one `unit`. Epsilons are in nats at the target `delta`, cumulative over
    the rounds a client's report was released in, with the number of reports that really arrived.
    """

    def __init__(
        self,
        classes: Sequence[ClientClass],
        class_of: NDArray[np.int64],
        *,
        unit: str,
        schedule: str,
        delta: float,
        rounds: int,
    ) -> None:
        self._classes = tuple(classes)
        self._class_of = class_of
        self._unit = unit
        self._schedule = schedule
        self._delta = delta
        self._taken = np.zeros(len(class_of), dtype=np.int64)
        self._mu_squared = 0.0
        self._local_cache: dict[tuple[int, int], float] = {}

    def class_counts(self, present: Mask) -> dict[int, int]:
        """Class -> how many of its reports a mask of clients [n] holds; absent ones are left out."""
        counts = np.bincount(self._class_of[present], minlength=len(self._classes))
        return {int(index): int(counts[index]) for index in np.flatnonzero(counts)}

    def preview(self, round_number: int, present: Mask) -> Spend:
        """The cumulative spend if these clients' reports were released; changes nothing."""
        counts = self.class_counts(present)
        mu = self._gspa_mu(counts)
        total = None if mu is None else math.sqrt(self._mu_squared + mu * mu)
        taken = self._most_taken(present)
        local = {index: self._local(index, rounds) for index, rounds in taken.items()}
        columns = {
            "gspa": self._gspa_column(total, taken),
            "specific": Column("specific", Status.AS_PUBLISHED, SPECIFIC_SOURCE, note=NOT_YET),
            "local": Column("local", Status.PROVEN, LOCAL_SOURCE, local),
            "proven": Column("proven", Status.PROVEN, LOCAL_SOURCE, local),
            "lower": Column("lower", Status.LOWER_BOUND, "", note=NOT_YET),
        }
        event = sum(counts.values())
        return Spend(round_number, event, self._delta, mu, total, columns)

    def commit(self, round_number: int, present: Mask) -> None:
        """Count a round whose reports were released."""
        mu = self._gspa_mu(self.class_counts(present))
        self._mu_squared += 0.0 if mu is None else mu * mu
        self._taken += present

    def client_epsilons_after(self, round_number: int, present: Mask) -> NDArray[np.float64]:
        """Every client's own proven epsilon [n] if these clients' reports were released."""
        return self._per_client(self._taken + present)

    def client_totals(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Per client [n]: rounds taken part in, proven epsilon, local epsilon."""
        local = self._per_client(self._taken)
        return self._taken.copy(), local, local

    def _per_client(self, taken: NDArray[np.int64]) -> NDArray[np.float64]:
        pairs, inverse = np.unique(
            np.stack([self._class_of, taken], axis=1), axis=0, return_inverse=True
        )
        values = np.array([self._local(int(index), int(rounds)) for index, rounds in pairs])
        return np.asarray(values[inverse.reshape(-1)], dtype=np.float64)

    def _most_taken(self, present: Mask) -> dict[int, int]:
        """Class -> the most rounds any of its clients has taken part in, this one included."""
        most = np.zeros(len(self._classes), dtype=np.int64)
        np.maximum.at(most, self._class_of, self._taken + present)
        return {index: int(rounds) for index, rounds in enumerate(most) if rounds}

    def _local(self, index: int, rounds: int) -> float:
        if rounds == 0:
            return 0.0
        key = (index, rounds)
        if key not in self._local_cache:
            self._local_cache[key] = local_epsilon(self._classes[index], rounds, self._delta)
        return self._local_cache[key]

    def _gspa_mu(self, counts: dict[int, int]) -> float | None:
        """Theorem 2 of the paper for one round; None where its sum is empty (one report)."""
        shares = [
            (1.0 - self._classes[index].delta0) / (1.0 + math.exp(self._classes[index].epsilon0))
            for index in counts
        ]
        total = math.fsum(
            share * counts[index] for share, index in zip(shares, counts, strict=True)
        )
        rest = total - max(shares, default=0.0)
        return math.sqrt(2.0 / rest) if rest > 0.0 else None

    def _gspa_column(self, mu: float | None, taken: dict[int, int]) -> Column:
        if mu is None:
            return Column(
                "gspa", Status.AS_PUBLISHED, GSPA_SOURCE, note="needs two reports a round"
            )
        epsilon = gaussian_epsilon(self._delta, mu)
        return Column("gspa", Status.AS_PUBLISHED, GSPA_SOURCE, dict.fromkeys(taken, epsilon))


def local_epsilon(client: ClientClass, rounds: int, delta: float) -> float:
    """Epsilon at `delta` of `rounds` reports of one client, the shuffler ignored; proven.

    Gaussian noise: mu = sensitivity / scale, T-fold mu sqrt(T), exact conversion (Dong, Roth, Su
    2022). Laplace noise: the exact T-fold composition of the worst pair. A randomizer without a
    known law: basic composition of the declared (epsilon0, delta0).
    """
    if client.sensitivity == 0.0:
        return 0.0
    if client.noise == "gaussian":
        return gaussian_epsilon(delta, client.sensitivity / client.scale * math.sqrt(rounds))
    if client.noise == "laplace":
        return laplace_epsilon(delta, client.sensitivity / client.scale, rounds)
    return client.epsilon0 * rounds if client.delta0 * rounds <= delta else math.inf

"""Who sends what: clients whose vector reports look alike, and a shuffled batch.

A batch as one of its clients sees it is the event that is counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.limits import MAX_CLIENTS, MAX_EPSILON0
from fl_shuffle.accounting.report_grid import LEAST_STEPS, grid_steps, hiding_scale
from fl_shuffle.errors import InvalidValueError, require_choice, require_integer, require_real

DISCRETE_GAUSSIAN = "discrete-gaussian"
NO_NOISE = "none"
NOISE_KINDS = ("gaussian", "laplace", "user", "declared", DISCRETE_GAUSSIAN, NO_NOISE)
"""A ledger's chain holds their places: new ones come last."""
AS_GAUSSIAN = ("declared", DISCRETE_GAUSSIAN)
"""What the client's own noise does is bounded by that of one Gaussian mechanism."""
MAX_RATIO = 1e12
"""A radius or a move of more noise standard deviations leaves no numerical accuracy."""
ROUND_EXACT_REPORTS = 128
"""Batches with at most this number of others are accounted exactly; larger ones share a type."""


class LocalMechanism(NamedTuple):
    """What a report's own noise is to an accountant, whatever the shuffler does.

    `noise` is "gaussian" or "laplace", with `exposure` the distance between the two means in noise
    scales, or "user": any two reports are within (`exposure`, `delta0`).
    """

    noise: str
    exposure: float
    delta0: float = 0.0


@dataclass(frozen=True)
class ClientClass:
    """Clients with identical randomizers: what one report of theirs is to the accountant.

    Parameters
    ----------
    noise : str
        "gaussian"; "laplace"; "user" (no known distribution: the declared local budget counts);
        "declared" (what a client's own training did to its records is as good as one Gaussian
        mechanism of this `scale` and `sensitivity`, as it says; nothing is known of its report);
        "discrete-gaussian" (the mean, a point of the public grid of step `step`, plus discrete
        Gaussian noise of this `scale` on the grid); or "none" (the mean itself: nothing is
        promised, and `epsilon0` is infinite).
    scale : float
        Gaussian standard deviation, or Laplace scale b, of each coordinate.
    radius : float
        Bound on the norm of the mean report before noise (l2 for Gaussian, l1 for Laplace).
    sensitivity : float
        Bound on how far that mean moves when one unit is replaced.
    epsilon0, delta0 : float, default 0.0
        Budget that the client asked for, which the noise may or may not deliver. Epsilon in nats.
    records : int, default 1
        Number of records of a client.
    count : int, default 1
        How many of these clients there are, where a batch is described by its classes.

    Raises
    ------
    InvalidValueError
        For a value out of range.

    Examples
    --------
    >>> from fl_shuffle.accounting import ClientClass
    >>> ClientClass("gaussian", scale=4.0, radius=1.0, sensitivity=2.0).exposure
    0.5
    """

    noise: str
    scale: float
    radius: float
    sensitivity: float
    epsilon0: float = 0.0
    delta0: float = 0.0
    records: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        require_choice("noise", self.noise, NOISE_KINDS)
        # Scales of these two are not used: a declared budget, or no noise at all.
        noisy = self.noise not in ("user", NO_NOISE)
        require_real("scale", self.scale, minimum=0.0, exclusive_minimum=noisy)
        require_real("radius", self.radius, minimum=0.0)
        require_real("sensitivity", self.sensitivity, minimum=0.0)
        if self.noise != NO_NOISE:
            require_real("epsilon0", self.epsilon0, minimum=0.0)
        elif self.epsilon0 != math.inf:
            raise InvalidValueError("epsilon0", self.epsilon0, "is infinite without noise")
        require_real("delta0", self.delta0, minimum=0.0, maximum=1.0)
        require_integer("count", self.count, minimum=0, maximum=MAX_CLIENTS)
        # V = s^2 - c^2 g^2 has to stay positive, with c = 4 (docs/research/proofs, section 14);
        # from 8 steps on it is at least three quarters of s^2.
        if self.noise == DISCRETE_GAUSSIAN and self.scale < LEAST_STEPS * self.step:
            raise InvalidValueError(
                "scale", self.scale, f"must be at least {LEAST_STEPS:g} grid steps"
            )

    @property
    def step(self) -> float:
        """The step of the grid that discrete noise lies on; 0 of other noise."""
        if self.noise != DISCRETE_GAUSSIAN:
            return 0.0
        return float(grid_steps(self.scale, self.radius))

    @property
    def hiding_scale(self) -> float:
        """The scale of continuous noise that this noise is as good as."""
        if self.noise != DISCRETE_GAUSSIAN:
            return self.scale
        return float(hiding_scale(self.scale, self.step))

    @property
    def exposure(self) -> float:
        """How far replacing one unit moves the mean, in noise standard deviations (Gaussian mu)."""
        if self.noise in ("user", NO_NOISE):
            return self.epsilon0
        # Both means lie in one ball, so the move is at most its diameter.
        return min(self.sensitivity, 2.0 * self.radius) / self.hiding_scale

    @property
    def law(self) -> LocalMechanism:
        """The client's own noise; steps that it declares count as one Gaussian mechanism."""
        noise = "gaussian" if self.noise in AS_GAUSSIAN else self.noise
        return LocalMechanism(noise, self.exposure, self.delta0 if noise == "user" else 0.0)


@dataclass(frozen=True)
class ShuffledRound:
    """What one shuffled batch is to one client: its own class, and the others with its noise.

    `others` lists (radius, count), by radius, the client itself left out. Reports with other noise,
    another scale, or discrete noise on another grid are left out: they do not help and do not harm.
    Discrete Gaussian noise stands here as the continuous noise that it is as good as.
    `participation` < 1: everybody, the client too, sends a report with that probability only, and
    who did stays secret.
    """

    noise: str
    scale: float
    radius: float
    sensitivity: float
    others: tuple[tuple[float, int], ...] = ()
    participation: float = 1.0

    @classmethod
    def of(
        cls, classes: Sequence[ClientClass], index: int = 0, participation: float = 1.0
    ) -> ShuffledRound:
        """Return the view of a client of class `index` of this batch.

        Raises `InvalidValueError` if that class is empty, or the noise negligible.
        """
        require_integer("index", index, minimum=0, maximum=len(classes) - 1)
        rate = require_real(
            "participation", participation, minimum=0.0, maximum=1.0, exclusive_minimum=True
        )
        own = classes[index]
        require_integer("count of the client's class", own.count, minimum=1)
        merged: dict[float, int] = {}
        for position, other in enumerate(classes):
            # Noise of another kind, scale, or grid tells its reports apart: they hide nobody
            # (section 5, "Noise scales"). They do not depend on the client's data either, so
            # leaving them out changes nothing.
            if (other.noise, other.scale, other.step) == (own.noise, own.scale, own.step):
                if not max(other.radius, other.sensitivity) / own.scale <= MAX_RATIO:
                    raise InvalidValueError(
                        "scale", own.scale, "is too small beside the reports to hide anything"
                    )
                # The client itself is not one of the others.
                count = other.count - (position == index)
                merged[other.radius] = merged.get(other.radius, 0) + count
        others = tuple((radius, count) for radius, count in sorted(merged.items()) if count > 0)
        return cls(own.law.noise, own.hiding_scale, own.radius, own.sensitivity, others, rate)

    @property
    def exposure(self) -> float:
        """How far replacing one unit moves the client's mean, in noise standard deviations."""
        return min(self.sensitivity, 2.0 * self.radius) / self.scale

    @property
    def law(self) -> LocalMechanism:
        """The client's own noise."""
        return LocalMechanism(self.noise, self.exposure)

    @property
    def in_widths(self) -> tuple[float, float, NDArray[np.float64], NDArray[np.int64]]:
        """The client's move and radius, the others' radii, and their counts.

        Lengths are in noise standard deviations.
        """
        radii = np.array([radius for radius, _ in self.others], dtype=np.float64)
        counts = np.array([count for _, count in self.others], dtype=np.int64)
        return self.exposure, self.radius / self.scale, radii / self.scale, counts

    @property
    def anonymity(self) -> int:
        """How many reports have this noise, the client's own included."""
        return 1 + sum(count for _, count in self.others)

    def without(self, lost: int) -> ShuffledRound:
        """Return the same if `lost` of the others hide nobody: those in the smallest balls."""
        if lost <= 0:
            return self
        counts = np.array([count for _, count in self.others], dtype=np.int64)
        # `others` is sorted by radius. Taking `lost` off every count within a radius leaves the
        # largest balls: those that hide least.
        kept = np.diff(np.maximum(np.cumsum(counts) - lost, 0), prepend=0).tolist()
        pairs = zip(self.others, kept, strict=True)
        others = tuple((radius, count) for (radius, _), count in pairs if count > 0)
        return replace(self, others=others)

    def in_smallest_place(self) -> ShuffledRound:
        """Return the same if the client's own place in the batch were one in the smallest ball.

        The others then hide the client no better, and are the same for every client of a batch.
        """
        counts = dict(self.others)
        # Put back in, then one of the smallest ball taken out: within every radius there is no
        # report more than the client really has beside it.
        counts[self.radius] = counts.get(self.radius, 0) + 1
        return replace(self, others=tuple(sorted(counts.items()))).without(1)

    def is_dominated_by(self, other: AnyRound) -> bool:
        """Return whether `other` has, for every radius, at least as many reports within it.

        Then each report here can be matched with one there in a smaller ball, so this type's curve
        is not below the other's. The differing client's own ball and sensitivity must not be
        smaller here: what it can do there it can do here.
        """
        if not isinstance(other, ShuffledRound) or (self.noise, self.scale, self.participation) != (
            other.noise, other.scale, other.participation
        ):  # fmt: skip
            return False
        if self.radius < other.radius or self.sensitivity < other.sensitivity:
            return False
        mine = np.array(self.others, dtype=np.float64).reshape(-1, 2)
        theirs = np.array(other.others, dtype=np.float64).reshape(-1, 2)
        # For each radius here: how many reports there lie in balls no larger.
        within = np.searchsorted(theirs[:, 0], mine[:, 0], side="right")
        available = np.concatenate([[0.0], np.cumsum(theirs[:, 1])])[within]
        return bool(np.all(np.cumsum(mine[:, 1]) <= available))


@dataclass(frozen=True)
class DeclaredRound:
    """One shuffled batch as a client sees it that only declares its local budget.

    Any two of these reports, of whatever inputs and clients, are taken to be within (`epsilon0`,
    `delta0`) of each other, both orders: one function, one budget. `others`: how many of them there
    are besides the client's own. Other clients' reports neither help nor harm.
    """

    epsilon0: float
    delta0: float
    others: int

    def __post_init__(self) -> None:
        require_real("epsilon0", self.epsilon0, minimum=0.0, maximum=MAX_EPSILON0)
        require_real("delta0", self.delta0, minimum=0.0, maximum=1.0)
        require_integer("others", self.others, minimum=0)

    @property
    def law(self) -> LocalMechanism:
        """What the client declares."""
        return LocalMechanism("user", self.epsilon0, self.delta0)

    def rounded_down(self) -> DeclaredRound:
        """Return a type that similar batches share, with no more reports than this one has."""
        if self.others <= ROUND_EXACT_REPORTS:
            return self
        # Rounds of slightly different arrivals then cost one curve; at most 3% of the reports go,
        # and fewer of many.
        unit = 2 ** math.floor(0.5 * math.log2(self.others) - 1.0)
        return replace(self, others=unit * (self.others // unit))

    def is_dominated_by(self, other: AnyRound) -> bool:
        """Return whether a client certainly pays no less here than there."""
        return self == other


AnyRound = ShuffledRound | DeclaredRound
"""One round as a client sees it: what is counted."""

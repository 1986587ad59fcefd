"""The public plan of a run: which randomizer each client applies, and what one report is worth.

Everything here is a function of the configuration, the budgets and the number of records per
client, all of which are public; no data enters. Server and clients each derive the same plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.laws.discrete_noise import (
    discrete_gaussian_scale,
    discrete_laplace_scale,
)
from fl_shuffle.accounting.laws.gaussian_inverses import (
    analytic_sigmas,
    classical_sigmas,
    gaussian_mus,
    sigmas_of,
)
from fl_shuffle.accounting.laws.report_grid import grid_steps
from fl_shuffle.accounting.rounds.class_table import NOISE_KINDS, ClassTable, distinct_rows
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.randomizers.discrete.reports import LARGEST as DISCRETE_LARGEST
from fl_shuffle.randomizers.discrete.reports import SAMPLERS as DISCRETE
from fl_shuffle.randomizers.noise import largest_variate
from fl_shuffle.randomizers.vector import (
    NOISES,
    exact_group,
    largest_reports,
    require_exact,
)

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class RandomizerPlan:
    """Per client, float64 arrays of shape [clients].

    A client's report is `weight * (mean + noise)`, rounded to a public grid of step `step`: `mean`
    has norm at most `radius` after clipping each record (or the average, or the update) to `clip`,
    `noise` has scale `scale` per coordinate. `sensitivity` bounds the change of `mean` when one
    unit of privacy is replaced. Any `group` reports have an exact float32 sum.
    """

    noise: str
    norm: int
    clip: Vector
    client_clip: float | None
    radius: Vector
    sensitivity: Vector
    scale: Vector
    weight: Vector
    step: Vector
    group: int
    classes: ClassTable
    class_of: NDArray[np.int64]
    labelled_private: bool

    def __len__(self) -> int:
        return int(self.scale.size)

    @property
    def largest(self) -> Vector:
        """No coordinate of an honest client's report exceeds this in absolute value [clients].

        Noise from 64-bit words ends there (from 32-bit words earlier); ideal Gaussian or Laplace
        noise goes beyond with probability below 1e-12 in any of 10^7 coordinates.
        """
        rounded = 1.0 + 2.0**-20  # float32
        if self.noise in DISCRETE:
            return np.asarray(rounded * DISCRETE_LARGEST * self.step, dtype=np.float64)
        if self.noise not in NOISES:
            return np.full(len(self), rounded * self.user_bound)
        reach = self.radius + self.scale * largest_variate(NOISES[self.noise], 64)
        return np.asarray(rounded * (self.weight * reach + self.step), dtype=np.float64)

    def classes_of_each(self, clients: NDArray[np.int64]) -> list[ClientClass]:
        """What one report of each of these clients is to an accountant."""
        distinct, index = np.unique(self.class_of[clients], return_inverse=True)
        made = [self.classes[each] for each in distinct.tolist()]
        return [made[each] for each in index.tolist()]

    @property
    def user_bound(self) -> float:
        """Reports of a user's own randomizer are clamped to this many times the clip."""
        return 1e3 * float(self.clip.max())


def make_plan(config: Config, budgets: Budgets, records: NDArray[np.int64]) -> RandomizerPlan:
    """Calibrate every client's randomizer from its local budget.

    Sensitivities (replace-one): per-record clipping to C then averaging B records moves the mean by
    at most 2C/B; clipping the average, or a whole update, to C moves it by 2C. A second clip C_cl
    of the average bounds it by 2 C_cl too; in l1 (Laplace) it may double the first bound.
    `calibration = "as-published"` uses 2C/B whatever the clipping is, as the papers do, while the
    class keeps the true sensitivity.

    Raises `InvalidValueError` where a budget has no such calibration.
    """
    privacy = config.privacy
    noise = privacy.randomizer
    norm = 1 if noise in ("laplace", "discrete-laplace") else 2
    # A million of them take seconds: once, and only where they are needed.
    mus = cache(lambda: gaussian_mus(budgets.epsilon, budgets.delta))
    clip = privacy.clip_norm * _clip_share(config, budgets, mus)
    batch = records.astype(np.float64) if privacy.unit == "record" else np.ones(len(budgets))
    sensitivity = 2.0 * clip / (batch if config.clip == "record" else 1.0)
    radius = clip.copy()
    if privacy.client_clip is not None:
        # Scaling into a ball is 1-Lipschitz in l2, but where it acts only 2-Lipschitz in l1.
        stretch = np.where((norm == 1) & (privacy.client_clip < clip), 2.0, 1.0)
        sensitivity = stretch * sensitivity
        radius = np.minimum(radius, privacy.client_clip)
        sensitivity = np.minimum(sensitivity, 2.0 * privacy.client_clip)
    calibrated_for = 2.0 * clip / batch if privacy.calibration == "as-published" else sensitivity
    scale = _scales(config, budgets, calibrated_for, mus)
    weight = np.ones(len(budgets))
    if config.server.weights == "inverse-variance":
        weight = scale**-2.0 / np.mean(scale**-2.0)
    if noise in DISCRETE:
        return _discrete_plan(noise, norm, clip, privacy.client_clip, radius, budgets, records)
    classes, class_of = _classes(
        noise, weight * scale, weight * radius, weight * sensitivity, budgets, records
    )
    step, group = _grids(noise, weight * scale, weight * radius, noise_bits(config))
    return RandomizerPlan(
        noise=noise,
        norm=norm,
        clip=clip,
        client_clip=privacy.client_clip,
        radius=radius,
        sensitivity=sensitivity,
        scale=scale,
        weight=weight,
        step=step,
        group=group,
        classes=classes,
        class_of=class_of,
        labelled_private=bool((calibrated_for >= sensitivity * (1 - 1e-12)).all()),
    )


def _discrete_plan(
    noise: str,
    norm: int,
    clip: Vector,
    client_clip: float | None,
    radius: Vector,
    budgets: Budgets,
    records: NDArray[np.int64],
) -> RandomizerPlan:
    """Discrete noise for means in a ball of `radius`, cut to the grid towards zero: they stay in
    it, and two of them are at most twice the radius apart, in whole steps as well.

    A report is (epsilon, delta)-DP by the law of the noise (`laws.discrete_noise`), and accounted
    as any local randomizer of that budget is: theorems for continuous noise do not speak of it.
    """
    sensitivity, delta = 2.0 * radius, budgets.delta
    if noise == "discrete-laplace":
        delta = np.zeros(len(budgets))
        near = sensitivity / budgets.epsilon
    else:
        near = sensitivity * analytic_sigmas(budgets.epsilon, delta)
    step = grid_steps(near, radius)
    rows = distinct_rows(budgets.epsilon, delta, sensitivity, step)
    wanted = np.array(
        [
            discrete_laplace_scale(epsilon, width)
            if noise == "discrete-laplace"
            else discrete_gaussian_scale(epsilon, own, width)
            for epsilon, own, width in zip(
                budgets.epsilon[rows.first],
                delta[rows.first],
                (sensitivity / step)[rows.first],
                strict=True,
            )
        ],
        dtype=np.float64,
    )
    largest, finest = DISCRETE_LARGEST * float(step.max()), float(step.min())
    require_exact(len(step), largest, finest)
    zeros = np.zeros(len(budgets))
    classes, class_of = _classes(
        noise, zeros, radius, sensitivity, Budgets(budgets.epsilon, delta), records
    )
    return RandomizerPlan(
        noise=noise,
        norm=norm,
        clip=clip,
        client_clip=client_clip,
        radius=radius,
        sensitivity=sensitivity,
        scale=wanted[rows.inverse] * step,
        weight=np.ones(len(budgets)),
        step=step,
        group=exact_group(finest, largest),
        classes=classes,
        class_of=class_of,
        labelled_private=True,
    )


def _clip_share(config: Config, budgets: Budgets, mus: Callable[[], Vector]) -> Vector:
    """Each client's clip as a share of the largest: 1, or proportional to what its budget buys."""
    if config.privacy.personalization == "noise":
        return np.ones(len(budgets))
    reach = budgets.epsilon if config.privacy.randomizer == "laplace" else mus()
    return np.asarray(reach / reach.max(), dtype=np.float64)


def _scales(
    config: Config, budgets: Budgets, sensitivity: Vector, mus: Callable[[], Vector]
) -> Vector:
    privacy = config.privacy
    if privacy.randomizer not in NOISES:
        return np.zeros(len(budgets))
    if privacy.randomizer == "laplace":
        scale = sensitivity / budgets.epsilon
    else:
        if (budgets.delta == 0).any():
            client = int(np.flatnonzero(budgets.delta == 0)[0])
            raise InvalidValueError(
                f"budget delta of client {client}", 0.0, "the Gaussian randomizer needs (0, 1)"
            )
        if privacy.calibration == "analytic":
            scale = sensitivity * sigmas_of(mus())
        else:
            scale = sensitivity * classical_sigmas(budgets.epsilon, budgets.delta)
    if privacy.personalization == "clipping":
        # One common noise: each client's clip is what makes it fit its budget; rounding goes up.
        scale = np.full(len(budgets), scale.max())
    return np.asarray(scale, dtype=np.float64)


def noise_bits(config: Config) -> int:
    """Bits of a noise word: 64 wherever the noise is to protect real data (see docs/noise.md)."""
    return 64 if config.run.entropy == "system" else 32


def _grids(noise: str, scale: Vector, radius: Vector, bits: int) -> tuple[Vector, int]:
    """Each client's public grid, one for all clients with the same noise scale; and the group.

    A grid of its own would mark a report as coming from a client with that radius, and clients with
    equal noise would no longer hide one another. Raises `NotApplicableError` if sums of reports on
    these grids would not be exact.
    """
    if noise not in NOISES:
        return np.ones(len(scale)), 1
    scales, inverse = np.unique(scale, return_inverse=True)
    inverse = inverse.reshape(-1)
    reach = np.zeros(len(scales))
    np.maximum.at(reach, inverse, radius)
    largest = float(largest_reports(noise, scales, reach, bits).max())
    steps = grid_steps(scales, reach)
    finest = float(steps.min())
    require_exact(len(scale), largest, finest)
    return np.asarray(steps[inverse], dtype=np.float64), exact_group(finest, largest)


def _classes(
    noise: str,
    scale: Vector,
    radius: Vector,
    sensitivity: Vector,
    budgets: Budgets,
    records: NDArray[np.int64],
) -> tuple[ClassTable, NDArray[np.int64]]:
    columns = (scale, radius, sensitivity, budgets.epsilon, budgets.delta)
    rows = distinct_rows(*columns, records)
    kind = NOISE_KINDS.index(noise if noise in NOISES else "user")
    classes = ClassTable.of_columns(
        np.full(len(rows.first), kind, dtype=np.int8),
        [column[rows.first] for column in columns],
        records[rows.first].astype(np.int64),
    )
    return classes, rows.inverse

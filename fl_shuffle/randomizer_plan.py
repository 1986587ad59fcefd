"""The public plan of a run: which randomizer each client applies, and what one report is worth.

Everything here is a function of the configuration, the budgets and the number of records per
client, all of which are public; no data enters. Server and clients each derive the same plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.laws.discrete_noise import (
    discrete_gaussian_scale,
    discrete_laplace_scale,
)
from fl_shuffle.accounting.laws.gaussian_mechanism import (
    classical_sigmas,
    gaussian_epsilon,
    gaussian_mus,
    sigmas_of,
)
from fl_shuffle.accounting.laws.report_grid import grid_steps, report_grids
from fl_shuffle.accounting.reports import NOISE_KINDS, ClientClass
from fl_shuffle.accounting.rounds.class_table import ClassTable, distinct_rows
from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.sections import Config
from fl_shuffle.randomizers.additive import NOISES, largest_reports
from fl_shuffle.randomizers.base import LocalRandomizer, load_randomizer
from fl_shuffle.randomizers.declared import REACH, Declared, declared_sensitivity
from fl_shuffle.randomizers.discrete import DISCRETE
from fl_shuffle.randomizers.discrete import LARGEST as DISCRETE_LARGEST
from fl_shuffle.shuffler.exact_sums import exact_group, require_exact

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class RandomizerPlan:
    """Per client, float64 arrays of shape [clients].

    A client's report is `weight * (mean + noise)`, rounded to a public grid of step `step`: `mean`
    has norm at most `radius`: its records are clipped to `clip`, or it is to `mean_clip`, or both
    (None: it is not); `noise` has scale `scale` per coordinate. `sensitivity` bounds the change of
    `mean` when one unit of privacy is replaced. Any `group` reports have an exact float32 sum. A
    user's own randomizer is `custom`, and makes reports of means as they are. In a round a client
    sends `reports_per_round` reports of one mean, each with noise of its own.
    """

    noise: str
    norm: int
    clip: Vector
    mean_clip: Vector | None
    radius: Vector
    sensitivity: Vector
    scale: Vector
    weight: Vector
    step: Vector
    group: int
    classes: ClassTable
    class_of: NDArray[np.int64]
    labelled_private: bool
    custom: LocalRandomizer | None = None
    reports_per_round: int = 1

    def __len__(self) -> int:
        return int(self.scale.size)

    @cached_property
    def local(self) -> LocalRandomizer:
        """The clients' local randomizer."""
        if self.custom is not None:
            return self.custom
        epsilon, delta = self.classes.epsilon0[self.class_of], self.classes.delta0[self.class_of]
        own = epsilon, delta, self.radius, self.scale
        if self.noise in DISCRETE:
            return DISCRETE[self.noise](*own, step=self.step)
        return NOISES[self.noise](*own, weight=self.weight, step=self.step)

    @cached_property
    def largest(self) -> Vector:
        """No coordinate of an honest client's report exceeds this in absolute value [clients].

        Clients draw no noise that goes beyond (`noise_exact.REACH`): a report that does, and is
        left out, is nobody's honest one.
        """
        return self.local.largest()

    def noise_of_mean(self, dimension: int, share: float = 1.0) -> float | None:
        """The noise of a round's mean report of `dimension` numbers, as a multiple of what a client
        can add to it without: its root mean square length (l2) over the mean radius, where `share`
        of the clients report. None for a user's own randomizer, whose law is not known.

        Of clients that declare their training it is that of steps over one record each: over B
        records in a step it is a B-th of that.
        """
        radius = self.radius
        if self.noise == "declared":
            # Of m steps: sigma sqrt(m) beside m clips.
            radius = self.sensitivity / 2.0
        elif self.custom is not None:
            return None
        # Variance of a coordinate: b^2 + b^2 for Laplace noise of scale b.
        variance = (2.0 if self.norm == 1 else 1.0) * np.mean((self.weight * self.scale) ** 2)
        length = np.sqrt(dimension * variance / (share * len(self) * self.reports_per_round))
        return float(length / np.mean(self.weight * radius))

    def classes_of_each(self, clients: NDArray[np.int64]) -> list[ClientClass]:
        """What one report of each of these clients is to an accountant."""
        distinct, index = np.unique(self.class_of[clients], return_inverse=True)
        made = [self.classes[each] for each in distinct.tolist()]
        return [made[each] for each in index.tolist()]


def make_plan(config: Config, budgets: Budgets, records: NDArray[np.int64]) -> RandomizerPlan:
    """Calibrate every client's randomizer from its local budget.

    Sensitivities (replace-one): per-record clipping to C then averaging B records moves the mean by
    at most 2C/B; clipping the average, or a whole update, to C moves it by 2C. A second clip C_cl
    of the average bounds it by 2 C_cl too; in l1 (Laplace) it may double the first bound.
    `calibration = "as-published"` uses 2C/B whatever the clipping is, as the papers do, while the
    class keeps the true sensitivity.

    Raises `InvalidValueError` where a budget has no such calibration, `ConfigError` where the
    settings name a randomizer that cannot be one.
    """
    privacy, noise = config.privacy, config.privacy.randomizer
    if noise == "declared":
        return _declared_plan(config, budgets, records)
    budgets.require_delta(noise)
    kind = NOISES.get(noise) or DISCRETE.get(noise)
    own, norm = load_randomizer(noise) if kind is None else (None, kind.norm)
    # A million of them take seconds: once, and only where they are needed.
    mus = cache(lambda: gaussian_mus(budgets.epsilon, budgets.delta))
    clip = privacy.clip_norm * _clip_share(config, budgets, mus)
    batch = records.astype(np.float64) if privacy.unit == "record" else np.ones(len(budgets))
    radius, sensitivity = _radii(config, norm, clip, batch)
    calibrated_for = 2.0 * clip / batch if privacy.calibration == "as-published" else sensitivity
    scale = _scales(config, budgets, calibrated_for, mus)
    inverse = scale**-2.0 if config.server.weights == "inverse-variance" else np.ones(len(budgets))
    weight = inverse / np.mean(inverse)
    known, reach = weight * scale, weight * radius
    custom = None
    if noise in DISCRETE:
        # Cut to the grid towards zero means stay in their ball, and two of them are at most twice
        # its radius apart, in whole steps as well.
        sensitivity = calibrated_for = 2.0 * radius
        scale, step, budgets = _discrete_noise(noise, radius, budgets)
        largest = DISCRETE_LARGEST * step
    elif own is not None:
        custom = own(budgets.epsilon, budgets.delta, radius)
        step, largest = custom.grid(), custom.bound()
    else:
        step = report_grids(known, reach)
        largest = largest_reports(NOISES[noise].law, known, reach, step, noise_bits(config))
    require_exact(len(step) * privacy.reports_per_round, float(largest.max()), float(step.min()))
    group = exact_group(float(step.min()), float(largest.max())) if own is None else 1
    classes, class_of = _classes(noise, known, reach, weight * sensitivity, budgets, records)
    honest = bool((calibrated_for >= sensitivity * (1 - 1e-12)).all())
    mean_clip = _mean_clip(config, radius)
    return RandomizerPlan(
        noise, norm, clip, mean_clip, radius, sensitivity, scale, weight, step, group,
        classes, class_of, honest, custom, privacy.reports_per_round,
    )  # fmt: skip


def _declared_plan(config: Config, budgets: Budgets, records: NDArray[np.int64]) -> RandomizerPlan:
    """What clients' own training does to their records, as the configuration declares for all."""
    privacy, ones = config.privacy, np.ones(len(budgets))
    assert privacy.declared_sigma is not None
    clip, scale = privacy.clip_norm * ones, privacy.declared_sigma * ones
    sensitivity = declared_sensitivity(privacy.clip_norm, privacy.declared_steps) * ones
    longest = (privacy.client_clip or REACH * privacy.clip_norm) * ones
    delta = privacy.target_delta * ones
    epsilon = gaussian_epsilon(privacy.target_delta, float(sensitivity[0] / scale[0])) * ones
    custom = Declared(epsilon, delta, longest)
    step, largest = custom.grid(), custom.largest()
    require_exact(len(step), float(largest.max()), float(step.min()))
    own = Budgets(epsilon, delta)
    classes, class_of = _classes("declared", scale, sensitivity / 2.0, sensitivity, own, records)
    return RandomizerPlan(
        "declared", 2, clip, longest, longest, sensitivity, scale, ones, step, 1,
        classes, class_of, labelled_private=True, custom=custom,
    )  # fmt: skip


def _radii(config: Config, norm: int, clip: Vector, batch: Vector) -> tuple[Vector, Vector]:
    """What bounds the norm of each client's mean, and how far replacing one unit moves it."""
    sensitivity = 2.0 * clip / (batch if config.clip == "record" else 1.0)
    second = config.privacy.client_clip
    if second is None:
        return clip.copy(), sensitivity
    # Scaling into a ball is 1-Lipschitz in l2, but where it acts only 2-Lipschitz in l1.
    stretch = np.where((norm == 1) & (second < clip), 2.0, 1.0)
    return np.minimum(clip, second), np.minimum(stretch * sensitivity, 2.0 * second)


def _mean_clip(config: Config, radius: Vector) -> Vector | None:
    """To what means, or updates, are clipped [clients]; None where their records alone are."""
    if config.clip != "record":
        return radius
    second = config.privacy.client_clip
    # Not the radius: in l1 a clip that is no shorter than the records' must not act.
    return None if second is None else np.full_like(radius, second)


def _discrete_noise(noise: str, radius: Vector, budgets: Budgets) -> tuple[Vector, Vector, Budgets]:
    """Scale, step and budgets of each client's discrete noise on means in a ball of `radius`.

    A report is (epsilon, delta)-DP by the law of the noise (`laws.discrete_noise`), and accounted
    as any local randomizer of that budget is: theorems for continuous noise do not speak of it.
    """
    sensitivity, delta = 2.0 * radius, budgets.delta
    if noise == "discrete-laplace":
        delta = np.zeros(len(budgets))
        near = sensitivity / budgets.epsilon
    else:
        near = sensitivity * sigmas_of(gaussian_mus(budgets.epsilon, delta))
    step = grid_steps(near, radius)
    rows = distinct_rows(budgets.epsilon, delta, sensitivity, step)
    columns = (budgets.epsilon, delta, sensitivity / step)
    wanted = np.array(
        [
            discrete_laplace_scale(epsilon, width)
            if noise == "discrete-laplace"
            else discrete_gaussian_scale(epsilon, own, width)
            for epsilon, own, width in zip(*(each[rows.first] for each in columns), strict=True)
        ],
        dtype=np.float64,
    )
    return wanted[rows.inverse] * step, step, Budgets(budgets.epsilon, delta)


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
    elif privacy.calibration == "analytic":
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
    kind = NOISE_KINDS.index(noise if noise in (*NOISES, "declared") else "user")
    classes = ClassTable.of_columns(
        np.full(len(rows.first), kind, dtype=np.int8),
        [column[rows.first] for column in columns],
        records[rows.first].astype(np.int64),
    )
    return classes, rows.inverse

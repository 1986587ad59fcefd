"""The public plan of a run: which randomizer each client applies, and what one report is worth.

Everything here is a function of the configuration, the budgets and the number of records per
client, all of which are public; no data enters. Server and clients each derive the same plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import Vector
from fl_shuffle.accounting.client_classes import (
    DISCRETE_GAUSSIAN,
    NO_NOISE,
    NOISE_KINDS,
    ClientClass,
)
from fl_shuffle.accounting.distributions.discrete_noise import (
    discrete_gaussian_scale,
    discrete_laplace_scale,
)
from fl_shuffle.accounting.distributions.gaussian_mechanism import (
    classical_sigmas,
    gaussian_epsilon,
    gaussian_mus,
    sigmas_of,
)
from fl_shuffle.accounting.report_grid import LEAST_STEPS, grid_steps, report_grids
from fl_shuffle.accounting.rounds.class_table import ClassTable, distinct_rows, largest_of_classes
from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.randomizers.additive import NOISES, largest_reports
from fl_shuffle.randomizers.base import LocalRandomizer, load_randomizer
from fl_shuffle.randomizers.declared import REACH, Declared, declared_sensitivity
from fl_shuffle.randomizers.discrete import DISCRETE
from fl_shuffle.randomizers.discrete import LARGEST as DISCRETE_LARGEST
from fl_shuffle.randomizers.few_bits import FewBits, RoundedNoise
from fl_shuffle.randomizers.total_budgets import Tell, report_budgets, silent
from fl_shuffle.randomizers.unprotected import REACH as LONGEST_UPDATE
from fl_shuffle.randomizers.unprotected import NoRandomizer
from fl_shuffle.shuffler.exact_sums import exact_group, require_exact


@dataclass(frozen=True)
class Calibration:
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
    totals: Vector | None = None
    """What each client may spend in the whole run, if its noise was solved for from that."""
    few_bits: FewBits | None = None
    """How reports are rounded once more, to few bits: `step` is then that of their levels."""

    def __len__(self) -> int:
        return int(self.scale.size)

    @property
    def class_totals(self) -> Vector | None:
        """The total of each class's clients [classes]; None where budgets are of reports."""
        if self.totals is None:
            return None
        largest: Vector = largest_of_classes(self.totals, self.class_of, len(self.classes))
        return largest

    @cached_property
    def local(self) -> LocalRandomizer:
        """The clients' local randomizer."""
        if self.custom is not None:
            return self.custom
        epsilon, delta = self.classes.epsilon0[self.class_of], self.classes.delta0[self.class_of]
        own = epsilon, delta, self.radius, self.scale
        if self.noise in DISCRETE:
            return DISCRETE[self.noise](*own, step=self.step)
        if self.few_bits is not None:
            return RoundedNoise(self.unrounded().local, self.few_bits)
        return NOISES[self.noise](*own, weight=self.weight, step=self.step)

    def unrounded(self) -> Calibration:
        """Return the plan of the same reports before they are rounded to few bits."""
        step = report_grids(self.weight * self.scale, self.weight * self.radius)
        return replace(self, few_bits=None, step=step)

    @cached_property
    def largest(self) -> Vector:
        """No coordinate of an honest client's report exceeds this in absolute value [clients].

        Clients draw no noise that goes beyond (`noise_exact.REACH`): a report that does, and is
        left out, is nobody's honest one.
        """
        return self.local.largest()

    def round_bytes(self, dimension: int) -> int:
        """Return the bytes of a client's reports of `dimension` numbers in a round, as they
        travel."""
        few_bits = self.few_bits
        size = 4 * dimension if few_bits is None else few_bits.report_bytes(dimension)
        return size * self.reports_per_round

    def noise_of_mean(self, dimension: int, share: float = 1.0) -> float | None:
        """Return the noise of a round's mean report of `dimension` numbers, as a multiple of what a
        client can add to it without: its root mean square length (l2) over the mean radius, where
        `share` of the clients report. None for a user's own randomizer, whose distribution is not
        known.

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
        """Return what one report of each of these clients is to an accountant."""
        distinct, index = np.unique(self.class_of[clients], return_inverse=True)
        made = [self.classes[each] for each in distinct.tolist()]
        return [made[each] for each in index.tolist()]


def make_plan(
    config: Config, budgets: Budgets, records: NDArray[np.int64], tell: Tell = silent
) -> Calibration:
    """Calibrate every client's randomizer from its budget: of one report, or of the run.

    A total of the run is solved for the budget of one report first (`total_budgets`);
    `tell` gets a line for each step of that, which may take minutes.

    Sensitivities (replace-one): per-record clipping to C then averaging B records moves the mean by
    at most 2C/B; clipping the average, or a whole update, to C moves it by 2C. A second clip C_cl
    of the average bounds it by 2 C_cl too; in l1 (Laplace) it may double the first bound.
    `calibration = "as-published"` uses 2C/B whatever the clipping is, as the papers do, while the
    class keeps the true sensitivity.

    Raises `InvalidValueError` where a budget has no such calibration, `ConfigError` where the
    settings name a randomizer that cannot be one.
    """
    privacy, noise = config.privacy, config.privacy.randomizer
    if noise == NO_NOISE:
        return _plan_without_privacy(budgets, records)
    if noise == "declared" and budgets.of == "report":
        return _declared_plan(config, budgets, records)
    totals = budgets.epsilon if budgets.of == "run" else None
    if totals is not None:
        budgets = report_budgets(config, budgets, records, tell)
    budgets.require_delta(noise)
    kind = NOISES.get(noise) or DISCRETE.get(noise)
    own, norm = load_randomizer(noise) if kind is None else (None, kind.norm)
    # A million of them take seconds: once, and only where they are needed.
    mus = cache(lambda: gaussian_mus(budgets.epsilon, budgets.delta))
    batch = records.astype(np.float64) if privacy.unit == "record" else np.ones(len(budgets))
    # Where a record's clip is divided by their number, reports of equal noise cost a record equally
    # much if the clip grows with the number. A total asks for that; a report's budget only bounds.
    averaged = (
        batch if totals is not None and config.clipping == "record" else np.ones(len(budgets))
    )
    clip = privacy.clip_norm * _clip_share(config, budgets, mus, averaged)
    radius, sensitivity = _radii(config, norm, clip, batch)
    calibrated_for = 2.0 * clip / batch if privacy.calibration == "as-published" else sensitivity
    scale = _scales(config, budgets, calibrated_for, mus)
    inverse = scale**-2.0 if config.server.weights == "inverse-variance" else np.ones(len(budgets))
    weight = inverse / np.mean(inverse)
    known, reach = weight * scale, weight * radius
    custom = few_bits = None
    if noise in DISCRETE:
        # Cut to the grid towards zero means stay in their ball, and two of them are at most twice
        # its radius apart, in whole steps as well.
        sensitivity = calibrated_for = 2.0 * radius
        scale, step, budgets = _discrete_noise(noise, radius, budgets)
        known, largest = scale, DISCRETE_LARGEST * step
    elif own is not None:
        custom = own(budgets.epsilon, budgets.delta, radius)
        step, largest = custom.grid(), custom.bound()
    elif privacy.report_bits:
        few_bits = FewBits.of(noise, privacy.report_bits, known, reach)
        step, largest = few_bits.step, few_bits.largest
    else:
        step = report_grids(known, reach)
        largest = largest_reports(NOISES[noise].law, known, reach, step, noise_bits(config))
    require_exact(len(step) * privacy.reports_per_round, float(largest.max()), float(step.min()))
    group = exact_group(float(step.min()), float(largest.max())) if own is None else 1
    accounted = _accounted_as(noise, scale, step)
    columns = (known, reach, weight * sensitivity, budgets.epsilon, budgets.delta)
    classes, class_of = _classes(accounted, columns, records, totals)
    honest = bool((calibrated_for >= sensitivity * (1 - 1e-12)).all())
    mean_clip = _mean_clip(config, radius)
    return Calibration(
        noise, norm, clip, mean_clip, radius, sensitivity, scale, weight, step, group,
        classes, class_of, honest, custom, privacy.reports_per_round, totals, few_bits,
    )  # fmt: skip


def _declared_plan(config: Config, budgets: Budgets, records: NDArray[np.int64]) -> Calibration:
    """Return what clients' own training does to their records, as the configuration declares for
    all."""
    privacy, ones = config.privacy, np.ones(len(budgets))
    assert privacy.declared_sigma is not None
    clip, scale = privacy.clip_norm * ones, privacy.declared_sigma * ones
    sensitivity = declared_sensitivity(privacy.clip_norm, privacy.declared_steps) * ones
    longest = (privacy.client_clip_norm or REACH * privacy.clip_norm) * ones
    delta = privacy.target_delta * ones
    epsilon = gaussian_epsilon(privacy.target_delta, float(sensitivity[0] / scale[0])) * ones
    custom = Declared(epsilon, delta, longest)
    step, largest = custom.grid(), custom.largest()
    require_exact(len(step), float(largest.max()), float(step.min()))
    columns = (scale, sensitivity / 2.0, sensitivity, epsilon, delta)
    classes, class_of = _classes("declared", columns, records)
    return Calibration(
        "declared", 2, clip, longest, longest, sensitivity, scale, ones, step, 1,
        classes, class_of, labelled_private=True, custom=custom,
    )  # fmt: skip


def _plan_without_privacy(budgets: Budgets, records: NDArray[np.int64]) -> Calibration:
    """Return what clients of a baseline send: their updates, of a class whose epsilon0 is infinite.

    Raises `InvalidValueError` for budgets that limit a client: nothing can be spent within them.
    """
    if budgets.of == "run" or budgets.limits is not None:
        raise InvalidValueError(
            "privacy.randomizer", NO_NOISE, "has an infinite epsilon, and the budgets limit clients"
            " in the run", "leave out totals and lifetime budgets, or choose gaussian",
        )  # fmt: skip
    ones = np.ones(len(budgets))
    longest, zeros = LONGEST_UPDATE * ones, 0.0 * ones
    promised = np.full(len(budgets), np.inf)
    custom = NoRandomizer(promised, zeros, longest)
    step, largest = custom.grid(), custom.largest()
    require_exact(len(step), float(largest.max()), float(step.min()))
    columns = (zeros, longest, 2.0 * longest, promised, zeros)
    classes, class_of = _classes(NO_NOISE, columns, records)
    return Calibration(
        NO_NOISE, 2, longest, longest, longest, 2.0 * longest, zeros, ones, step, 1,
        classes, class_of, labelled_private=True, custom=custom,
    )  # fmt: skip


def _radii(config: Config, norm: int, clip: Vector, batch: Vector) -> tuple[Vector, Vector]:
    """Return what bounds the norm of each client's mean, and how far replacing one unit moves
    it."""
    sensitivity = 2.0 * clip / (batch if config.clipping == "record" else 1.0)
    second = config.privacy.client_clip_norm
    if second is None:
        return clip.copy(), sensitivity
    # Scaling into a ball is 1-Lipschitz in l2, but where it acts only 2-Lipschitz in l1.
    stretch = np.where((norm == 1) & (second < clip), 2.0, 1.0)
    return np.minimum(clip, second), np.minimum(stretch * sensitivity, 2.0 * second)


def _mean_clip(config: Config, radius: Vector) -> Vector | None:
    """Return to what means, or updates, are clipped [clients]; None where their records alone
    are."""
    if config.clipping != "record":
        return radius
    second = config.privacy.client_clip_norm
    # Not the radius: in l1 a clip that is no shorter than the records' must not act.
    return None if second is None else np.full_like(radius, second)


def _discrete_noise(noise: str, radius: Vector, budgets: Budgets) -> tuple[Vector, Vector, Budgets]:
    """Return scale, step and budgets of each client's discrete noise on means in a ball of
    `radius`.

    A report is (epsilon, delta)-DP by the distribution of the noise
    (`distributions.discrete_noise`). The step of a client's grid follows from its scale and radius,
    as the accountant computes it from a class.
    """
    sensitivity, delta = 2.0 * radius, budgets.delta
    if noise == "discrete-laplace":
        delta = np.zeros(len(budgets))
        scale = sensitivity / budgets.epsilon
    else:
        scale = sensitivity * sigmas_of(gaussian_mus(budgets.epsilon, delta))
    step = grid_steps(scale, radius)
    rows = distinct_rows(budgets.epsilon, delta, sensitivity, step)
    asked = [each[rows.first] for each in (budgets.epsilon, delta, sensitivity, radius, step)]
    found = np.array(
        [
            _scale_and_step(noise, *row)
            for row in zip(*(each.tolist() for each in asked), strict=True)
        ]
    ).reshape(-1, 2)[rows.inverse]
    return found[:, 0], found[:, 1], Budgets(budgets.epsilon, delta)


def _scale_and_step(
    noise: str, epsilon: float, delta: float, sensitivity: float, radius: float, step: float
) -> tuple[float, float]:
    """Return the smallest scale of whole steps that keeps the budget, on the grid that belongs to
    it.

    A coarser grid's scale is no smaller: its multiples are some of the finer one's. So the steps
    only grow here, and soon no longer.
    """
    while True:
        width = sensitivity / step
        steps = (
            discrete_laplace_scale(epsilon, width)
            if noise == "discrete-laplace"
            else discrete_gaussian_scale(epsilon, delta, width)
        )
        needed = max(step, float(grid_steps(steps * step, radius)))
        if needed == step:
            return steps * step, step
        step = needed


def _accounted_as(noise: str, scale: Vector, step: Vector) -> str:
    """Return the kind of noise that classes of a run have (`ClientClass.noise`).

    Discrete Laplace noise is accounted by the budget that it keeps, as a user's randomizer is: no
    continuous noise is known to be as good. So is discrete Gaussian noise of a run in which it has
    very few steps.
    """
    if noise in (*NOISES, "declared"):
        return noise
    close = noise == DISCRETE_GAUSSIAN and bool((scale >= LEAST_STEPS * step).all())
    return DISCRETE_GAUSSIAN if close else "user"


def _clip_share(
    config: Config, budgets: Budgets, mus: Callable[[], Vector], averaged: Vector
) -> Vector:
    """Return each client's clip as a share of the largest: 1, or proportional to what its budget
    buys.

    `averaged` records [clients] share one clip: the average moves by an `averaged`-th of it.
    """
    if config.privacy.personalization == "noise":
        return np.ones(len(budgets))
    reach = averaged * (budgets.epsilon if config.privacy.randomizer == "laplace" else mus())
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
    """Return bits of a noise word: 64 if the noise protects real data (docs/concepts/noise.md)."""
    return 64 if config.run.entropy == "system" else 32


def _classes(
    noise: str,
    columns: tuple[Vector, ...],
    records: NDArray[np.int64],
    totals: Vector | None = None,
) -> tuple[ClassTable, NDArray[np.int64]]:
    """Return the classes of clients with these columns [clients], in the order of
    `class_table.COLUMNS`, and which of them each client is in. Clients of different `totals` are in
    different classes."""
    rows = distinct_rows(*columns, records, *(() if totals is None else (totals,)))
    classes = ClassTable.of_columns(
        np.full(len(rows.first), NOISE_KINDS.index(noise), dtype=np.int8),
        [column[rows.first] for column in columns],
        records[rows.first].astype(np.int64),
    )
    return classes, rows.inverse

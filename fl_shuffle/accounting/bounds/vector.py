"""Proven amplification for vector reports: Gaussian noise on l2 balls, Laplace noise on l1 balls.

Client 1's mean report moves from x0 to x1. Let r be any reference point, s >= |x_b - r| and
rho_j >= |x_j - r| for every mean x_j another client may have. With one noise law for all,

    delta(eps) <= min{ delta_local(eps), E[L_1 1{L_1 + sum_j B_j L_j > 0}] + penalty(eps) },

L the law of the opposite pair at distance s from the blanket's centre, B_j ~ Bernoulli(gamma_j):

* Laplace, scale b: gamma_j = e^(-rho_j / b), no penalty.
* Gaussian, sigma: gamma_j = e^(-eps_j) for any eps_j >= 0, and
  penalty = (e^eps - 1 + 2 delta_local(eps)) sum_j gamma_j delta_G(eps_j; rho_j / sigma),
  delta_G the Gaussian profile. Every eps_j = z c_j + c_j^2 / 2 with c_j = rho_j / sigma; z is free.

The dimension does not enter. The bound is symmetric: it covers both directions. The proofs are in
docs/proofs.md. Noise of another scale hides nobody: in high dimension it is recognised by its norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.bounds.few_blankets import blanket_values
from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon, laplace_profile
from fl_shuffle.accounting.bounds.partial_shuffle.curve import (
    LaplaceShuffleCurve,
    PartialShuffleCurve,
)
from fl_shuffle.accounting.bounds.participation import require_participation, with_absence
from fl_shuffle.accounting.bounds.report_class import ReportClass
from fl_shuffle.accounting.engine.blanket_counts import poisson_binomial
from fl_shuffle.accounting.engine.monotone_search import near_crossing
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.laws.amplification import AmplificationLaw
from fl_shuffle.accounting.laws.continuous import LaplaceLaw
from fl_shuffle.accounting.laws.gaussian import GaussianLaw
from fl_shuffle.accounting.laws.gaussian_mechanism import (
    gaussian_epsilon,
    gaussian_mu,
    gaussian_profile,
)
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import PrecisionError, require_integer, require_open_unit, require_real

FloatArray = NDArray[np.float64]

DEPTHS = np.arange(0.0, 12.0, 0.05)
"""Candidates for z; the best is near 6."""


@dataclass(frozen=True)
class _Reference:
    """Everything in noise widths: the differing client's distance and the others' reach."""

    own: float
    reach: FloatArray
    counts: NDArray[np.int64]


class VectorCurve:
    """The privacy curve of one client of class `index` in one shuffled batch; proven.

    `classes` describes the whole batch, the client included. Clients with other noise or scale are
    ignored (they do not help and do not harm). Values are upper bounds valid in both directions.
    `concentrate` trades up to 0.5% of epsilon for speed where many classes make a large batch: the
    number of blanket reports is replaced by one it hardly ever falls below. `participation` < 1:
    each client of the batch sends its report with that probability, and who did stays secret.

    Raises `InvalidValueError` if the client's class is empty.
    """

    def __init__(
        self,
        classes: Sequence[ReportClass],
        index: int = 0,
        *,
        relative_error: float = TOLERANCES.vector_relative_error,
        concentrate: bool = False,
        participation: float = 1.0,
    ) -> None:
        require_integer("index", index, minimum=0, maximum=len(classes) - 1)
        self.own = classes[index]
        require_integer("count of the client's class", self.own.count, minimum=1)
        self._relative_error = require_real(
            "relative_error", relative_error, minimum=1e-6, maximum=0.5
        )
        self._concentrate = concentrate
        self._rate = require_participation(participation)
        merged: dict[float, int] = {}
        for position, other in enumerate(classes):
            if (other.noise, other.scale) == (self.own.noise, self.own.scale):
                others = other.count - (position == index)
                merged[other.radius] = merged.get(other.radius, 0) + others
        radii = np.array(sorted(r for r, count in merged.items() if count > 0), dtype=np.float64)
        counts = np.array([merged[r] for r in radii], dtype=np.int64)
        self.anonymity = 1 + int(counts.sum())
        """Reports with the same noise, the client's own included."""
        self._reference = self._best_reference(radii, counts)
        self._blanket = self._has_blanket()
        scale = self.own.scale
        batch = self.own.ratio, self.own.radius / scale, radii / scale, counts
        sharper: PartialShuffleCurve | LaplaceShuffleCurve
        if self.own.noise == "gaussian":
            sharper = PartialShuffleCurve(*batch, self._relative_error)
        else:
            sharper = LaplaceShuffleCurve(*batch)
        # Secret check-in is known to the blanket alone, which also says as much of a small batch of
        # faint reports, and many times faster.
        widest = max(self.own.ratio, (self.own.radius + float(radii.max(initial=0.0))) / scale)
        faint = self._blanket and (
            self.anonymity <= TOLERANCES.vector_faint_batch
            and widest <= TOLERANCES.vector_faint_spread
        )
        useful = sharper.credit and self._rate == 1.0 and not faint
        self._sharper = sharper if useful else None
        self._sharper_below = self._blanket_below = math.inf
        self.credit = self._blanket or self._sharper is not None
        """Whether any theorem gives the shuffler credit; if not the curve is the local one."""
        self._mu = self._predicted_mu(self._reference) if self._blanket else math.inf
        if (
            self._reference.own > TOLERANCES.heavy_tail_distance
            and self._expected_blanket(6.0) < TOLERANCES.few_blanket_reports
        ):
            # Few, heavy-tailed terms are dear; 2% of delta is far below 1% of epsilon.
            self._relative_error = max(self._relative_error, 0.02)
        self._patient = True
        self._seen: dict[float, float] = {}
        self._table = self._table_size()
        self._number_laws: dict[bytes, tuple[FloatArray, int, float]] = {}

    def _table_size(self) -> int:
        """Up to how many blanket reports are looked up: a power of two; 0 for none."""
        if (
            not self._blanket
            or self._relative_error < TOLERANCES.vector_table_error
            or self._rate < 1.0
        ):
            return 0
        mean = self._expected_blanket(5.0)
        needed = mean + 4.0 * math.sqrt(mean) + 4.0
        if needed > TOLERANCES.vector_table_reports:
            return 0
        # Batches of many sizes share a table.
        return max(TOLERANCES.vector_smallest_table, 1 << math.ceil(math.log2(needed)))

    def _has_blanket(self) -> bool:
        needed = (
            TOLERANCES.min_blanket_reports
            if self._reference.own < TOLERANCES.near_reference
            else TOLERANCES.min_blanket_reports_far
        )
        if self.own.ratio == 0.0 or self._expected_blanket(6.0) < needed:
            return False
        # A few blanket reports far away do not help: their likelihood ratios vary too much.
        return self.own.noise == "laplace" or (
            self._predicted_mu(self._reference) < TOLERANCES.max_mu_share * self.own.ratio
        )

    def _best_reference(self, radii: FloatArray, counts: NDArray[np.int64]) -> _Reference:
        """The origin, or the midpoint of the pair where that is nearer; both are valid."""
        scale = self.own.scale
        ratio = self.own.ratio
        origin = _Reference(self.own.radius / scale, radii / scale, counts)
        midpoint = _Reference(0.5 * ratio, (radii + self.own.radius) / scale, counts)
        if ratio >= 2.0 * self.own.radius / scale or counts.size == 0:
            return origin
        return min((origin, midpoint), key=self._predicted_mu)

    def _masses(self, depth: float, reference: _Reference | None = None) -> FloatArray:
        reach = (self._reference if reference is None else reference).reach
        exponent = reach
        if self.own.noise == "gaussian":
            exponent = depth * reach + 0.5 * reach**2
        masses: FloatArray = np.exp(-np.minimum(exponent, TOLERANCES.max_law_exponent))
        return np.where(exponent < TOLERANCES.max_law_exponent, masses, 0.0)

    def _expected_blanket(self, depth: float, reference: _Reference | None = None) -> float:
        counts = (self._reference if reference is None else reference).counts
        return float(self._masses(depth, reference) @ counts)

    def _predicted_mu(self, reference: _Reference) -> float:
        """Normal approximation of the shuffled curve: sd of L over the root of the blanket."""
        c = min(reference.own, 15.0)
        if self.own.noise == "gaussian":
            variance = 4.0 * math.sinh(c * c)
        else:
            variance = (math.expm1(3.0 * c) / 3.0) - 2.0 * math.expm1(c) - math.expm1(-c)
            variance += math.exp(-c) * math.expm1(2.0 * c) ** 2
            variance *= math.exp(-2.0 * c)
        return math.sqrt(self._rate * variance / (1.0 + self._expected_blanket(6.0, reference)))

    @property
    def predicted_mu(self) -> float:
        """A normal approximation of the shuffled curve: not a bound, only a scale."""
        if not self.credit:
            return self.own.ratio
        return self._mu if self._sharper is None else min(self._mu, self._sharper.predicted_mu)

    def loosened(self, relative_error: float) -> VectorCurve:
        """The same curve with a larger numerical excess, and cheaper."""
        other = copy(self)
        other._relative_error = relative_error
        other._patient = False
        other._seen = {}
        other._table = other._table_size()
        return other

    def local_delta(self, epsilon: float) -> float:
        """The exact curve of the client's own noise, the shuffler ignored."""
        profile = gaussian_profile if self.own.noise == "gaussian" else laplace_profile
        return self._rate * float(profile(epsilon, self.own.ratio))

    def local_epsilon(self, delta: float) -> float:
        """The exact local epsilon at `delta`, rounded up."""
        if delta >= self._rate:
            return 0.0
        # The smallest eps with q delta_local(eps) <= delta.
        delta = delta / self._rate * (1.0 if self._rate == 1.0 else 1.0 - 1e-12)
        if self.own.noise == "gaussian":
            return gaussian_epsilon(delta, self.own.ratio)
        return laplace_epsilon(delta, self.own.ratio)

    def delta(self, epsilon: float) -> float:
        """Upper bound on the divergence at `epsilon` >= 0 (nats), both directions."""
        budget = require_real("epsilon", epsilon, minimum=0.0)
        if budget not in self._seen:
            local = self.local_delta(budget)
            useful = (
                self.credit
                and local > TOLERANCES.negligible_local_delta
                and budget <= TOLERANCES.max_law_exponent
            )
            self._seen[budget] = local
            if useful:
                self._seen[budget] = min(local, self._shuffled(budget, local, self._known(budget)))
        return self._known(budget)

    def _known(self, epsilon: float) -> float:
        """The true curve is nonincreasing, so an earlier point may say more than this one."""
        return min(value for at, value in self._seen.items() if at <= epsilon)

    def _shuffled(self, epsilon: float, local: float, known: float) -> float:
        sharper = math.inf
        if self._sharper is not None and epsilon < self._sharper_below:
            sharper = self._sharper.delta(epsilon)
        if not self._blanket or epsilon >= self._blanket_below:
            return sharper
        # The blanket is not computed where even its normal approximation is clearly above.
        likely = float(gaussian_profile(epsilon, self._mu))
        if sharper <= TOLERANCES.vector_clearly_better * likely:
            return sharper
        blanket = self._blanket_bound(epsilon, local, min(known, sharper))
        if blanket * TOLERANCES.vector_hopeless < sharper < math.inf:
            # Rare losses are the blanket's: what falls behind it there does not catch up.
            self._sharper_below = epsilon
        elif blanket >= known and self._sharper_below < epsilon and not self._patient:
            # What an impatient engine no longer certifies it certifies even less further out.
            self._blanket_below = epsilon
        return min(sharper, blanket)

    def _blanket_bound(self, epsilon: float, local: float, known: float) -> float:
        """Of a batch's blankets; infinite where it would say no more than what is `known`."""
        if self.own.noise == "laplace":
            law: AmplificationLaw = LaplaceLaw(self._reference.own, epsilon)
            guess = float(gaussian_profile(epsilon, self._mu))
            return self._engine(law, self._masses(0.0), epsilon, local, guess)
        depth, guess = self._best_depth(epsilon, local)
        if guess > TOLERANCES.vector_no_gain * known:
            return math.inf
        total = self._at_depth(epsilon, local, depth, guess)
        if self._table:
            return total
        again, guess = self._best_depth(epsilon, local)
        if abs(again - depth) > 0.2:
            total = min(total, self._at_depth(epsilon, local, again, guess))
        return total

    def _engine(
        self, law: AmplificationLaw, masses: FloatArray, epsilon: float, local: float, guess: float
    ) -> float:
        counts = self._reference.counts
        if self._table:
            looked_up = self._looked_up(epsilon, masses)
            if looked_up is not None:
                return looked_up
        classes = list(zip(masses.tolist(), counts.tolist(), strict=True))
        if self._rate < 1.0:
            law, classes = with_absence(law, classes, self._rate, epsilon)
            masses = np.array([mass for mass, _ in classes])
        if self._concentrate and counts.size > 2:
            # P(M < m) local + E(mean of m + 1 copies)_+ : the latter falls with m.
            mean = float(masses @ counts)
            variance = float((masses * (1.0 - masses)) @ counts)
            exponent = math.log(max(local / max(1e-5 * guess, 1e-250), 1.0))
            # Bernstein's inequality for a sum of independent terms in [0, 1].
            below = exponent / 3.0 + math.sqrt(exponent**2 / 9.0 + 2.0 * exponent * variance)
            if below <= TOLERANCES.max_concentration * mean:
                rare = local * math.exp(-exponent)
                return rare + self._certified(law, [(1.0, math.floor(mean - below))])
        return self._certified(law, classes)

    def _looked_up(self, epsilon: float, masses: FloatArray) -> float | None:
        """The same expectation from the table of all numbers of blanket reports; None without one.

        More reports than the table has count as its last entry: values fall with their number.
        """
        own, most = self._reference.own, self._table
        try:
            values = blanket_values(
                self.own.noise,
                own,
                epsilon,
                TOLERANCES.vector_table_tail,
                most,
                self._relative_error,
            )
        except PrecisionError:
            return None
        key = masses.tobytes()
        if key not in self._number_laws:
            counts = self._reference.counts.astype(np.float64)
            self._number_laws[key] = poisson_binomial(counts[masses > 0.0], masses[masses > 0.0])
        law, first, missing = self._number_laws[key]
        at = np.minimum(first + np.arange(law.size), most)
        return float(law @ values[at]) * TOLERANCES.pmf_inflation + missing * float(values[0])

    def _certified(self, law: AmplificationLaw, blanket: list[tuple[float, int]]) -> float:
        """The engine's bound; infinite (so that the local curve decides) where it gives none."""
        asked = self._relative_error
        if not self._patient:
            return amplified_delta(law, blanket, relative_error=asked, best_effort=True).delta
        for allowed in dict.fromkeys((asked, max(asked, TOLERANCES.vector_fallback_error))):
            try:
                return amplified_delta(law, blanket, relative_error=allowed).delta
            except PrecisionError:
                continue  # no bound; the local curve and earlier points of this one still are
        return math.inf

    def _at_depth(self, epsilon: float, local: float, depth: float, guess: float) -> float:
        # The top of the law is cut where what is left adds a tenth of the allowed error to delta.
        tail = 0.1 * self._relative_error * min(guess, local)
        law = GaussianLaw(self._reference.own, epsilon, tail=max(tail, 1e-290))
        blanket = self._engine(law, self._masses(depth), epsilon, local, guess)
        if 0.0 < blanket < 0.9:
            fitted = gaussian_mu(epsilon, blanket)
            self._mu = fitted * math.sqrt(self._weight(depth) / self._weight(6.0))
        # Moving a client's report law by total variation t moves delta by at most kappa t.
        kappa = math.expm1(epsilon) + 2.0 * local
        return blanket + kappa * float(self._depth_table[0][round(depth / DEPTHS[1])])

    def _weight(self, depth: float) -> float:
        return 1.0 + self._expected_blanket(depth)

    def _leak(self, depths: FloatArray) -> FloatArray:
        """sum_j gamma_j delta_G(eps_j; c_j) at each depth z: what the blankets miss."""
        reach = self._reference.reach[:, None]
        counts = self._reference.counts
        exponent = depths[None, :] * reach + 0.5 * reach**2
        missed = np.where(reach > 0.0, gaussian_profile(exponent, reach), 0.0)
        result: FloatArray = self._rate * (counts @ (np.exp(-np.minimum(exponent, 700.0)) * missed))
        return result * (1.0 + 1e-9)

    @cached_property
    def _depth_table(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """For every candidate depth: the leak, the chance of no blanket report, and their mean."""
        masses = np.stack([self._masses(depth) for depth in DEPTHS], axis=1)
        counts = self._reference.counts
        hiding = 1.0 - self._rate + self._rate * masses
        alone = np.exp(counts @ np.log1p(-np.minimum(hiding, 1.0 - 1e-12)))
        return self._leak(DEPTHS), alone, counts @ masses

    def _best_depth(self, epsilon: float, local: float) -> tuple[float, float]:
        """The z that minimises the predicted bound, and that prediction. Any z is valid."""
        leak, alone, mean = self._depth_table
        mu = self._mu * np.sqrt(self._weight(6.0) / (1.0 + mean))
        # With few blanket reports, the chance that there is none at all decides.
        predicted = alone * local + (1.0 - alone) * gaussian_profile(epsilon, mu)
        predicted += (math.expm1(epsilon) + 2.0 * local) * leak
        best = int(np.argmin(predicted))
        return float(DEPTHS[best]), float(predicted[best])

    def epsilon(self, delta: float, *, tolerance: float = 1e-3) -> float:
        """The smallest epsilon found with curve(epsilon) <= `delta`: rounded up.

        The curve there is within `tolerance` (relative) of the target. Never above the local value.
        """
        target = require_open_unit("delta", delta)
        high = self.local_epsilon(target)
        if not self.credit or high == 0.0:
            return high
        first = min(gaussian_epsilon(target, self.predicted_mu), high)
        return near_crossing(self.delta, target, first, high, tolerance)

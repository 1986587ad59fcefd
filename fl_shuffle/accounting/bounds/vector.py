"""Proven amplification for vector reports: Gaussian noise on l2 balls, Laplace noise on l1 balls.

    delta(eps) <= min{ delta_local(eps), partial shuffles (`partial_shuffle`) }, and of Laplace
    reports, and of wide Gaussian ones far out, the blanket bound (`vector_blanket`), too.

The dimension does not enter. Noise of another scale hides nobody: in high dimension it is
recognized by its norm. docs/research/proofs, sections 5 and 11 to 13.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon, laplace_profile
from fl_shuffle.accounting.bounds.one_round import OneRoundCurve, Theorem
from fl_shuffle.accounting.bounds.partial_shuffle.curve import gaussian_shuffle, laplace_shuffle
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_bound import NEGLIGIBLE
from fl_shuffle.accounting.bounds.vector_blanket import VectorBlanket, vector_blanket
from fl_shuffle.accounting.client_classes import ShuffledRound
from fl_shuffle.accounting.distributions.gaussian_mechanism import (
    gaussian_epsilon,
    gaussian_profile,
)

WIDE_RATIO = 1.0
"""Gaussian reports that move by more noise standard deviations are wide: far out, where few large
ratios decide, the blanket is the smaller bound by a factor of up to three ..."""
FAR_OUT = 16.0
"""... from this many predicted mu on ..."""
FAR_OUT_TRIED = 24.0, 48.0
"""... if it is the smaller one at one of these multiples of the predicted mu. Of radii from 0.55 to
1.4 and 200 to 1e5 reports it was smaller elsewhere only where it was at one of them."""
CLEARLY = 0.25
"""Where the blanket says less than this share of what the theorem is predicted to say, the theorem
is not asked. A poor prediction enlarges the bound, which stays valid. At 32 points of four batches
(radii 0.75 to 1.2, 1e4 and 1e5 reports) the theorem said at least 0.49 of its prediction."""
FAR_OUT_REPORTS = 8.0
"""With fewer expected blanket reports it never was."""
NEGLIGIBLE_LOCAL_DELTA = 1e-40
"""Where the local curve is below this there is nothing left to amplify."""


class VectorCurve(OneRoundCurve):
    """The privacy curve of one client in one shuffled batch that arrives whole; proven.

    Values are upper bounds valid in both directions, as if everybody took part.
    """

    def __init__(self, batch: ShuffledRound) -> None:
        super().__init__()
        # As the class says: secret check-in is the business of `CheckInCurve`.
        whole = replace(batch, participation=1.0)
        self.batch = batch
        self.anonymity = batch.anonymity
        found: list[Theorem | VectorBlanket | None]
        if batch.noise == "gaussian":
            # Near the deltas of a run section 13 is the sharper one, so a Gaussian curve needs
            # the blanket far out only (`_far_out`). For Laplace reports neither is always the
            # smaller.
            found = [gaussian_shuffle(*batch.in_widths)]
        else:
            found = [laplace_shuffle(*batch.in_widths), vector_blanket(whole)]
        self._theorems = [each for each in found if each is not None]
        wide = batch.noise == "gaussian" and self.batch.exposure > WIDE_RATIO and self.credit
        self._blanket = vector_blanket(whole) if wide else None

    @cached_property
    def _far_out(self) -> tuple[VectorBlanket, float] | None:
        """The blanket if it can be the smaller bound far out, and the epsilon from which it can.

        A function of the batch alone.
        """
        blanket, start = self._blanket, FAR_OUT
        if blanket is None or blanket.reports < FAR_OUT_REPORTS:
            return None
        # Looked for at two points once, and not at every point of the curve. The blanket gains with
        # epsilon: it is not asked below a point at which it lost.
        for multiple in FAR_OUT_TRIED:
            epsilon = multiple * self.predicted_mu
            if (local := self.local_delta(epsilon)) > NEGLIGIBLE_LOCAL_DELTA:
                other = min(local, *(each.delta(epsilon) for each in self._theorems))
                if blanket.delta(epsilon, other) < other:
                    return blanket, start * self.predicted_mu
            start = multiple
        return None

    @property
    def credit(self) -> bool:
        """Whether some theorem is expected to gain."""
        return bool(self._theorems)

    @property
    def least_delta(self) -> float:
        """Costs of the Gram order are chosen for a delta of 1e-18 or more, and add to the bound."""
        if self.batch.noise != "gaussian":
            return 0.0
        return NEGLIGIBLE if self._blanket is None else NEGLIGIBLE_LOCAL_DELTA

    @property
    def predicted_mu(self) -> float:
        """A Gaussian parameter of about the curve's size: not a bound, only a scale."""
        return min((each.predicted_mu for each in self._theorems), default=self.batch.exposure)

    def local_delta(self, epsilon: float) -> float:
        """Return the delta of the client's own noise at `epsilon`."""
        profile = gaussian_profile if self.batch.noise == "gaussian" else laplace_profile
        return float(profile(epsilon, self.batch.exposure))

    def local_epsilon(self, delta: float) -> float:
        """Return the epsilon of the client's own noise at `delta`, rounded up."""
        if self.batch.noise == "gaussian":
            return gaussian_epsilon(delta, self.batch.exposure)
        return laplace_epsilon(delta, self.batch.exposure)

    def _shuffled(self, epsilon: float, local: float) -> float:
        if local <= NEGLIGIBLE_LOCAL_DELTA:
            return local
        blanket = self._blanket_at(epsilon)
        if blanket is not None:
            # The blanket alone is valid, and the theorem would only be asked to lose.
            guide = min(local, self._predicted(epsilon))
            if (found := blanket.delta(epsilon, guide)) < CLEARLY * guide:
                return found
        # The minimum of valid bounds, at each epsilon for itself (section 5).
        found = min((each.delta(epsilon) for each in self._theorems), default=local)
        return found if blanket is None else min(found, blanket.delta(epsilon, found))

    def _predicted(self, epsilon: float) -> float:
        """Return about what the theorems give, in little time; infinite where that is not known."""
        theorems = [each for each in self._theorems if isinstance(each, Theorem)]
        known = [each.predicted(epsilon) for each in theorems if each.predicted is not None]
        return min(known, default=math.inf)

    def _blanket_at(self, epsilon: float) -> VectorBlanket | None:
        """Return the blanket if it is asked at `epsilon`, of Gaussian reports far out."""
        if epsilon <= FAR_OUT * self.predicted_mu or self._far_out is None:
            return None
        blanket, start = self._far_out
        return blanket if epsilon > start else None

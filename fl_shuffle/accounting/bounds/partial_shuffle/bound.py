"""The sharper bound at one epsilon: every free parameter chosen, every cost added."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from fl_shuffle.accounting.bounds.partial_shuffle import lognormal
from fl_shuffle.accounting.bounds.partial_shuffle.collapsed_atoms import (
    Choice,
    ToppedLaw,
    collapse,
    lifted,
)
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import (
    ConvexOrderLaw,
    deficit,
    gaussian_law,
    squared_tail,
)
from fl_shuffle.accounting.bounds.partial_shuffle.prediction import predict
from fl_shuffle.accounting.bounds.partial_shuffle.rings import rings
from fl_shuffle.accounting.bounds.partial_shuffle.sums.atomic_excess import AtomicSum, likely_tilt
from fl_shuffle.accounting.bounds.partial_shuffle.sums.variance_cells import (
    Excess,
    Kind,
    Terms,
    excess_of_sum,
)
from fl_shuffle.accounting.bounds.partial_shuffle.swap import Swap, choose_swap
from fl_shuffle.accounting.engine.convex_rounding import round_up_convex
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import PrecisionError


@dataclass(frozen=True)
class Setting:
    """What the theorem needs of a batch of Gaussian reports, in noise widths.

    `move`: client 1's two means lie at most this apart; `spread`: each of them lies at most this
    far from any other client's mean; `diameter` of a ball that holds them all; `reach`: others'
    means to omega's; `own`: client 1's to omega's. `count` others.
    """

    count: int
    move: float
    spread: float
    diameter: float
    reach: float
    own: float

    @property
    def predicted_mu(self) -> float:
        """A normal approximation of the curve: not a bound, only a scale."""
        return math.sqrt(variance_bound(self, 0.0) / self.count)


@lru_cache(maxsize=1 << 14)
def third_order_delta(setting: Setting, epsilon: float, *, in_rings: bool = True) -> float:
    """The bound through the third-order comparison; infinite where no parameters are found.

    `in_rings`: the others are told apart by their distance, which takes two to four times as long.
    Kept: batches of one size are one setting, whichever of a run's clients are in them.
    """
    local = float(gaussian_profile(epsilon, setting.move)) * TOLERANCES.profile_inflation
    if not local > TOLERANCES.third_order_negligible_delta:
        return math.inf
    variance = variance_bound(setting, epsilon)
    law = gaussian_law(epsilon, setting.move, setting.spread)
    cut, goal = predict(law, setting.count, variance)
    drift = math.expm1(epsilon)
    rate = max(drift / variance, 1.0 / math.sqrt(setting.count * variance))
    swaps = partial(
        choose_swap,
        count=setting.count,
        reach=setting.reach,
        own=setting.own,
        epsilon=epsilon,
        local=local,
        sensitivity=rate * setting.count * (local + drift),
    )
    # With few others a small cost cannot be had: a larger one still gives a bound.
    goals = goal * np.array(TOLERANCES.third_order_goals)
    for goal in goals[goals < local].tolist():
        swap = swaps(goal=TOLERANCES.third_order_cost_share * goal)
        if swap is not None:
            break
    else:
        return math.inf

    law = replace(law, upper=cut)
    left = float(law.stop_loss(np.array([cut]))[0])
    top = ToppedLaw(law, squared_tail(law, setting.spread, left), left)
    classes = [(1.0, setting.count - 1)]
    try:
        atoms, _, extra = round_up_convex(top, classes, TOLERANCES.third_order_rounding)
    except PrecisionError:
        return math.inf
    forms = [_Form.of([(atoms, variance)], left + extra)]
    if (
        in_rings
        and isinstance(law, ConvexOrderLaw)
        and epsilon >= TOLERANCES.rings_from
        and setting.diameter <= setting.spread * (1.0 + TOLERANCES.partial_shuffle_round_off)
    ):
        told = rings(law, setting.diameter, left, atoms.values)
        parts = [(ring.atoms, min(ring.variance, variance)) for ring in told]
        forms.append(_Form.of(parts, max(ring.tail for ring in told)))

    swapped = _Swapped(setting.count, drift, local, deficit(law, setting.spread))
    best, close = math.inf, TOLERANCES.third_order_close
    for attempt in range(TOLERANCES.third_order_passes + 1):
        firsts = [swapped.sum_at(form, form.hints, swap, 0) for form in forms]
        each = [swapped.likely(form, swap, one) for form, one in zip(forms, firsts, strict=True)]
        likely = min(each)
        if attempt > 0 or not close * goal < likely < math.inf:
            found, form = swapped.best_form(forms, swap, firsts)
            best = likely = min(best, found)
            forms = [form]
            if best <= close * goal or math.isinf(best):
                break
        elif not firsts[0].doubtful and each[-1] > TOLERANCES.third_order_behind * each[0]:
            # Other costs do not make up for so much.
            del forms[1:]
        # Costs that suit what was found, for the form that says most.
        goal = 0.5 * likely
        swap = swaps(goal=TOLERANCES.third_order_cost_share * goal)
        if swap is None:
            break
    return best


@dataclass
class _Form:
    """One way to tell others apart: for each kind, L* as atoms and a bound on its variance.

    `tail`: cut off of each at most. `hints`: how the kinds' lower parts were collapsed before.
    """

    parts: list[tuple[AtomicLaw, float]]
    tail: float
    hints: list[Choice | None]
    rate: float | None = None
    """The exponential rate that matters, once it is known ..."""
    line: float | None = None
    """... and where the line of integration was last, with atoms ..."""
    tilt: float | None = None
    """... and with moments."""

    @classmethod
    def of(cls, parts: list[tuple[AtomicLaw, float]], tail: float) -> _Form:
        return cls(parts, tail, [None] * len(parts))


@dataclass(frozen=True)
class _Sum:
    """The main term's sum at one node of eta, of `weight`; what moments, then atoms say of it.

    `choices`: how the lower parts were collapsed.
    """

    weight: float
    choices: list[Choice]
    by_moments: Excess
    by_atoms: AtomicSum | None

    @property
    def estimate(self) -> float:
        """What `bound` will about be."""
        known = self.by_moments.log_bound
        if self.by_atoms is not None:
            known = min(known, self.by_atoms.log_estimate)
        return _exponential(known)

    @property
    def doubtful(self) -> bool:
        """Whether `bound` may be far from `estimate`."""
        return self.by_atoms is not None and self.by_atoms.doubtful

    @property
    def belief(self) -> float:
        """What is above another result when `estimate` times this is."""
        return TOLERANCES.third_order_doubtful if self.doubtful else TOLERANCES.third_order_hopeless

    def bound(self, enough: float) -> float:
        """An upper bound on E(sum)_+; up to `enough` the one by moments will do."""
        best = _exponential(self.by_moments.log_bound)
        if (
            best > enough
            and self.by_atoms is not None
            and self.by_atoms.log_estimate + math.log(self.belief) < self.by_moments.log_bound
        ):
            # Nodes of little weight need not be as precise.
            smoothing = min(
                TOLERANCES.second_order_smoothing
                / math.sqrt(max(self.weight, TOLERANCES.partial_shuffle_tiny)),
                TOLERANCES.second_order_most_smoothing,
            )
            best = min(best, self.by_atoms.bound(smoothing))
        return best


@dataclass(frozen=True)
class _Swapped:
    """`count` others at one epsilon: e^epsilon - 1, H, L^- from above."""

    count: int
    drift: float
    local: float
    missing: tuple[AtomicLaw, float]

    def likely(self, form: _Form, swap: Swap, first: _Sum) -> float:
        """About the bound, from the first node of eta alone; less than from all of them."""
        return self._whole(form, swap, [first.estimate] * swap.losses.size)

    def best_form(self, forms: list[_Form], swap: Swap, firsts: list[_Sum]) -> tuple[float, _Form]:
        """The least bound of several forms, each at every node of eta, and which form gave it.

        `firsts`: the sums at the first node. The first form is one law for all others.
        """
        likely = [self.likely(form, swap, first) for form, first in zip(forms, firsts, strict=True)]
        least = [each * first.belief for each, first in zip(likely, firsts, strict=True)]
        best, chosen = math.inf, forms[0]
        for place in sorted(range(len(forms)), key=lambda place: least[place]):
            first, slight = firsts[place], TOLERANCES.third_order_no_gain * likely[0]
            # Neither what hardly gains nor what can hardly come out below is computed.
            no_gain = place > 0 and likely[place] > slight and not firsts[0].doubtful
            if no_gain or least[place] >= best:
                continue
            found = self._bound(forms[place], swap, first, best)
            if found < best:
                best, chosen = found, forms[place]
        return best, chosen

    def _bound(self, form: _Form, swap: Swap, first: _Sum, below: float) -> float:
        """The bound of one form at all nodes of eta; infinite if it can hardly be `below`."""
        sums = [first]
        for node in range(1, swap.losses.size):
            sums.append(self.sum_at(form, sums[-1].choices, swap, node))
        if self._whole(form, swap, [each.estimate for each in sums]) * first.belief >= below:
            return math.inf
        mains = math.fsum(each.weight * each.estimate for each in sums)
        # A node of little weight need not be known well.
        shares = [
            each.bound(
                TOLERANCES.third_order_slight
                * mains
                / max(each.weight, TOLERANCES.partial_shuffle_tiny)
            )
            for each in sums
        ]
        return self._whole(form, swap, shares)

    def _whole(self, form: _Form, swap: Swap, mains: list[float]) -> float:
        """The bound on delta from those on the main term at the nodes of eta."""
        main = math.fsum(w * each for w, each in zip(swap.weights.tolist(), mains, strict=True))
        whole = (main + self.count * (1.0 + swap.gain) * form.tail) / swap.smallest + swap.cost
        return whole * TOLERANCES.profile_inflation if math.isfinite(whole) else math.inf

    def sum_at(self, form: _Form, hints: Sequence[Choice | None], swap: Swap, node: int) -> _Sum:
        """The sum of L + gain L^+ + loss L^- at a node of eta; laws and moments are rounded up."""
        gain, loss, weight = swap.gain, float(swap.losses[node]), float(swap.weights[node])
        up = TOLERANCES.lift_round_off
        rise, fall = (gain + loss) * self.local, (1.0 - loss) * self.drift
        mean = rise - fall + 4.0 * up * (rise + fall)
        kinds: list[Kind] = []
        choices: list[Choice] = []
        every = [lifted(own, gain, loss) for own, _ in form.parts]
        if form.rate is None:
            form.rate = form.line = likely_tilt(every, self.count)
        for shaped, (_, own_variance), hint in zip(every, form.parts, hints, strict=True):
            second = (1.0 + gain) ** 2 * (own_variance + self.drift**2) * (1.0 + 8.0 * up)
            # second - mean^2 may cancel, and must not be too small.
            variance = second - mean * mean + 4.0 * up * (second + mean * mean)
            lower, choice = collapse(shaped, variance, mean, form.rate, hint)
            kinds.append(Kind(shaped, lower, second))
            choices.append(choice)
        if node == 0:
            # Other costs may leave room for a collapse where there was none.
            form.hints[:] = [choice if choice >= 0 else None for choice in choices]
        terms = Terms(self.count, kinds, -self.drift - form.tail, mean, *self.missing)
        by_moments = excess_of_sum(terms, form.tilt)
        form.tilt = by_moments.theta
        found = by_moments.log_bound - by_moments.log_estimate
        by_atoms = None
        if found > math.log(TOLERANCES.third_order_by_moments) or (
            len(kinds) == 1 and found < math.log(TOLERANCES.third_order_tight)
        ):
            laws = [kind.comparison for kind in kinds]
            by_atoms = AtomicSum.of(laws, self.count, form.line)
            form.line = by_atoms.theta
        return _Sum(weight, choices, by_moments, by_atoms)


def variance_bound(setting: Setting, epsilon: float) -> float:
    """Var L_k at most, for all means allowed by `setting`."""
    a, drift = math.exp(epsilon), math.expm1(epsilon)
    mu, d = setting.spread, min(setting.move, 2.0 * setting.spread)
    ball = a * a * lognormal.variance(setting.diameter)
    near, growth = math.exp(-mu * d), math.expm1(d * d)
    base, whole = -drift * drift, math.exp(mu * mu)
    cases = (
        drift * drift * math.expm1(mu * mu) - 2.0 * a * whole * math.expm1(-0.5 * d * d),
        base + whole * ((near - a) ** 2 + near * near * growth),
        base + whole * ((1.0 - a * near) ** 2 + a * a * near * near * growth),
    )
    return min(ball, max(cases)) * (1.0 + TOLERANCES.partial_shuffle_round_off)


def _exponential(log: float) -> float:
    return math.exp(log) if log < TOLERANCES.partial_shuffle_max_exponent else math.inf

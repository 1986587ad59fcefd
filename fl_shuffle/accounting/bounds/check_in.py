"""Vector reports under secret check-in: every client takes part by its own coin; proven.

Client 1 sends a report with probability q, and so does each of the other n - 1, independently of
data; who did is not seen, but the number K ~ Bin(n, q) of reports is. K has the same distribution
in both worlds, and given K = k every set of k clients is as likely as any other. Let P and Q be the
distribution of the shuffle given that client 1 is in it, with one input or the other, and A given
that it is not. With a = e^eps and r = k/n,

    delta(eps) = E_K H_a((1 - r) A + r P, (1 - r) A + r Q)
               = E_K int (r P - a r Q - (a - 1)(1 - r) A)_+
              <= E_K [ r (a/alpha) H_alpha(P, Q) + (1 - r) ((a - 1)/alpha) H_alpha(P, A) ],

alpha = 1 + (a - 1)/r, as the positive part of a sum is at most the sum of positive parts (theorem 2
of Balle, Barthe and Gaboardi 2018, for two mixtures). Both divergences are those of one client
replaced among k: P and Q differ in client 1's input; A is P with client 1 replaced by a client that
is absent in P, drawn at random, and H is jointly convex. So the curve of a batch of k, for a client
that may move from its own ball into any other, bounds both. Leaving A out gives r H_a(P, Q), what
public participation costs; the smaller one is taken. Two more bounds are: k reports of a full
shuffle, drawn at random, have this very distribution given K = k, so the curve of full
participation holds for every k; and the blanket of `participation`, which says more of few reports.
docs/research/proofs, section 16.

The theorem is applied to client 1 and its nearest others alone. Coins are independent, so the
attacker may be told who of the others takes part, and their reports: what is left is the
secret check-in of fewer clients, with the same rate. The widest others then do not widen
the ball in which every drawn client is counted.

Numbers k are gathered in cells (`participation.cells_of`, `mixture_weights`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fl_shuffle.accounting.bounds.one_round import OneRoundCurve
from fl_shuffle.accounting.bounds.partial_shuffle.curve import MIN_OTHERS
from fl_shuffle.accounting.bounds.partial_shuffle.gram import worst_variance
from fl_shuffle.accounting.bounds.participation import cells_of, mixture_weights
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.bounds.vector_blanket import MAX_EXPONENT, vector_blanket
from fl_shuffle.accounting.client_classes import ShuffledRound
from fl_shuffle.accounting.round_off import ROUND_DOWN, ROUND_UP

SMALL_CELL = 2e-4
"""Cells that can add no more than this share are counted at what full participation costs."""


@dataclass(frozen=True)
class _Cell:
    """K between two numbers: its probability, the ends of r = K/n, curves of the smallest batch."""

    weight: float
    low: float
    high: float
    replaced: VectorCurve
    moved: VectorCurve


class CheckInCurve(OneRoundCurve):
    """The curve of one client where everybody in its batch takes part by their own coins.

    `batch` describes everybody who may take part. Valid in both directions, replace-one.
    """

    def __init__(self, batch: ShuffledRound) -> None:
        super().__init__()
        self._batch = batch
        self._rate = batch.participation
        # D_n(a) of the claim: everybody, as if all took part.
        self._whole = VectorCurve(batch)
        self._near = _nearest(batch)
        # D_n of the claim bounds each number of reports of the clients it is applied to: of these.
        self._near_whole = self._whole if self._near == batch else VectorCurve(self._near)
        self.anonymity = batch.anonymity
        """Clients with the same noise, present or not."""
        self._blanket = vector_blanket(batch)
        self._cells = self._gathered()

    @property
    def credit(self) -> bool:
        """Whether absence or the shuffler contributes at all."""
        return self._rate < 1.0 or any(cell.replaced.credit for cell in self._cells)

    @property
    def predicted_mu(self) -> float:
        """A Gaussian parameter of about the curve's size: not a bound, only a scale."""
        of_cells = self._rate * self._cells[0].replaced.predicted_mu
        blanket = math.inf if self._blanket is None else self._blanket.predicted_mu
        # The divergence given K is about r times that of the batch; the likeliest cell stands
        # first.
        return min(of_cells, self._whole.predicted_mu, blanket)

    def _gathered(self) -> list[_Cell]:
        clients = self._near.anonymity
        return [
            _Cell(weight, low / clients, high / clients, *self._curves(low))
            for weight, low, high in cells_of(clients, self._rate)
        ]

    def _curves(self, reports: int) -> tuple[VectorCurve, VectorCurve]:
        """Return the curves of a batch of this size: for a new input, and for another client.

        Which of the others are in the batch is drawn: each counts as one of the widest.
        """
        own = self._near
        widest = max((radius for radius, _ in own.others), default=0.0)
        others = ((widest, reports - 1),) if reports > 1 else ()
        batch = replace(own, others=others, participation=1.0)
        # H(P, A) replaces client 1 by an absent client: from anywhere in its own ball to anywhere
        # in the widest one (section 16, step 3). H(P, Q) is the client's own move alone.
        farthest = max(own.sensitivity, own.radius + widest)
        moved = replace(batch, radius=max(own.radius, widest), sensitivity=farthest)
        replaced = VectorCurve(batch)
        return replaced, replaced if moved == batch else VectorCurve(moved)

    def local_delta(self, epsilon: float) -> float:
        """Return q times the local delta: absence hides the client that often."""
        return self._rate * self._whole.local_delta(epsilon)

    def local_epsilon(self, delta: float) -> float:
        """Return the epsilon at which `local_delta` is `delta`, rounded up."""
        if delta >= self._rate:
            return 0.0
        # The smallest eps with q delta_local(eps) <= delta.
        return self._whole.local_epsilon(delta / self._rate * ROUND_DOWN)

    def _shuffled(self, epsilon: float, local: float) -> float:
        """Return the sum over cells, or what is known where that is no larger."""
        # Of everybody's reports: no number of them, drawn at random, says more.
        whole = min(self._whole.certified(epsilon), local / self._rate)
        known = min(local, whole)
        if self._blanket is not None:
            known = min(known, self._blanket.delta(epsilon))
        # e^epsilon, and so alpha, would overflow.
        if epsilon > MAX_EXPONENT:
            return known
        total = 0.0
        if self._near_whole is not self._whole:
            whole = min(self._near_whole.certified(epsilon), local / self._rate)
        for cell in self._cells:
            # Step 5: no term is above D_n(a).
            most = cell.weight * whole
            # Cells come in the order of their probabilities: a late one is bounded by its weight
            # times D_n, or evaluated where that would be felt in the sum.
            total += most if most <= SMALL_CELL * total else min(most, _of_cell(cell, epsilon))
            if total * ROUND_UP >= known:
                return known
        return total * ROUND_UP


def _nearest(batch: ShuffledRound) -> ShuffledRound:
    """Return the batch with the nearest others only, up to the radius that promises most.

    Every prefix of the radii gives a valid bound. Each drawn report counts as one of the widest, so
    the normal approximation of epsilon is sqrt(variance of the widest / number of clients).
    """
    move, own, radii, counts = batch.in_widths
    # Client 1 and the nearest others, for every prefix of the radii.
    clients = 1 + np.cumsum(counts)
    enough = clients > MIN_OTHERS
    if radii.size < 2 or not enough.any():
        return batch
    # epsilon is about sqrt(variance/clients), so the prefix with the least quotient is taken. A
    # choice: every prefix is valid.
    variances = np.array([_variance(batch.noise, move, own, reach) for reach in radii.tolist()])
    last = int(np.argmin(np.where(enough, variances / clients, math.inf)))
    return replace(batch, others=batch.others[: last + 1])


def _variance(noise: str, move: float, own: float, reach: float) -> float:
    """Return the scale of one report's privacy loss variance: the client moves into any ball."""
    farthest = max(move, own + reach)
    if noise == "gaussian":
        return worst_variance(max(own, reach), reach, farthest, 1.0)
    return math.exp(min(farthest, MAX_EXPONENT))


def _of_cell(cell: _Cell, epsilon: float) -> float:
    """Return weight times the smaller of both bounds on the divergence, given K in this cell."""
    at, of_replaced, of_moved = mixture_weights(cell.low, cell.high, epsilon)
    replaced = cell.replaced.certified(at)
    moved = replaced if cell.moved is cell.replaced else cell.moved.certified(at)
    # Steps 1 to 3 of section 16; below, step 4, without A: r D_K(a).
    found = of_replaced * replaced + of_moved * moved
    # r D_K(a) is at most r times the local curve, which costs nothing: only where that is smaller
    # is step 4 worth a second evaluation of the curve.
    if cell.high < 1.0 and found > cell.high * cell.replaced.local_delta(epsilon):
        found = min(found, cell.high * cell.replaced.certified(epsilon))
    return cell.weight * found

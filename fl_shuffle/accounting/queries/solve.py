"""Any number of a question for a target: a search over the accountant's own answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fl_shuffle import declare
from fl_shuffle.accounting.guarantee import Guarantee
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_mu
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.errors import InvalidValueError, NotApplicableError, require_choice

COSTS = {
    "clients": False,
    "sigma": False,
    "records": False,
    "assumed_honest": False,
    "epsilon0": True,
    "delta0": True,
    "rounds": True,
    "participation": True,
}
"""What can be solved for; whether more of it costs privacy. (Of k, cap and joint more may cost more
or less.)"""
PRECISION = 1e-3
"""Relative, of numbers that are not whole."""
FIRST_STEP, NEXT_STEP = 1.5, 4.0
"""The bracket grows by these factors: the guess is often near, and where not, it is far off."""
LARGEST, SMALLEST = 1e9, 1e-6
"""Nothing beyond is tried: of real numbers, and of counts that have no end of their own."""


def solve(query: Question, name: str, delta: float) -> tuple[float, Guarantee]:
    """The most of `name` (where it costs privacy) or the least that keeps the target.

    The target is `query.epsilon` at `delta`. Returns the value, and the answer there. Where the
    query names no method, the one is asked that is the smallest proven where the search begins.
    Raises `NotApplicableError` where no value keeps the target, and `InvalidValueError` for a
    target that is none.
    """
    require_choice("solve_for", name, COSTS)
    if query.epsilon is None:
        raise InvalidValueError("epsilon", None, "is the target, with delta")
    return _Search(query, name, delta).found()


class _Search:
    def __init__(self, query: Question, name: str, delta: float) -> None:
        spec = declare.settings_of(Question)[name]
        self.query, self.name, self.delta = query, name, delta
        self.whole = spec.kind.startswith("int")
        self.costs = COSTS[name]
        self.least = 1.0 if self.whole else max(spec.low or 0.0, SMALLEST)
        self.most = min(spec.high or LARGEST, LARGEST)
        if name == "assumed_honest":
            self.most = float(query.clients or 1)
        if name == "delta0":
            self.least, self.most = 1e-300, 0.5
        self.answers: dict[float, Guarantee] = {}
        self.refusal: NotApplicableError | None = None
        self.upwards = True

    def found(self) -> tuple[float, Guarantee]:
        good, bad = self._bracket()
        if bad is not None:
            good = self._narrowed(good, bad)
        value = good[0]
        return int(value) if self.whole else value, self.answers[value]

    def _spare(self, value: float) -> float:
        """How much better than the target the answer is: about linear in the value's logarithm."""
        changed: Any = {self.name: int(value) if self.whole else value}
        try:
            answer = bound(replace(self.query, **changed))
        except NotApplicableError as error:
            self.refusal = error
            return -1.0
        self.answers[value] = answer
        if self.query.method is None and answer.delta < 1.0:
            self.query = replace(self.query, method=answer.method)
        return _coordinate(answer.delta) - _coordinate(self.delta)

    def _bracket(self) -> tuple[tuple[float, float], tuple[float, float] | None]:
        """(value, what is spare) that keeps the target, and one that does not (None: all do)."""
        good: tuple[float, float] | None = None
        bad: tuple[float, float] | None = None
        for value in self._outwards(_guess(self.query, self.name, self.delta)):
            spare = self._spare(value)
            if spare >= 0.0:
                good = value, spare
            else:
                bad = value, spare
            if good is not None and bad is not None:
                return good, bad
            # More of what costs, where there is some to spare; less, where there is none.
            self.upwards = (good is not None) == self.costs
        if good is None:
            raise self.refusal or NotApplicableError(
                f"no {self.name} in [{self.least:g}, {self.most:g}] keeps epsilon = "
                f"{self.query.epsilon:g} at delta = {self.delta:g}"
            )
        return good, None

    def _outwards(self, start: float) -> Iterator[float]:
        value, step = min(max(start, self.least), self.most), FIRST_STEP
        if self.whole:
            value = float(round(value))
        while True:
            yield value
            end = self.most if self.upwards else self.least
            if value == end:
                return
            value = value * step if self.upwards else value / step
            if self.whole:
                value = float(math.ceil(value) if self.upwards else math.floor(value))
            value = min(max(value, self.least), self.most)
            step = NEXT_STEP

    def _narrowed(self, good: tuple[float, float], bad: tuple[float, float]) -> tuple[float, float]:
        """By the Illinois rule: the end that stays counts half, or one end would never move."""
        while abs(good[0] - bad[0]) > (1.0 if self.whole else PRECISION * min(good[0], bad[0])):
            low, high = math.log(bad[0]), math.log(good[0])
            share = min(max(-bad[1] / (good[1] - bad[1]), 0.02), 0.98)
            value = math.exp(low + share * (high - low))
            if self.whole:
                ends = sorted((good[0], bad[0]))
                value = min(max(float(round(value)), ends[0] + 1.0), ends[1] - 1.0)
            spare = self._spare(value)
            if spare >= 0.0:
                good, bad = (value, spare), (bad[0], 0.5 * bad[1])
            else:
                bad, good = (value, spare), (good[0], 0.5 * good[1])
        return good


def _coordinate(delta: float) -> float:
    return math.sqrt(max(-math.log(max(delta, 1e-300)), 0.0))


def _guess(query: Question, name: str, delta: float) -> float:
    """Where to begin: near what sums of Gaussian reports would need."""
    epsilon = max(query.epsilon or 0.0, 1e-3)
    mu = gaussian_mu(epsilon, delta)
    sensitivity = 2.0 / (query.records if query.unit == "record" else 1)
    clients, rounds = query.clients or 1, query.rounds
    if name == "sigma":
        alone = sensitivity * math.sqrt(rounds) / mu
        # Noise that hides a client by itself is enough; some of it is needed in any crowd.
        return min(alone, max(1.5 * alone / math.sqrt(clients), 0.3 * sensitivity))
    if name == "clients":
        if query.sigma is not None:
            return (sensitivity / (query.sigma * mu)) ** 2 * rounds
        local = min(query.epsilon0 or 1.0, 20.0)
        return 4.0 * rounds * math.exp(local) * math.log(1.0 / delta) / max(epsilon, 1e-2) ** 2
    if name == "rounds" and query.sigma is not None:
        return clients * (query.sigma * mu / sensitivity) ** 2
    return {
        "epsilon0": 1.0,
        "participation": 0.5,
        "delta0": 1e-6,
        "assumed_honest": 0.5 * clients,
    }.get(name, 1.0)

"""Several answers in one report, or one of several randomizers (Su, Cheng, Wang 2025, 6 and 7).

What is computed. For a pair of reports P, Q and a blanket omega of mass gamma, delta is a mixture
over m of E(G_1 + ... + G_m)_+/m, G = P/omega - e^eps Q/omega under omega (docs/research/proofs,
section 2). It grows if G grows in convex order (E f(G) for every convex f; written <=). So the
pairs of inputs that need a look are those whose G no other pair's G exceeds in that order.

Joint report. The parts draw independently, so their densities multiply. Every part has an input of
its own, so the infimum of the product over all inputs is the product of the infima: the blanket is
the product of the parts' blankets, its mass the product of theirs. Two neighbors may hold any
inputs x_i and y_i in part i, equal ones in some parts. Let A_i = P_{x_i}/omega_i and
B_i = P_{y_i}/omega_i. Given all parts but i,

    G = u A_i - v B_i,   u = product of the other A_j,   v = e^eps product of the other B_j,

both >= 0, and (u, v) is independent of part i under the product blanket. It remains to show that
for all u, v >= 0 and all inputs, u A_x - v B_y <= u A - v B with (A, B) of the part's own pair:
then parts are replaced by their pairs one after another, in any order.

(1) Part with exchangeable (A, B), equal in distribution for all x /= y, and E(B | A) nonincreasing
in A: k-RR, local hashing, Hadamard response, unary encodings. Only x = y is another case. There u
A_x - v B_x has the distribution of (u - v) A. By Jensen's inequality,

    E(u A - v B | A) = (u - v) A + v (A - E(B | A)) <= u A - v B.

For u >= v both terms on the left grow with A, and the second has mean 0. Then f'((u - v) A) grows
with A, too, and E f(X + Z) >= E f(X) + E f'(X) Z >= E f(X), since Chebyshev's sum inequality gives
E f'(X) Z >= E f'(X) E Z = 0. So (u - v) A <= u A - v B. For u < v exchange A and B.
    E(B | A) for each kind: k-RR has B > min B only where A = min A. Bits of hashing, Hadamard
rows, and unary encodings of a large domain are independent under the blanket: E(B | A) = 1. In a
domain of k values the report of ones alone has A = B = min, which only moves weight to (low, low)
with b = chance of a foreign one, r = likelihood ratio of the own bit: E(B | A) is nonincreasing
where b r (b - b^k) <= (1 - b) ((1 - b) + r b^k), and (1 - b)/b is sqrt(r) (RAPPOR) or r (OUE).

(2) Laplace noise, inputs anywhere in the interval or l1 ball: docs/research/proofs, section 4,
steps 1 to 3. Each ratio grows in convex order with the distance of its input from the center, the
sum u A_x + (-v B_y) is largest if both grow together, and at opposite ends they do. Its finite pair
(`dominating_pair`) spreads each ratio to grid points with its mean kept, the other ratio given.

Parallel report. It names its part i, drawn with a public weight w_i that is the same for every
input. So the infimum over inputs splits: the blanket has density w_i inf P_i on the reports of part
i, of mass sum w_i gamma_i. G is a mixture over i of the parts' own G with u = 1, v = e^eps, each
largest for the part's own pair by (1) and (2). If one input of the client decides all parts, only
some combinations of the parts' pairs occur; all combinations are taken, which only adds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import product
from typing import Literal

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.distributions.continuous import LaplaceRandomizer
from fl_shuffle.accounting.distributions.finite import (
    AccountedRandomizer,
    FiniteRandomizer,
    KRandomizedResponse,
    distinct,
)
from fl_shuffle.accounting.distributions.frequency_oracles import (
    BinaryLocalHashingDistribution,
    HadamardResponseDistribution,
    OptimizedUnaryEncodingDistribution,
    RapporDistribution,
)
from fl_shuffle.accounting.distributions.outcome_pair import OutcomePair
from fl_shuffle.errors import InvalidValueError, require_choice, require_real

# Each Laplace part has 2 (cells + 1) outcomes (`dominating_pair`), and a product of n of them
# that number to the power n: 802, 16,900, 74,088 and 456,976 outcomes for one to four parts.
LAPLACE_CELLS = (0, 400, 64, 20, 12, 8)
"""Cells of each Laplace part, by the number of such parts: per side of the center in an upper
bound, of the whole interval in a lower one."""
MERGE_TOLERANCE = 1e-13
"""Losses and ratios this close count as the same outcome (see `merged`): round-off, no more."""
MOST_PARTS, MOST_LAPLACE = 8, 4
"""More parts, or more of Laplace noise, have more kinds of report than can be listed."""
WEIGHTS_WITHIN = 1e-9
PARTS: dict[str, Callable[[float, int | None], AccountedRandomizer]] = {
    "krr": lambda epsilon0, k: KRandomizedResponse(epsilon0, _categories(k)),
    "blh": lambda epsilon0, k: BinaryLocalHashingDistribution(epsilon0),
    "rappor": RapporDistribution,
    "oue": OptimizedUnaryEncodingDistribution,
    "hadamard": lambda epsilon0, k: HadamardResponseDistribution(epsilon0),
    "laplace": lambda epsilon0, k: LaplaceRandomizer(epsilon0),
}
"""Name of a part -> the randomizer of that local budget and number of categories."""
KINDS = {
    KRandomizedResponse: "krr",
    BinaryLocalHashingDistribution: "blh",
    RapporDistribution: "rappor",
    OptimizedUnaryEncodingDistribution: "oue",
    HadamardResponseDistribution: "hadamard",
    LaplaceRandomizer: "laplace",
}
FORM = (
    "must be joint:PART,PART,... or parallel:WEIGHT*PART,WEIGHT*PART,..., where a PART is a name, "
    "as blh, or a name with its own parameters, as krr(k=10,epsilon0=1)"
)
Direction = Literal["up", "down"]


@dataclass(frozen=True)
class JointComposition(FiniteRandomizer):
    """One report holds an independent answer of each part; neighbors may differ in all."""

    parts: tuple[AccountedRandomizer, ...]
    name = "joint"
    source = "Su, Cheng, Wang 2025, section 6 (joint composition), Theorem 4"

    def __post_init__(self) -> None:
        _require_parts(self.parts)
        self._set(assumptions=_assumptions(self.parts))

    @property
    def text(self) -> str:
        """What `read_composition` reads."""
        return f"joint:{','.join(map(_text_of, self.parts))}"

    @property
    def local_epsilon(self) -> float:
        # Independent parts: their losses add up, and neighbors may differ in all of them.
        return math.fsum(part.local_epsilon for part in self.parts)

    def pairs(self) -> tuple[OutcomePair, ...]:
        # Upper bounds: every part may be at any of its candidate pairs.
        return _products([upper for upper, _ in _tables(self.parts)], "up")

    def witnesses(self) -> tuple[OutcomePair, ...]:
        # Lower bounds: one data set is enough. A part lists the likeliest one first: all others
        # at a third value, where there is one.
        return _products([lower[:1] for _, lower in _tables(self.parts)], "down")


@dataclass(frozen=True)
class ParallelComposition(FiniteRandomizer):
    """Each client uses one part, drawn with the public weights; the report says which."""

    parts: tuple[tuple[float, AccountedRandomizer], ...]
    name = "parallel"
    source = "Su, Cheng, Wang 2025, section 7 (parallel composition), Theorem 4"

    def __post_init__(self) -> None:
        parts = tuple(part for _, part in self.parts)
        _require_parts(parts)
        for weight, _ in self.parts:
            require_real("weight", weight, minimum=0.0, exclusive_minimum=True, maximum=1.0)
        total = math.fsum(weight for weight, _ in self.parts)
        if not abs(total - 1.0) <= WEIGHTS_WITHIN:
            given = " + ".join(f"{weight:g}" for weight, _ in self.parts)
            raise InvalidValueError(
                "weights",
                given,
                f"must add up to 1, got {total:g}; fractions such as 1/3 are allowed",
            )
        self._set(assumptions=_assumptions(parts))

    @property
    def text(self) -> str:
        """What `read_composition` reads."""
        parts = (f"{weight!r}*{_text_of(part)}" for weight, part in self.parts)
        return f"parallel:{','.join(parts)}"

    @property
    def local_epsilon(self) -> float:
        # The report names its part, with the same weight under every input: so the loss is that
        # of the part.
        return max(part.local_epsilon for _, part in self.parts)

    def pairs(self) -> tuple[OutcomePair, ...]:
        # One part at a time: no product is formed, and each may have the finest cells.
        return self._unions([_tables([part])[0][0] for _, part in self.parts], None)

    def witnesses(self) -> tuple[OutcomePair, ...]:
        """Return the pairs in which all others hold a third value, in every part: none where a
        domain has two values."""
        if any(getattr(part, "k", None) == 2 for _, part in self.parts):
            return ()
        return self._unions([_tables([part])[0][1][:1] for _, part in self.parts], 1.0)

    def _unions(
        self, options: Sequence[tuple[OutcomePair, ...]], mass: float | None
    ) -> tuple[OutcomePair, ...]:
        """Return every choice of one pair a part."""

        def union(chosen: Sequence[OutcomePair]) -> OutcomePair:
            # Reports of different parts are different outcomes. So P, Q, and the blanket of the
            # union are those of the parts side by side, times the weights. A part's `omega` is
            # normalized: its mass gamma is multiplied back.
            weighted = [
                (weight, pair) for (weight, _), pair in zip(self.parts, chosen, strict=True)
            ]
            return OutcomePair.of(
                np.concatenate([w * pair.p for w, pair in weighted]),
                np.concatenate([w * pair.q for w, pair in weighted]),
                np.concatenate([w * pair.blanket_mass * pair.omega for w, pair in weighted]),
                np.concatenate([pair.loss for pair in chosen]),
                blanket_mass=mass,
            )

        return distinct(union(chosen) for chosen in product(*options))


Composed = JointComposition | ParallelComposition
Pairs = tuple[OutcomePair, ...]


def _categories(k: int | None) -> int:
    if k is None:
        raise InvalidValueError("k", None, "is required by krr (the number of categories)")
    return k


def _text_of(part: AccountedRandomizer) -> str:
    """Return the part with all its parameters."""
    k = getattr(part, "k", None)
    own = f"k={k}," if k is not None else ""
    return f"{KINDS[type(part)]}({own}epsilon0={part.epsilon0!r})"


def _assumptions(parts: Sequence[AccountedRandomizer]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for part in parts for text in part.assumptions))


def _require_parts(parts: Sequence[AccountedRandomizer]) -> None:
    for part in parts:
        if type(part) not in KINDS:
            raise InvalidValueError("part", part, f"must be one of {', '.join(KINDS.values())}")
    laplace = sum(isinstance(part, LaplaceRandomizer) for part in parts)
    if not (1 <= len(parts) <= MOST_PARTS and laplace <= MOST_LAPLACE):
        raise InvalidValueError(
            "parts",
            len(parts),
            f"must be 1 to {MOST_PARTS}, {MOST_LAPLACE} of Laplace noise at most",
        )


def read_composition(text: str, epsilon0: float | None, k: int | None) -> Composed:
    """Return the composition that a text names; a part takes `epsilon0` and `k` where it has none
    itself.

    Raises `InvalidValueError` for a text of another form, an unknown part, or bad weights.

    >>> read_composition("parallel:1/4*krr(k=3),3/4*blh", 1.0, None).text
    'parallel:0.25*krr(k=3,epsilon0=1.0),0.75*blh(epsilon0=1.0)'
    """
    kind, _, listed = text.partition(":")
    words = re.findall(r"[^,(]*(?:\([^()]*\))?[^,(]*(?:,|$)", listed)
    if kind not in ("joint", "parallel") or "".join(words) != listed:
        raise InvalidValueError("randomizer", text, FORM)
    parts = [word.removesuffix(",") for word in words if word]
    if listed.endswith(",") or len(parts) > MOST_PARTS:
        raise InvalidValueError("randomizer", text, FORM + f"; at most {MOST_PARTS} parts")
    if kind == "joint":
        return JointComposition(tuple(_part(text, word, epsilon0, k) for word in parts))
    found = []
    for word in parts:
        weight, star, part = word.partition("*")
        try:
            share = float(Fraction(weight.strip())) if star else math.nan
        except (ValueError, ZeroDivisionError, OverflowError):
            share = math.nan
        if not 0.0 < share <= 1.0:
            raise InvalidValueError(
                "randomizer",
                text,
                f"{word.strip()!r} needs a weight in (0, 1], for example 0.5*blh or 1/3*blh",
            )
        found.append((share, _part(text, part, epsilon0, k)))
    return ParallelComposition(tuple(found))


def _part(text: str, word: str, epsilon0: float | None, k: int | None) -> AccountedRandomizer:
    """Return one part: its name, and its own parameters in brackets."""
    form = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", word)
    if form is None:
        raise InvalidValueError("randomizer", text, FORM)
    name, own = form.groups()
    require_choice("part of randomizer", name, PARTS)
    given: dict[str, float] = {}
    for pair in (own or "").split(",") if own else ():
        key, _, value = (each.strip() for each in pair.partition("="))
        require_choice(f"parameter of {name}", key, ("epsilon0", "k"))
        try:
            number = int(value) if key == "k" else float(value)
        except ValueError:
            raise InvalidValueError(f"{name}({key})", value, "must be a number") from None
        if key in given:
            raise InvalidValueError(f"{name}({key})", number, "is given twice; give it once")
        given[key] = number
    budget = given.get("epsilon0", epsilon0)
    if budget is None:
        raise InvalidValueError("epsilon0", None, f"is required by {name}: {name}(epsilon0=1)")
    categories = given.get("k", k)
    return PARTS[name](budget, None if categories is None else int(categories))


def _tables(parts: Sequence[AccountedRandomizer]) -> list[tuple[Pairs, Pairs]]:
    """Return (candidate pairs, witness pairs) of every part."""
    laplace = sum(isinstance(part, LaplaceRandomizer) for part in parts)
    cells = LAPLACE_CELLS[min(laplace, len(LAPLACE_CELLS) - 1)]
    tables: list[tuple[Pairs, Pairs]] = []
    for part in parts:
        if isinstance(part, LaplaceRandomizer):
            tables.append(((dominating_pair(part, cells),), (part.binned_witness(cells),)))
        else:
            assert isinstance(part, FiniteRandomizer)
            tables.append((part.pairs(), part.witnesses()))
    return tables


def _products(choices: Sequence[Pairs], direction: Direction) -> Pairs:
    return reduce(
        lambda current, options: distinct(
            merged(times(left, right), direction) for left, right in product(current, options)
        ),
        choices,
    )


def times(left: OutcomePair, right: OutcomePair) -> OutcomePair:
    """Return both reports together, drawn independently."""

    def outer(a: FloatArray, b: FloatArray) -> FloatArray:
        return np.asarray(np.multiply.outer(a, b).ravel(), dtype=np.float64)

    # A loss of +inf in one part and of -inf in the other: p and q are both zero, and their sum is
    # NaN. The loss of such an outcome does not matter.
    with np.errstate(invalid="ignore"):
        loss = np.add.outer(left.loss, right.loss).ravel()
    p, q, omega = outer(left.p, right.p), outer(left.q, right.q), outer(left.omega, right.omega)
    used = (p > 0.0) | (q > 0.0) | (omega > 0.0)
    loss = np.where(np.isnan(loss), 0.0, loss)
    # The infimum over independent inputs of a product is the product of the infima.
    mass = left.blanket_mass * right.blanket_mass
    return OutcomePair(p[used], q[used], omega[used], loss[used], mass)


def merged(pair: OutcomePair, direction: Direction) -> OutcomePair:
    """Join outcomes whose loss and whose q/omega agree up to round-off; the loss that is kept is
    the largest of theirs ("up": an upper bound stays one) or the smallest ("down")."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # L = (q/omega) (e^loss - e^eps): equal losses and ratios give equal L at every eps.
        ratio = np.log(pair.q) - np.log(pair.omega)
    scaled = np.stack([pair.loss, np.where(np.isnan(ratio), np.inf, ratio)])
    key = np.where(np.isfinite(scaled), np.round(scaled / MERGE_TOLERANCE), scaled)
    _, group = np.unique(key, axis=1, return_inverse=True)
    group = group.reshape(-1)
    p, q, omega = (
        np.bincount(group, weights=x).astype(np.float64) for x in (pair.p, pair.q, pair.omega)
    )
    # L grows with the loss at fixed q/omega. So an upper bound keeps the largest loss of the
    # outcomes that are joined, a lower bound the smallest one.
    worst = np.maximum if direction == "up" else np.minimum
    loss = np.full(p.size, -np.inf if direction == "up" else np.inf)
    worst.at(loss, group, pair.loss)
    return OutcomePair(p, q, omega, loss, pair.blanket_mass)


def dominating_pair(randomizer: LaplaceRandomizer, cells: int) -> OutcomePair:
    """Return a finite pair whose (P/omega, Q/omega) spreads Laplace noise's with its mean kept."""
    c = 0.5 * randomizer.epsilon0
    # Without a range of inputs all reports have one distribution.
    if c == 0.0:
        return OutcomePair.of([1.0], [1.0], [1.0], [0.0])
    steps = np.arange(cells + 1)
    # Noise scale 1, center 0, inputs +-c, and E = |W| ~ Exp(1) under omega. On the side of an
    # input its ratio to omega is e^(E - |E - c|) = e^(2 min(E, c) - c), and that of the other
    # input is e^-c. Nodes are this ratio at E = 0, c/cells, ..., c.
    nodes = np.exp(2.0 * c * steps / cells - c)
    width = c / cells
    # P(E in a cell), and the mean ratio in it: the integral of e^(2E - c) e^-E over the cell,
    # over its mass.
    mass = np.exp(-width * steps[:-1]) * -math.expm1(-width)
    mean = np.exp(width * steps[:-1] - c) * math.expm1(width) / mass
    # The share at the upper end that keeps the mean: spreading to both ends is upwards in convex
    # order.
    upper = np.clip((mean - nodes[:-1]) / np.diff(nodes), 0.0, 1.0)
    weights = np.zeros(cells + 1)
    weights[:-1] += mass * (1.0 - upper)
    weights[1:] += mass * upper
    # Beyond c the ratio is constant: P(E > c) = e^-c at the last node.
    weights[-1] += math.exp(-c)
    # Both sides of the center are equally likely.
    weights *= 0.5
    low = math.exp(-c)
    # log(node / e^-c), without subtracting.
    loss = 2.0 * c * steps / cells
    return OutcomePair.of(
        np.concatenate([weights * nodes, weights * low]),
        np.concatenate([weights * low, weights * nodes]),
        np.concatenate([weights, weights]) * low,
        np.concatenate([loss, -loss]),
        blanket_mass=low,
    )

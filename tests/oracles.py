"""Exact references that share no code with the product: enumerated shuffles, fine sums.

A report's distribution is a row of probabilities; a shuffle shows how often each report occurred.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

Histogram = dict[tuple[int, ...], float]
Matrix = list[list[float]]
Losses = Sequence[float] | np.ndarray
Rows = Sequence[Losses]

OWN = [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]]
HALF_HIDDEN = [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.25, 0.5, 0.25]]


def krr_matrix(epsilon0: float, k: int) -> Matrix:
    low = 1.0 / (math.exp(epsilon0) + k - 1.0)
    return [[low * (math.exp(epsilon0) if x == y else 1.0) for y in range(k)] for x in range(k)]


def unary_matrix(own: float, foreign: float, k: int) -> Matrix:
    """Bit y of a report is one with probability `own` if y is the input, else `foreign`."""
    rows = []
    for x in range(k):
        bits = [[1.0 - one, one] for one in (own if y == x else foreign for y in range(k))]
        rows.append(reduce(np.kron, bits).tolist())
    return rows


def rappor_matrix(epsilon0: float, k: int) -> Matrix:
    flip = 1.0 / (math.exp(0.5 * epsilon0) + 1.0)
    return unary_matrix(1.0 - flip, flip, k)


def oue_matrix(epsilon0: float, k: int) -> Matrix:
    return unary_matrix(0.5, 1.0 / (math.exp(epsilon0) + 1.0), k)


def hash_matrix(epsilon0: float, k: int) -> Matrix:
    """Binary local hashing with all 2^k hash functions: report = (function, bit)."""
    high = math.exp(epsilon0) / (math.exp(epsilon0) + 1.0)
    rows = []
    for x in range(k):
        row = []
        for function in itertools.product((0, 1), repeat=k):
            row += [(high if bit == function[x] else 1.0 - high) / 2**k for bit in (0, 1)]
        rows.append(row)
    return rows


def absent_too(matrix: Matrix, rate: float) -> Matrix:
    """Each report with probability `rate`, else the outcome "absent"."""
    return [[*(rate * p for p in row), 1.0 - rate] for row in matrix]


def cells(mean: Sequence[float] | np.ndarray, edges: np.ndarray, noise: str) -> np.ndarray:
    """The report of scale 1 around `mean`: its chances to lie in each cell of a grid."""

    def below(x: np.ndarray) -> np.ndarray:
        if noise == "gaussian":
            return np.asarray(ndtr(x))
        tail = 0.5 * np.exp(-np.abs(x))
        return np.where(x < 0.0, tail, 1.0 - tail)

    laws = []
    for centre in mean:
        low, high = np.append(-np.inf, edges - centre), np.append(edges - centre, np.inf)
        # Right of the center by upper tails: differences of small numbers keep their digits.
        flip = low > 0.0
        laws.append(below(np.where(flip, -low, high)) - below(np.where(flip, -high, low)))
    result: np.ndarray = reduce(np.multiply.outer, laws).ravel()
    return result


def shuffled_law(rows: Rows) -> Histogram:
    """Distribution of the histogram of independent reports; rows[j] is client j's report
    distribution."""
    law: Histogram = {(0,) * len(rows[0]): 1.0}
    for row in rows:
        following: Histogram = defaultdict(float)
        for counts, mass in law.items():
            for symbol, chance in enumerate(row):
                if chance > 0.0:
                    moved = (*counts[:symbol], counts[symbol] + 1, *counts[symbol + 1 :])
                    following[moved] += mass * chance
        law = following
    return law


def fixed_sample_law(own: Sequence[float], others: Rows, rate: float, rounds: int) -> Histogram:
    """Rounds by one secret sample: which histograms come how often, sorted over the rounds."""
    laws = [own, *others]
    total: Histogram = defaultdict(float)
    for mask in itertools.product((False, True), repeat=len(laws)):
        chance = math.prod(rate if drawn else 1.0 - rate for drawn in mask)
        sample = [law for law, drawn in zip(laws, mask, strict=True) if drawn]
        one = shuffled_law(sample) if sample else {(): 1.0}
        for outcomes in itertools.product(sorted(one), repeat=rounds):
            key = tuple(itertools.chain.from_iterable(sorted(outcomes)))
            total[key] += chance * math.prod(one[each] for each in outcomes)
    return dict(total)


def hockey_stick(p: Histogram, q: Histogram, epsilon: float) -> float:
    """sum over outcomes of (p - e^eps q)_+."""
    a = math.exp(epsilon)
    return math.fsum(max(0.0, mass - a * q.get(key, 0.0)) for key, mass in p.items())


def shuffle_delta(p: Sequence[float], q: Sequence[float], others: Rows, a: float) -> float:
    """H_a of two shuffles, exactly: the client reports from p or q, the others from their rows."""
    return hockey_stick(shuffled_law([p, *others]), shuffled_law([q, *others]), math.log(a))


def worst_of(own: Matrix, batches: Iterable[Rows]) -> Callable[[float], float]:
    """Exact delta of the shuffle as a client changes its input: the maximum over what it holds and
    over what the others report from."""
    pairs: list[tuple[Histogram, Histogram]] = []
    for others in batches:
        pairs += itertools.permutations([shuffled_law([law, *others]) for law in own], 2)
    return lambda epsilon: max(hockey_stick(*pair, epsilon) for pair in pairs)


def worst_delta(matrices: Sequence[Matrix], epsilon: float) -> float:
    """Of client 0, whatever everybody holds: matrices[j][x] is client j's report distribution at
    input x."""
    return worst_of(matrices[0], itertools.product(*matrices[1:]))(epsilon)


def worst_curve(matrix: Matrix, n: int) -> Callable[[float], float]:
    """The same of n clients with one randomizer: the others' order does not matter."""
    return worst_of(matrix, itertools.combinations_with_replacement(matrix, n - 1))


def independent_sum(laws: Iterable[tuple[Losses, Losses]]) -> tuple[np.ndarray, np.ndarray]:
    """(values, their chances) of a sum of independent terms, each by its own: all combinations."""
    total, mass = np.zeros(1), np.ones(1)
    for values, chances in laws:
        total = np.add.outer(total, values).ravel()
        mass = np.multiply.outer(mass, chances).ravel()
    return total, mass


def composed(laws: Iterable[tuple[Losses, Losses]], epsilon: float) -> float:
    """Exact delta of mechanisms one after another, each by its (losses, their chances)."""
    loss, mass = independent_sum(laws)
    return math.fsum((mass * -np.expm1(np.minimum(epsilon - loss, 0.0))).tolist())


def clone_pair(epsilon0: float, n: int, printed: bool = False) -> tuple[Histogram, Histogram]:
    """The clone pair from its definition; `printed`: the pair of Chen et al. 2024."""
    p = math.exp(-epsilon0)
    own = {(0, 1): p, (0, 0): 1 - p} if printed else {(1, 0): 1 / (1 + p), (0, 1): p / (1 + p)}
    law: Histogram = defaultdict(float)
    for clones, chance in enumerate(binom.pmf(range(n), n - 1, p).tolist()):
        for a, share in enumerate(binom.pmf(range(clones + 1), clones, 0.5).tolist()):
            for (up, down), weight in own.items():
                law[a + up, clones - a + down] += chance * share * weight
    return law, {(b, a): mass for (a, b), mass in law.items()}


def divergence_among_equals(mu: float, at: float, count: int, epsilon: float) -> float:
    """(1/n) E(L_1 + .. + L_n)_+ of Gaussian reports, by a transform: exact where all `count` others
    hold the mean `at` and the client moves from mu/2 to -mu/2, lengths in noise standard
    deviations."""
    a, n, cells, width = math.exp(epsilon), count + 1, 1 << 20, 3000.0  # sums do not wrap
    x = np.linspace(-9, 9, 200_001)
    mass = np.exp(-0.5 * x * x)
    ratio = np.exp((-mu / 2 - at) * x - (mu / 2 + at) ** 2 / 2)
    ratio -= a * np.exp((mu / 2 - at) * x - (mu / 2 - at) ** 2 / 2)
    step = width / cells
    law = np.bincount(np.round(ratio / step).astype(int) % cells, mass / mass.sum(), cells)
    total = np.fft.irfft(np.fft.rfft(law) ** n, cells)
    values = np.fft.fftfreq(cells, 1 / cells) * step
    return float(total @ np.maximum(values, 0)) / n


G = np.linspace(-11.0, 11.0, 44_001)
GW = np.exp(-0.5 * G * G)
GW /= GW.sum()


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Of a Gaussian report whose mean moves by `mu` of its standard deviations: where its exact
    curve Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) meets delta."""

    def excess(epsilon: float) -> float:
        moved, kept = ndtr(mu / 2 - epsilon / mu), ndtr(-mu / 2 - epsilon / mu)
        return float(moved - math.exp(epsilon) * kept - delta)

    return float(brentq(excess, 0.0, 200.0, xtol=1e-12))


def gram_stop_loss(gram: tuple[float, float, float], a: float, t: np.ndarray) -> np.ndarray:
    """E(L - t)_+ of a Gaussian report with these displacements: closed form given y's normal
    variable, a fine sum over it (docs/research/proofs, section 12)."""
    u, w, x = gram
    t = np.atleast_1d(t)
    g = G[::4, None]
    weight = GW[::4] / GW[::4].sum()
    rho = x / math.sqrt(w) if w > 0.0 else 0.0
    v = math.sqrt(max(u - rho * rho, 1e-20))
    m, s = np.exp(rho * g - 0.5 * rho * rho), a * np.exp(math.sqrt(w) * g - 0.5 * w) + t
    log = np.log(m / np.maximum(s, 1e-300))
    value = np.where(s <= 0.0, m - s, m * ndtr(log / v + v / 2) - s * ndtr(log / v - v / 2))
    result: np.ndarray = weight @ value
    return result

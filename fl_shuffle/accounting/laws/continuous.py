"""Local randomizers with a continuum of reports: Laplace in closed form, a user's densities."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from fl_shuffle.accounting.laws.amplification import AtomicLaw, Case, FloatArray
from fl_shuffle.accounting.laws.outcome_pair import OutcomePair
from fl_shuffle.accounting.limits import MAX_EPSILON0
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import InvalidValueError, require_integer, require_real


@dataclass(frozen=True)
class LaplaceLaw:
    """L for the inputs +-C of Laplace noise of scale b against the blanket Lap(0, b), c = C/b.

    With E ~ Exp(1): L = e^(2 min(E,c) - c) - e^(eps - c) or e^-c - e^(eps + 2 min(E,c) - c), each
    with probability 1/2. The same law serves the l1 ball of radius C in any dimension, where
    opposite points are the worst pair.
    """

    c: float
    epsilon: float

    @property
    def lower(self) -> float:
        return math.exp(-self.c) - math.exp(self.epsilon + self.c)

    @property
    def upper(self) -> float:
        return math.exp(self.epsilon - self.c) * math.expm1(2.0 * self.c - self.epsilon)

    @property
    def mean(self) -> float:
        return -math.expm1(self.epsilon)

    def stop_loss(self, t: FloatArray) -> FloatArray:
        """E[(L - t)_+], with u = (upper - t) e^-c in the upper branch: 1 - sqrt(1 - u)."""
        t = np.atleast_1d(np.asarray(t, dtype=np.float64))
        c, eps = self.c, self.epsilon
        turn = -math.exp(-c) * math.expm1(eps)
        gap = np.clip((self.upper - t) * math.exp(-c), 0.0, 1.0)
        above = gap / (1.0 + np.sqrt(1.0 - gap))
        root = np.sqrt(np.maximum(math.exp(-c) - t, 0.0)) * math.exp(-0.5 * (eps + c))
        below = self.mean - t + math.exp(eps) * np.maximum(0.0, 1.0 - root)
        return np.where(t >= turn, above, below)


@dataclass(frozen=True)
class LaplaceRandomizer:
    """Laplace noise on an interval, or coordinatewise on an l1 ball of any dimension.

    `epsilon0` = 2 C / b for inputs of l1 norm at most C and noise scale b. The blanket is Laplace
    noise around the centre with mass e^(-eps0/2), so clients with other radii but the same b share
    its shape. The pair is symmetric.
    """

    epsilon0: float

    def __post_init__(self) -> None:
        require_real("epsilon0", self.epsilon0, minimum=0.0, maximum=MAX_EPSILON0)

    @property
    def name(self) -> str:
        return "Laplace"

    @property
    def local_epsilon(self) -> float:
        return self.epsilon0

    @property
    def source(self) -> str:
        return "Su, Cheng, Wang 2025, Theorem 4 and Appendix C"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("all clients add Laplace noise of one scale to inputs in the l1 ball of radius C",)

    @property
    def blanket_shape(self) -> Hashable | None:
        return ("laplace",)

    def cases(self) -> tuple[Case, ...]:
        half = 0.5 * self.epsilon0
        return (Case(math.exp(-half), lambda epsilon: LaplaceLaw(half, epsilon), _nothing),)

    def witness_cases(self, *, both_directions: bool = False) -> tuple[Case, ...]:
        """All others at the centre; reports binned, which can only lower the divergence.

        Both directions are equal by symmetry.
        """
        del both_directions
        return (self.binned_witness(TOLERANCES.witness_cells).case(),)

    def dominating_pair(self, cells: int) -> OutcomePair:
        """A finite pair whose (P/omega, Q/omega) spreads ours with its mean kept.

        On either side of the centre one ratio is constant and the other runs over
        [e^-c, e^c], c = eps0/2; each value goes to the two ends of its cell (equal in log scale).
        Spreading the pair of ratios raises every convex function of P - e^eps Q, also in a product.
        """
        c = 0.5 * self.epsilon0
        if c == 0.0:
            return OutcomePair.of([1.0], [1.0], [1.0], [0.0])
        steps = np.arange(cells + 1)
        nodes = np.exp(2.0 * c * steps / cells - c)
        width = c / cells
        mass = np.exp(-width * steps[:-1]) * -math.expm1(-width)
        first = np.exp(width * steps[:-1] - c) * math.expm1(width)
        mean = first / mass
        upper = np.clip((mean - nodes[:-1]) / np.diff(nodes), 0.0, 1.0)
        weights = np.zeros(cells + 1)
        weights[:-1] += mass * (1.0 - upper)
        weights[1:] += mass * upper
        weights[-1] += math.exp(-c)
        weights *= 0.5
        low = math.exp(-c)
        loss = 2.0 * c * steps / cells
        return OutcomePair.of(
            np.concatenate([weights * nodes, weights * low]),
            np.concatenate([weights * low, weights * nodes]),
            np.concatenate([weights, weights]) * low,
            np.concatenate([loss, -loss]),
            blanket_mass=low,
        )

    def binned_witness(self, cells: int) -> OutcomePair:
        """Bins of [-C, C] plus the two tails, on each of which all ratios are constant."""
        c = 0.5 * self.epsilon0
        edges = np.linspace(-c, c, cells + 1)

        def masses(centre: float) -> FloatArray:
            low, high = edges[:-1] - centre, edges[1:] - centre
            inner = np.where(
                high <= 0.0,
                0.5 * np.exp(np.minimum(low, 0.0)) * np.expm1(np.maximum(high - low, 0.0)),
                -0.5 * np.exp(-np.maximum(low, 0.0)) * np.expm1(-(high - low)),
            )
            left = 0.5 * math.exp(-c - centre)
            right = 0.5 * math.exp(-(c - centre))
            return np.concatenate([[left], inner, [right]])

        p, q, others = masses(-c), masses(c), masses(0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            loss = np.log(p) - np.log(q)
        loss[0], loss[-1] = self.epsilon0, -self.epsilon0
        return OutcomePair.of(p, q, others, loss, blanket_mass=1.0)


def _nothing(epsilon: float) -> float:
    """Divergence of reports outside the blanket when there are none."""
    del epsilon
    return 0.0


Density = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class DensityRandomizer:
    """A user's own randomizer on the line: densities of the worst pair and a common lower envelope.

    `p` and `q` are the report densities of the pair, `envelope` a function that no input's density
    falls below (its integral is the blanket mass). `edges` are increasing points covering the
    support; between two of them both ratios p/envelope and q/envelope must be monotone. Each such
    piece is divided into `cells` equal cells. Upper bound: within a cell, L is spread to the ends
    of its range with its mean kept, which only raises delta; what lies outside `edges` is added in
    full. The statement rests on the stated monotonicity and on 12-point Gauss-Legendre quadrature
    being exact on a cell; both are recorded as assumptions.
    """

    p: Density
    q: Density
    envelope: Density
    edges: tuple[float, ...]
    cells: int = 400
    label: str = "user densities"
    local_epsilon: float = math.inf

    def __post_init__(self) -> None:
        if len(self.edges) < 2:
            raise InvalidValueError("edges", self.edges, "needs at least two points")
        for edge in self.edges:
            require_real("edges", edge)
        if not all(a < b for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise InvalidValueError("edges", self.edges, "must increase strictly")
        require_integer("cells", self.cells, minimum=1, maximum=100_000)
        table = self._table()
        for name in ("p", "q", "envelope"):
            if not np.all(np.isfinite(table[name]) & (table[name] >= 0.0)):
                raise InvalidValueError(name, "density", "must be finite and >= 0 on the edges")
            total = float(table[name].sum())
            if total > 1.0 + 1e-7:
                raise InvalidValueError(name, total, "must not integrate to more than one")
        for name in ("p", "q"):
            if np.any(table["envelope"] > table[name] * (1.0 + 1e-9) + 1e-300):
                raise InvalidValueError("envelope", "density", f"must not exceed {name}")
        if table["envelope"].sum() <= 0.0:
            raise InvalidValueError("envelope", 0.0, "must have positive mass")

    @property
    def name(self) -> str:
        return self.label

    @property
    def source(self) -> str:
        return "Balle et al. 2019, Lemma 5.3; Su, Cheng, Wang 2025, Theorem 4"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            "the given pair is the worst one and the envelope is below every input's density",
            "density ratios are monotone between the given edges",
            "12-point Gauss-Legendre quadrature is exact on each cell",
        )

    @property
    def blanket_shape(self) -> Hashable | None:
        return None

    def _grid(self) -> FloatArray:
        pieces = [
            np.linspace(a, b, self.cells + 1)[:-1]
            for a, b in zip(self.edges, self.edges[1:], strict=False)
        ]
        return np.concatenate([*pieces, [self.edges[-1]]])

    def _table(self) -> dict[str, FloatArray]:
        """Masses of every cell and the range of each ratio over it."""
        grid = self._grid()
        node, weight = np.polynomial.legendre.leggauss(12)
        half = 0.5 * np.diff(grid)
        points = (0.5 * (grid[:-1] + grid[1:]))[:, None] + half[:, None] * node
        table: dict[str, FloatArray] = {}
        samples: dict[str, FloatArray] = {}
        for name, density in (("p", self.p), ("q", self.q), ("envelope", self.envelope)):
            values = np.asarray(density(points.ravel()), dtype=np.float64).reshape(points.shape)
            table[name] = (values @ weight) * half
            samples[name] = np.asarray(density(grid), dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            for name in ("p", "q"):
                ratio = samples[name] / samples["envelope"]
                mean = table[name] / table["envelope"]
                table[f"{name}_low"] = np.minimum(np.minimum(ratio[:-1], ratio[1:]), mean)
                table[f"{name}_high"] = np.maximum(np.maximum(ratio[:-1], ratio[1:]), mean)
        return table

    def cases(self) -> tuple[Case, ...]:
        """Both directions: the densities need not be symmetric."""
        table = self._table()
        swap = {"p": "q", "q": "p", "p_low": "q_low", "q_low": "p_low"}
        swap |= {"p_high": "q_high", "q_high": "p_high"}
        other = {swap.get(name, name): values for name, values in table.items()}
        return (_cell_case(table), _cell_case(other))

    def witness_cases(self, *, both_directions: bool = False) -> tuple[Case, ...]:
        """None: a lower bound needs the law of a third input."""
        del both_directions
        return ()


def _cell_case(table: dict[str, FloatArray]) -> Case:
    """Cells with envelope mass become two atoms each; the rest is exposed."""
    envelope = table["envelope"]
    hidden = (envelope > 0.0) & np.isfinite(table["p_high"]) & np.isfinite(table["q_high"])
    gamma = float(envelope[hidden].sum())
    omega = envelope[hidden] / gamma

    def law(epsilon: float) -> AtomicLaw:
        a = math.exp(epsilon)
        low = gamma * (table["p_low"][hidden] - a * table["q_high"][hidden])
        high = gamma * (table["p_high"][hidden] - a * table["q_low"][hidden])
        mean = (table["p"][hidden] - a * table["q"][hidden]) / omega
        width = high - low
        share = np.where(width > 0.0, (mean - low) / np.where(width > 0.0, width, 1.0), 0.5).clip(
            0.0, 1.0
        )
        return AtomicLaw.of(
            np.concatenate([low, high]), np.concatenate([omega * (1.0 - share), omega * share])
        )

    def exposed(epsilon: float) -> float:
        a = math.exp(epsilon)
        inside = np.maximum(table["p"][~hidden] - a * table["q"][~hidden], 0.0)
        return float(inside.sum()) + max(0.0, 1.0 - float(table["p"].sum()))

    return Case(gamma, law, exposed)

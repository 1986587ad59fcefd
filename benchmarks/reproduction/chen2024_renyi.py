"""Chen, Cao and Ge 2024 on Renyi DP: the divergence against eps0 and against the order.

Beside the published curves: the exact divergence of the pair that the reduction to clones really
gives, and of the pair their Theorem 1 prints, which is another one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from benchmarks.reproduction.core import Options, Panel, Result, Settings, panels
from fl_shuffle.accounting.bounds.published import (
    chen2024_rdp,
    girgis_lower_rdp,
    girgis_simple_rdp,
    girgis_upper_rdp,
)
from fl_shuffle.accounting.bounds.renyi import clone_renyi

EQUATION_8 = "Girgis et al. 2021, equation (8) of the paper (proven)"
UPPER = "Girgis et al. 2021, smallest upper bound (proven)"
CLAIMED = "claimed: 2 e^eps0 order/(n-1) (asymptotic)"
EXACT = "exact, the clone pair (proven)"
PRINTED = "the pair printed in Theorem 1 (no bound)"
LOWER = "Girgis et al. 2021, lower"
STYLES: dict[str, dict[str, Any]] = {
    EQUATION_8: {"color": "C3", "ls": "--"},
    UPPER: {"color": "C4", "ls": "--"},
    CLAIMED: {"color": "C1"},
    EXACT: {"color": "C0", "lw": 2},
    PRINTED: {"color": "0.5", "ls": "-."},
    LOWER: {"color": "C2", "ls": ":", "lw": 2},
}


def printed_pair_rdp(epsilon0: float, clients: int, order: float) -> float:
    """Divergence of (A, C-A+D) from (A+D, C-A), C ~ Bin(n-1, p), A ~ Bin(C, 1/2), D ~ Bern(p),
    p = e^-eps0, both directions being equal by symmetry; over 12 standard deviations and over
    outcomes that both can produce (with (0, n), which only the first can, it is infinite).
    """
    n, p = clients - 1, math.exp(-epsilon0)
    centre, reach = 0.5 * n * p, 12.0 * math.sqrt(0.5 * n * p) + 20.0
    k = np.arange(max(0, math.floor(centre - reach)), math.ceil(centre + reach) + 2.0)
    a, b = np.meshgrid(k, k, indexing="ij")

    def log_mass(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        rest = n - first - second
        inside = (first >= 0) & (second >= 0) & (rest >= 0)
        x, y, z = (np.where(inside, part, 0.0) for part in (first, second, rest))
        logs = gammaln(n + 1.0) - gammaln(x + 1.0) - gammaln(y + 1.0) - gammaln(z + 1.0)
        logs += (x + y) * math.log(0.5 * p) + z * math.log1p(-p)
        return np.where(inside, logs, -np.inf)

    stay = math.log1p(-p) + log_mass(a, b)
    log_p = np.logaddexp(stay, math.log(p) + log_mass(a, b - 1.0))
    log_q = np.logaddexp(stay, math.log(p) + log_mass(a - 1.0, b))
    seen = np.isfinite(log_p) & np.isfinite(log_q)
    return float(logsumexp(order * log_p[seen] + (1.0 - order) * log_q[seen]) / (order - 1.0))


def row(clients: int, epsilon0: float, order: int) -> dict[str, Any]:
    """All curves at one point."""
    return {
        "epsilon0": epsilon0,
        "order": order,
        "clients": clients,
        EQUATION_8: girgis_simple_rdp(epsilon0, clients, order),
        UPPER: girgis_upper_rdp(epsilon0, clients, order),
        CLAIMED: chen2024_rdp(epsilon0, clients, order),
        EXACT: clone_renyi(epsilon0, clients).divergence(order),
        PRINTED: printed_pair_rdp(epsilon0, clients, order),
        LOWER: girgis_lower_rdp(epsilon0, clients, order),
    }


def _run(_: Options, settings: Settings) -> Result:
    axis = next(name for name in ("epsilon0", "order") if isinstance(settings[name], list))
    rows = [row(**{**settings, axis: point}) for point in settings[axis]]
    fixed = (
        f"order {settings['order']}" if axis == "epsilon0" else f"eps0 = {settings['epsilon0']:g}"
    )
    part = Panel(
        f"Renyi divergence, n = {settings['clients']}, {fixed}",
        rows,
        axis,
        STYLES,
        "Renyi divergence (nats)",
        xlabel="local budget eps0" if axis == "epsilon0" else "order",
        logx=axis == "order",
    )
    at = [f"{'eps0' if axis == 'epsilon0' else 'order'} = {each[axis]:g}" for each in rows]
    facts = {
        "at": at,
        "tighter": sum(each[CLAIMED] < each[EQUATION_8] for each in rows),
        "tighter_than_smallest": sum(each[CLAIMED] < each[UPPER] for each in rows),
        "over_lower": [each[CLAIMED] / each[LOWER] for each in rows],
        "over_exact": [each[CLAIMED] / each[EXACT] for each in rows],
        "below": [a for a, each in zip(at, rows, strict=True) if each[CLAIMED] < each[EXACT]],
        "printed": [each[PRINTED] / each[EXACT] for each in rows],
        "under": sum(each[PRINTED] < each[LOWER] for each in rows),
    }
    return Result({"divergence": rows}, {"divergence": panels([part], 1)}, facts)


TARGETS = {"chen2024-renyi-figure-2": _run, "chen2024-renyi-figure-3": _run}

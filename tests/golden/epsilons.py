"""Every epsilon that is printed anywhere, in one file, and the documents' tables made from it.

    scripts/generate --epsilons

works all of them out anew, writes `epsilons.json`, and puts the tables between the marks in the
documents. To be run after a bound has become sharper, with the difference looked at: a *proven*
number may only become smaller, an attack only larger.

All are at `delta` = 1e-6 but those of configurations, which have their own. Other randomizers and
other shapes of question stand in the file itself ("questions"), one entry each.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

import fl_shuffle as fs
from benchmarks import bounds_by_clients
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.task import load_task
from fl_shuffle.errors import NotApplicableError
from tests.repository import ROOT

FILE = Path(__file__).with_name("epsilons.json")
LOCALS, CLIENTS, ROUNDS = (0.5, 1.0, 2.0, 4.0, 8.0), (10**2, 10**3, 10**4, 10**6), (1, 50)
DELTA, DELTA0 = 1e-6, 1e-5
SHARP_CLIENTS = (10**3, 10**4, 10**6)
SHARP = ((1.0, DELTA), (2.0, DELTA), (4.0, DELTA), (4.0, 1e-5))
"""Local epsilons and deltas of the table that compares the proof with the attack."""


def configurations() -> dict[str, Path]:
    """Every shipped configuration whose data come with the package or are MNIST's, by name."""
    found = {path.stem: path for path in sorted((ROOT / "configs").glob("*.toml"))}
    return {
        name: path
        for name, path in found.items()
        if resolve_config(path).data.source in ("digits", "mnist")
    }


def columns(config: Config) -> dict[str, float | None]:
    """Every column's most exposed client after the last round, everybody having reported in all."""
    task = load_task(config)
    plan, dimension = task.plan, sum(p.numel() for p in task.model(config).parameters())
    accountant = Accountant.of(config.to_dict(), plan.classes, plan.class_of, dimension)
    everybody = np.ones(len(plan), dtype=bool)
    spend = accountant.count([(number + 1, everybody) for number in range(config.run.rounds)])
    assert spend is not None
    found = {**spend.columns, **accountant.lower_bounds()}
    return {name: column.worst for name, column in found.items()}


def grid() -> list[tuple[float, int, int]]:
    """(local epsilon, clients, rounds) of the grid."""
    return list(itertools.product(LOCALS, CLIENTS, ROUNDS))


def of_vectors(
    local: float, clients: int, rounds: int, calibration: str = "classical", delta: float = DELTA
) -> dict[str, float | None]:
    """Gaussian reports of a unit client: what is proven, and what an attack reaches.

    The papers compare at the classical calibration.
    """
    question = {
        "randomizer": "gaussian", "unit": "client", "epsilon0": local, "delta0": DELTA0,
        "calibration": calibration, "clients": clients, "rounds": rounds, "delta": delta,
    }  # fmt: skip
    found: dict[str, float | None] = {}
    for method in ("vector", "attack"):
        try:
            found[method] = number(fs.bound(**question, method=method).epsilon)
        except NotApplicableError:
            found[method] = None
    return found


def sharp_grid() -> dict[str, tuple[float, int, int, str, float]]:
    """Row by row the points at which the proof is compared with the attack."""
    points = itertools.product(("classical", "analytic"), SHARP, SHARP_CLIENTS, ROUNDS)
    return {
        f"{calibration}, {key(local, clients, rounds)}, {delta:g}": (
            local, clients, rounds, calibration, delta
        )
        for calibration, (local, delta), clients, rounds in points
    }  # fmt: skip


def side_by_side(clients: int) -> dict[str, float | None]:
    """Every bound among so many clients (`benchmarks.bounds_by_clients`)."""
    return {
        name: bounds_by_clients.epsilon(query, clients)
        for name, (query, _) in bounds_by_clients.COLUMNS.items()
    }


def answer(entry: dict[str, Any]) -> dict[str, Any]:
    """Another question (other randomizers, other shapes of question), with its epsilon now."""
    return {**entry, "epsilon": number(fs.bound(delta=DELTA, **entry["question"]).epsilon)}


def number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def key(local: float, clients: int, rounds: int) -> str:
    return f"{local:g}, 10^{round(math.log10(clients))}, {rounds}"


def everything() -> dict[str, Any]:
    return {
        "made_by": "scripts/generate --epsilons",
        "delta": DELTA,
        "configurations": {
            name: columns(resolve_config(path)) for name, path in configurations().items()
        },
        "vectors": {key(*point): of_vectors(*point) for point in grid()},
        "sharpness": {name: of_vectors(*point) for name, point in sharp_grid().items()},
        "side by side": {str(n): side_by_side(n) for n in bounds_by_clients.CLIENTS},
        "questions": {name: answer(entry) for name, entry in read()["questions"].items()},
    }


def read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


# --- Tables of documents -----------------------------------------------------------------------

PAGE = "reference/bounds.md"
MARK = "<!-- tests/golden/epsilons.json: side by side -->\n"
HEAD = (
    "| clients | GSPA | Balle | FMT closed | FMT clone | 2023 | `profile` | 2-RR | Su "
    "| `vector` | attack |"
)


def with_table(text: str, numbers: dict[str, Any]) -> str:
    """The page with its table as the numbers are now."""
    lines = [HEAD, "|---" * HEAD.count(" |") + "|"]
    for clients, row in numbers["side by side"].items():
        cells = ["-" if value is None else f"{value:.3g}" for value in row.values()]
        lines.append(f"| 1e{len(clients) - 1} | " + " | ".join(cells) + " |")
    pattern = re.compile(re.escape(MARK) + r"(\|[^\n]*\n)+")
    made, count = pattern.subn(MARK + "\n".join(lines) + "\n", text)
    if count != 1:
        raise ValueError(f"docs/{PAGE} has {count} tables under {MARK.strip()}")
    return made


SHARP_PAGE = "research/proofs/vector-theorem.md"
SHARP_MARK = "<!-- tests/golden/epsilons.json: sharpness -->\n"
SHARP_HEAD = "| calibration | local epsilon | delta | rounds | 1e3 | 1e4 | 1e6 |"


def with_sharpness(text: str, numbers: dict[str, Any]) -> str:
    """The page with its table of how far the proven epsilon lies above the attack's."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, (local, _, rounds, calibration, delta) in sharp_grid().items():
        found = numbers["sharpness"][name]
        more = 100.0 * (found["vector"] / found["attack"] - 1.0)
        head = calibration, f"{local:g}", f"{delta:g}", str(rounds)
        rows.setdefault(head, []).append(f"{more:.1f}%")
    lines = [SHARP_HEAD, "|---" * SHARP_HEAD.count(" |") + "|"]
    lines += ["| " + " | ".join([*head, *cells]) + " |" for head, cells in rows.items()]
    pattern = re.compile(re.escape(SHARP_MARK) + r"(\|[^\n]*\n)+")
    made, count = pattern.subn(SHARP_MARK + "\n".join(lines) + "\n", text)
    if count != 1:
        raise ValueError(f"docs/{SHARP_PAGE} has {count} tables under {SHARP_MARK.strip()}")
    return made


def write_down() -> None:
    FILE.write_text(json.dumps(everything(), indent=1, allow_nan=False) + "\n", encoding="utf-8")

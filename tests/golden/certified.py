"""Certified numbers of a few rounds, and the version of the accounting to which they belong.

    python -m tests.golden.certified

writes `certified_rounds.json` anew. It refuses where the numbers have moved and `VERSION` has not:
users' caches would then hold numbers that the code does not give any more.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fl_shuffle.accounting.bounds import VERSION
from fl_shuffle.accounting.client_classes import AnyRound, DeclaredRound, ShuffledRound
from fl_shuffle.accounting.rounds.round_library import curve_of

FILE = Path(__file__).with_name("certified_rounds.json")
ROUNDS: dict[str, AnyRound] = {
    "gaussian, one radius": ShuffledRound("gaussian", 6.0, 1.0, 2.0, ((1.0, 59),)),
    "gaussian, a record of one client": ShuffledRound("gaussian", 4.0, 1.0, 0.2, ((1.0, 199),)),
    "gaussian, wide reports": ShuffledRound("gaussian", 1.0, 1.0, 2.0, ((1.0, 299),)),
    "gaussian, three radii": ShuffledRound(
        "gaussian", 3.0, 1.0, 2.0, ((0.5, 40), (1.0, 100), (1.5, 60))
    ),
    "laplace, one radius": ShuffledRound("laplace", 4.0, 1.0, 2.0, ((1.0, 199),)),
    "laplace, two radii": ShuffledRound("laplace", 4.0, 0.5, 1.0, ((0.5, 50), (1.0, 150))),
    "declared, pure": DeclaredRound(1.0, 0.0, 299),
    "declared, approximate": DeclaredRound(0.5, 1e-9, 999),
}
DELTAS = (1e-4, 1e-8)
RELATIVE = 1e-9
"""Libraries and processors differ in the last digits."""


def epsilons() -> dict[str, list[float]]:
    """Return the certified epsilons (nats) of every round at each of `DELTAS`."""
    curves = {name: curve_of(kind) for name, kind in ROUNDS.items()}
    return {name: [float(c.epsilon(delta)) for delta in DELTAS] for name, c in curves.items()}


def moved(found: dict[str, list[float]], known: dict[str, list[float]]) -> list[str]:
    """Return the names of rounds whose numbers are not those that are known."""
    return [
        name
        for name, values in found.items()
        if name in known
        and any(
            abs(new - old) > RELATIVE * old for new, old in zip(values, known[name], strict=True)
        )
    ]


def main() -> None:
    """Write the file, unless numbers have moved under the same version."""
    found = epsilons()
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"version": 0}
    changed = moved(found, known.get("rounds", {}))
    if changed and known["version"] == VERSION:
        sys.exit(
            f"numbers of version {VERSION} have moved ({', '.join(changed)}): raise VERSION in "
            "fl_shuffle/accounting/bounds/__init__.py"
        )
    text = json.dumps({"version": VERSION, "rounds": found}, indent=1)
    FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

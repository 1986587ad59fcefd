"""What was tried and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Faults of one kind. `problems` says in words what went wrong, one line each.

    `seen`: plaintext reports, or who sent them, found with a party that must not have them; None
    where there is no such party.
    """

    name: str
    tried: int = 0
    survived: int = 0
    lost: int = 0
    uncounted: int = 0
    tracebacks: int = 0
    seen: int | None = None
    problems: list[str] = field(default_factory=list)

    def add(self, what: str, *, lost: int = 0, uncounted: int = 0, problem: str = "") -> None:
        """Count one fault; it was survived if nothing is wrong."""
        self.tried += 1
        self.lost += lost
        self.uncounted += uncounted
        if lost or uncounted or problem:
            self.problems.append(
                f"{self.name}: {what}: {lost} rounds lost, {uncounted} uncounted {problem}".strip()
            )
        else:
            self.survived += 1

    def said(self, text: str) -> str:
        """A problem if this output of a command holds a traceback."""
        if "Traceback" not in text:
            return ""
        self.tracebacks += 1
        lines = text[text.index("Traceback") :].strip().splitlines()
        return f"traceback: {' | '.join(lines[:12])}"


def table(tallies: Iterable[Tally]) -> str:
    """All of them, and their sum."""
    rows = list(tallies)
    total = Tally("all")
    for row in rows:
        for name in ("tried", "survived", "lost", "uncounted", "tracebacks"):
            setattr(total, name, getattr(total, name) + getattr(row, name))
        if row.seen is not None:
            total.seen = (total.seen or 0) + row.seen
    heads = ("faults", "tried", "survived", "rounds lost", "under-counted", "tracebacks", "seen")
    lines = [f"{heads[0]:<34}" + "".join(f"{head:>15}" for head in heads[1:])]
    for row in [*rows, total]:
        numbers = (row.tried, row.survived, row.lost, row.uncounted, row.tracebacks)
        seen = "-" if row.seen is None else f"{row.seen:,}"
        cells = [*(f"{number:,}" for number in numbers), seen]
        lines.append(f"{row.name:<34}" + "".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines)

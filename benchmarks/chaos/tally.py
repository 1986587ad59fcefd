"""What was tried and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Faults of one kind. `problems` says in words what went wrong, one line each."""

    name: str
    tried: int = 0
    survived: int = 0
    lost: int = 0
    uncounted: int = 0
    tracebacks: int = 0
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
        return f"traceback: {' | '.join(text.strip().splitlines()[-7:])}"


def table(tallies: Iterable[Tally]) -> str:
    """All of them, and their sum."""
    rows = list(tallies)
    total = Tally("all")
    for row in rows:
        for name in ("tried", "survived", "lost", "uncounted", "tracebacks"):
            setattr(total, name, getattr(total, name) + getattr(row, name))
    heads = ("faults", "tried", "survived", "rounds lost", "under-counted", "tracebacks")
    lines = [f"{heads[0]:<34}" + "".join(f"{head:>15}" for head in heads[1:])]
    for row in [*rows, total]:
        numbers = (row.tried, row.survived, row.lost, row.uncounted, row.tracebacks)
        lines.append(f"{row.name:<34}" + "".join(f"{number:>15,}" for number in numbers))
    return "\n".join(lines)

"""What was tried and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.chaos.children import Ended

HEADS = {
    "tried": "tried",
    "survived": "survived",
    "lost": "rounds lost",
    "uncounted": "under-counted",
    "tracebacks": "tracebacks",
    "seen": "seen",
}


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

    def wrong(self, ended: Ended, *codes: int) -> str:
        """A problem if a command ended with a traceback, or with none of these exit codes."""
        problem = self.said(ended.said)
        if ended.code not in codes:
            problem = problem or f"exit code {ended.code}: {ended.said[-300:]!r}"
        return problem


def table(tallies: Iterable[Tally]) -> str:
    """All of them, and their sum."""
    rows = [(each.name, [getattr(each, name) for name in HEADS]) for each in tallies]
    columns = zip(*(values for _, values in rows), strict=True)
    known = [[value for value in column if value is not None] for column in columns]
    rows.append(("all", [sum(column) if column else None for column in known]))
    lines = [f"{'faults':<34}" + "".join(f"{head:>15}" for head in HEADS.values())]
    for name, values in rows:
        cells = ("-" if value is None else f"{value:,}" for value in values)
        lines.append(f"{name:<34}" + "".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines)

"""The tables of docs/research/papers.md: statements of the papers, and recorded results.

`papers.toml` lists the rows. Numbers of the reproduction are read from its files, never typed in.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.reproduction import chen2024_estimation, chen2024_gspa, chen2024_renyi, su2025
from benchmarks.reproduction.core import HERE, JINJA
from benchmarks.tables import between, markdown, read_csv

PAGE = Path("docs") / "research" / "papers.md"
ROWS = HERE / "papers.toml"
HEADS = ("statement", "code, in fl_shuffle", "call", "status", "the paper", "the reproduction")
NO_CALL = "none"


@dataclass(frozen=True)
class Statement:
    """One row: what the papers call it, how it is asked for, and both numbers."""

    what: str
    covers: tuple[str, ...]
    paper: str
    ours: str
    code: str = ""
    call: str = ""
    status: str = ""

    def cells(self) -> tuple[str, ...]:
        """As the page shows it."""
        quoted = [f"`{each}`" if each else NO_CALL for each in (self.code, self.call)]
        return (self.what, *quoted, self.status or "no bound", self.paper, self.ours)


@dataclass(frozen=True)
class Paper:
    """All numbered statements of a paper, and the rows that are about them."""

    numbered: tuple[str, ...]
    rows: tuple[Statement, ...]


def papers(results: Path) -> dict[str, Paper]:
    """Every paper's rows, with the numbers recorded under `results`."""
    known = _words(results)
    return {
        name: Paper(
            tuple(each["numbered"]),
            tuple(_statement(row, known) for row in each["rows"]),
        )
        for name, each in tomllib.loads(ROWS.read_text("utf-8")).items()
    }


def with_tables(text: str, results: Path) -> str:
    """The page's text with its tables as they are made from the recorded results."""
    for name, paper in papers(results).items():
        table = markdown(HEADS, (row.cells() for row in paper.rows))
        start, end = (
            f"<!-- {word} of the table {name}: scripts/generate -->" for word in ("start", "end")
        )
        text = between(text, start, end, f"\n{table}")
    return text


def _statement(row: Mapping[str, Any], known: Mapping[str, Any]) -> Statement:
    ours = JINJA.from_string(row["ours"]).render(known)
    return Statement(**{**row, "covers": tuple(row["covers"]), "ours": ours})


def _words(results: Path) -> dict[str, Any]:
    """What the rows of papers.toml may say: functions of recorded tables, and names of columns."""

    @cache
    def rows(table: str) -> list[dict[str, str]]:
        return read_csv(results / table)

    def at(table: str, column: str, **where: str) -> float:
        """The one cell whose row has these values."""
        (value,) = {
            row[column] for row in rows(table) if all(row[k] == v for k, v in where.items())
        }
        return float(value)

    def ratios(table: str, upper: str, lower: str) -> list[float]:
        return [float(row[upper]) / float(row[lower]) for row in rows(table)]

    def below(table: str, smaller: str, larger: str) -> str:
        count = sum(float(row[smaller]) < float(row[larger]) for row in rows(table))
        return f"{count} of {len(rows(table))}"

    def less(table: str, column: str, *others: str) -> list[float]:
        """By which share the column is below the best of the others, row by row."""
        best = [min(float(row[each]) for each in others) for row in rows(table)]
        return [
            1.0 - float(row[column]) / each for row, each in zip(rows(table), best, strict=True)
        ]

    def column(table: str, name: str) -> list[float]:
        return [float(row[name]) for row in rows(table)]

    asked: dict[str, Any] = {"at": at, "all": column, "ratios": ratios, "below": below}
    return asked | {"less": less} | _columns()


def _columns() -> dict[str, str]:
    """Names of columns and tables, as papers.toml writes them."""
    renyi, gspa, estimation = chen2024_renyi, chen2024_gspa, "chen2024-gspa-figure-3"
    names = {
        "EXACT": renyi.EXACT,
        "CLAIMED": renyi.CLAIMED,
        "EQUATION_8": renyi.EQUATION_8,
        "LOWER": renyi.LOWER,
        "GSPA": gspa.GSPA,
        "REDUCTION": gspa.EXACT,
        "ECHO": gspa.ECHO,
        "FELDMAN": gspa.FELDMAN,
        "ERLINGSSON": gspa.ERLINGSSON,
        "UPPER": su2025.UPPER,
        "CERTIFIED": su2025.LOWER,
        "MAE_1": f"MAE, {chen2024_estimation.PLAIN}",
        "MAE_2": f"MAE, {chen2024_estimation.PUBLISHED}",
        "FIGURE_2": "chen2024-gspa-figure-2/bounds.csv",
    }
    names |= {f"SU_{i}": f"su2025-figure-{i}/bounds.csv" for i in (2, 3, 5, 6)}
    for word, kind in (("MEAN", "mean"), ("FREQUENCY", "frequency")):
        names[word] = f"{estimation}-{kind}/against_f_C.csv"
        names[f"{word}_EPS"] = f"{estimation}-{kind}/against_eps_C.csv"
    return names

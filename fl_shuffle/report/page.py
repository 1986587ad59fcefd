"""The report page: what ran, what it cost whom, and which of the numbers are guarantees.

Here is what the templates (`templates`) show of a run; the words are theirs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS, add_remove_of
from fl_shuffle.accounting.guarantee import gain_at_most, proof_over_attack, ratio_line
from fl_shuffle.accounting.rounds.class_table import distinct_rows
from fl_shuffle.accounting.rounds.threat_model import towards
from fl_shuffle.certificates.verdicts import certificate_line
from fl_shuffle.configuration.sections import ERROR, ESTIMATED
from fl_shuffle.errors import ConfigError
from fl_shuffle.ledger.tables import EPSILONS
from fl_shuffle.report import meaning
from fl_shuffle.report.draw import STROKES, VIEW, inline
from fl_shuffle.report.figures import run_figures, thinned
from fl_shuffle.report.formats import numeric, rows, short, write_text
from fl_shuffle.report.many import (
    EACH_ALONE,
    runs_view,
    sweep_figure,
    sweep_table,
)
from fl_shuffle.report.meaning import Policy
from fl_shuffle.report.record import RunRecord
from fl_shuffle.report.tables import Columns, clients_table, rounds_table
from fl_shuffle.runs.console_messages import NO_LIMIT, left_out, odds_factor
from fl_shuffle.runs.directory import checkpoints_in

if TYPE_CHECKING:
    from fl_shuffle.sweeps.results import SweepResult

TEMPLATES: Final = Path(__file__).parent / "templates"
LEVELS: Final = {"10%": 0.1, "50%": 0.5, "90%": 0.9, "99%": 0.99, "worst": 1.0}
"""Quantiles over the clients that the page shows."""
PAGE_ROWS: Final = 50
"""Clients that are shown at a time: a sheet of paper."""
CLIENT_BYTES: Final = 1_300_000
"""What the table of clients may take in the page; the least exposed clients beyond that are in the
ledger's export alone."""


def write_report(
    runs: Sequence[RunRecord],
    out: Path | None = None,
    *,
    policy: Policy | None = None,
    purpose: str | None = None,
) -> Path:
    """Write the page of one run, or of several side by side; returns where it is.

    By default that is RUN/report.html for one run; several need `out`. Every epsilon is recomputed
    from the ledgers' classes and attendance, and a disagreement with what is recorded is printed.
    `policy` grades the headline, `purpose` is printed as it is. Raises `RunError` if the page
    cannot be written, `ConfigError` for several runs without `out`.
    """
    if out is None and len(runs) != 1:
        raise ConfigError("a report on several runs needs a file name: add --out FILE")
    path = runs[0].directory / "report.html" if out is None else out
    return write_text(render(runs, policy=policy, purpose=purpose), path)


def render(
    runs: Sequence[RunRecord], *, policy: Policy | None = None, purpose: str | None = None
) -> str:
    """Return the whole page as text."""
    one = len(runs) == 1
    title = f"Privacy report: {runs[0].name if one else f'{len(runs)} runs'}"
    together = None if one else runs_view(runs, policy)
    return template("report.html.j2").render(
        title=title, runs=runs, policy=policy, purpose=purpose, together=together
    )


def template(name: str) -> Template:
    """Return a page's template; what it shows is escaped, and nothing that it names may be
    missing."""
    pages = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    pages.filters |= {"short": short, "exact": exact, "moment": _time, "grouped": "{:,}".format,
                      "rows": rows, "numeric": numeric,
                      "pretty": partial(json.dumps, indent=2)}  # fmt: skip
    pages.globals |= {"inline": inline, "view": VIEW, "strokes": STROKES, "meaning": meaning,
                      "NO_LIMIT": NO_LIMIT,
                      "ADD_REMOVE_WORDS": ADD_REMOVE_WORDS, "EACH_ALONE": EACH_ALONE}  # fmt: skip
    pages.globals |= {each.__name__: each for each in (
        add_remove_of, certificate_line, gain_at_most, left_out, odds_factor, proof_over_attack,
        estimates_by_round, quantiles_table, ratio_line, run_figures, saved_models, spend_by_round,
        thinned_clients, towards,
    )}  # fmt: skip
    return pages.get_template(name)


def exact(value: Any) -> str:
    """Return all digits of a number, as they are read back; empty for one that does not exist."""
    return "" if value is None else str(value)


def spend_by_round(run: RunRecord) -> Columns:
    """Return the cumulative epsilons of the most exposed client, as recorded."""
    table, at = rounds_table(run), thinned(len(run.rounds))
    heads = {"round": "round", "num_reports": "reports"}
    heads |= {EPSILONS[name]: name for name in run.epsilons}
    return {head: table[name][at] for name, head in heads.items()}


def estimates_by_round(run: RunRecord) -> dict[str, list[Any]]:
    """Return what evaluation rounds have estimated, by column; nothing where there is none."""
    names = [
        f"{ESTIMATED}{name}{end}"
        for name in run.config["privacy"].get("metrics", {})
        for end in ("", ERROR)
    ]
    held = {n: each for n, each in run.metrics.items() if names and names[0] in each}
    if not held:
        return {}
    heads = [name.removeprefix(ESTIMATED).replace(ERROR, ", standard error") for name in names]
    return {
        "round": list(held),
        **{h: [each[n] for each in held.values()] for h, n in zip(heads, names, strict=True)},
    }


def saved_models(run: RunRecord) -> list[tuple[str, str]]:
    """Return which models on the way the run's folder holds; nothing where it holds none."""
    rounds = checkpoints_in(run.directory)
    if not rounds:
        return []
    said = ", ".join(map(str, rounds[:20])) + ", ..." * (len(rounds) > 20)
    call = f"fs.load_model({str(run.directory)!r}, round_number={rounds[-1]})"
    return [("models", f"the final one, and after rounds {said}: {call}")]


def quantiles_table(run: RunRecord) -> dict[str, list[Any]]:
    """Return how the clients' own epsilons are spread."""
    columns = run.proven_columns
    found = np.quantile(list(columns.values()), list(LEVELS.values()), axis=1)
    return {"column": list(columns), **dict(zip(LEVELS, found.tolist(), strict=True))}


def thinned_clients(run: RunRecord) -> dict[str, Any]:
    """Return every client, the most exposed first, grouped by what is the same for many of them.

    `groups` are the distinct rows, `clients` who has them; `first` are the rows of the first page.
    """
    table = clients_table(run)
    heads = {
        "rounds": "rounds", **{EPSILONS[name]: name for name in run.proven_columns},
        **({} if run.total_epsilon is None else {"total_epsilon": "total of the run"}),
        "epsilon0": "epsilon of a report", "delta0": "delta of a report", "scale": "noise",
        "radius": "clipping norm", "records": "records",
    }  # fmt: skip
    columns = {head: table[name] for name, head in heads.items()}
    alike = distinct_rows(-run.totals.headline, *columns.values())
    order = np.argsort(alike.inverse, kind="stable")
    kinds = list(rows({head: values[alike.first] for head, values in columns.items()}))
    starts = np.flatnonzero(np.diff(alike.inverse[order], prepend=-1))
    # Bytes of each client's number, and at the first of each kind of its row.
    size = np.full(len(order), len(str(len(order))) + 2)
    size[starts] += [len(json.dumps(row)) + 4 for row in kinds]
    listed = int(np.searchsorted(np.cumsum(size), CLIENT_BYTES, side="right"))
    clients = [own.tolist() for own in np.split(order[:listed], starts[1:]) if own.size]
    return {
        "heads": ["client", *columns],
        "rows": {"groups": kinds[: len(clients)], "clients": clients},
        "first": [(own, *kinds[alike.inverse[own]]) for own in order[:listed][:PAGE_ROWS]],
        "listed": listed,
        "hidden": len(order) - listed,
    }


def _time(stamp: str) -> str:
    if len(stamp) == len("2026-01-01"):
        return f"on {stamp}"
    return f"{datetime.fromisoformat(stamp):%Y-%m-%d %H:%M:%S %Z}"


def sweep_page(sweep: SweepResult) -> str:
    """Return a sweep's page as text: figure, table, every run."""
    title = f"fl-shuffle sweep {sweep.directory.name}"
    names = [Path(each).name for each in sweep.runs["directory"]]
    return template("sweep.html.j2").render(
        title=title, sweep=sweep, figure=sweep_figure(sweep),
        combinations=sweep_table(sweep.table), runs=sweep_table({**sweep.runs, "directory": names}),
    )  # fmt: skip

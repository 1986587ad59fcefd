"""The sections of one run on the report page, each as HTML text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from html import escape
from typing import Any

import numpy as np

from fl_shuffle.accounting.guarantee import ratio_line
from fl_shuffle.report import meaning
from fl_shuffle.report.figures import (
    accuracy_over_rounds,
    clients_distribution,
    privacy_profile,
    spend_over_rounds,
    thinned,
    trade_off,
)
from fl_shuffle.report.markup import (
    Cell,
    Number,
    charts,
    html_table,
    marked,
    short,
    sortable_table,
)
from fl_shuffle.report.meaning import Policy
from fl_shuffle.report.record import RunRecord
from fl_shuffle.report.tables import clients_table, rounds_table
from fl_shuffle.run_words import plain_words

LISTED_CLIENTS = 50_000
"""Rows of the table of clients, the most exposed first: beyond, a browser cannot hold them."""
PRINTED_ROWS = 40
"""Rows of a long table on paper: about a page."""
LISTED_NOTES = 50
"""Notes of the ledger on the page, which says how many more there are."""

EXPLAINED = {
    "gspa": "The founding paper's mu, added up by the square root of T. Not a guarantee.",
    "specific": "The FFT bound of the randomizer as its paper applies it. Not a guarantee.",
    "proven": "A guarantee: no attack on the shuffled reports can exceed it.",
    "sum": "A guarantee towards whoever sees sums of reports alone, and no single report.",
    "sum_lower": "What a test on these sums achieves: no proof of `sum` can go below this.",
    "local": "A guarantee of the client's own noise, even if the shuffler is dishonest.",
    "lower": "What a known attack achieves: no proof can go below this.",
}


def disagreements(run: RunRecord) -> list[str]:
    """Where the ledger says something else than its own rounds, counted again."""
    changed = "it was changed, or written by another version of the accountant"
    found = []
    if run.differing.size:
        found.append(
            f"{run.differing.size:,} clients, counted again, spent something else than the ledger "
            f"says (the first is client {run.differing[0]}): {changed}"
        )
    if not run.agrees:
        found.append(
            f"the ledger says epsilon {short(run.recorded)}, but its rounds, counted again, give "
            f"{short(run.recounted)}: {changed}"
        )
    return found


def recount(run: RunRecord) -> str:
    """Whether the ledger's numbers were confirmed."""
    wrong = disagreements(run)
    if wrong:
        return "".join(f'<p class="warning">{escape(text)}</p>' for text in wrong)
    if run.spend is None:
        return ""
    clients = len(run.totals.rounds)
    if run.ledger.spend is None:
        return (
            f'<p class="quiet">All {clients:,} clients were counted from the attendance of every '
            "round; the run wrote down no totals to compare with, as it is not finished.</p>"
        )
    return (
        f'<p class="quiet">All {clients:,} clients were counted again from the attendance of every '
        "round: each one's spend is what the ledger says.</p>"
    )


def what_was_done(run: RunRecord, purpose: str | None) -> str:
    """Purpose, data, who is protected, against whom."""
    meta = run.ledger.meta
    rows: list[tuple[Cell, Cell]] = [
        ("purpose", purpose or "not stated (--purpose TEXT)"),
        ("data", _data(meta["data"])),
        ("protected", meaning.protected(run)),
        ("against", meaning.against(run)),
        ("when", f"started {_time(meta['started'])}, {_finished(meta)}"),
    ]
    return (
        f"<h2>What was done</h2><p>{escape(meaning.done(run))}</p>"
        f"{html_table(('', ''), rows, cards=True)}"
    )


def headline(run: RunRecord, policy: Policy | None) -> str:
    """The one number, what it means, and what the reader's policy calls it."""
    spend = run.spend
    assert spend is not None
    column = spend.headline_column
    epsilons = {name: each.worst for name, each in spend.columns.items()}
    words = plain_words(
        epsilons,
        headline=column,
        reports=int(run.ledger.reports.min(initial=spend.n_reports)),
        rounds=spend.round_number,
    )
    lines = [
        f'<h2>What it cost</h2><p class="headline">epsilon &le; <data data-key="headline" '
        f'value="{spend.headline!r}">{short(spend.headline)}</data> at delta = {run.delta:g}</p>',
        f"<p>{escape(words[0].upper() + words[1:])}.</p>",
        f"<p>Proven (column {column}), for the worst client. {_accuracy(run)}</p>",
        *(f"<p>{escape(text)}</p>" for text in meaning.meaning(run)),
    ]
    if policy is None:
        lines.append(
            '<p class="quiet">No policy was given to hold it against (--policy STRONG,MODERATE).'
            "</p>"
        )
    else:
        grade = policy.grade(spend.headline)
        lines.append(
            f'<p><span class="verdict {grade}">{grade}</span> '
            f"{escape(policy.sentence(spend.headline))}.</p>"
        )
    return "\n".join([*lines, recount(run)])


def not_covered(run: RunRecord) -> str:
    """What the headline says nothing about."""
    items = "".join(f"<li>{marked(text)}</li>" for text in meaning.not_covered(run))
    return f"<h2>What is not covered, and what is assumed</h2><ul>{items}</ul>"


def spend_section(run: RunRecord, prefix: str) -> str:
    """Round by round: the figure and all recorded numbers."""
    table = rounds_table(run)
    at = thinned(len(run.ledger.rounds))
    heads = ["round", "reports", *(name for name in table if name.endswith("_epsilon"))]
    columns = [table[name][at].tolist() for name in heads]
    shown = [head.removesuffix("_epsilon") for head in heads]
    rows: list[list[Cell]] = [[Number(cell) for cell in row] for row in zip(*columns, strict=True)]
    note = (
        ""
        if len(at) == len(run.ledger.rounds)
        else f'<p class="quiet">{len(at):,} of {len(run.ledger.rounds):,} rounds are shown; '
        "<code>fl-shuffle ledger RUN</code> has all.</p>"
    )
    numbers = html_table(
        shown, rows, caption="Cumulative epsilon of the most exposed client, as recorded",
        label=f"epsilon by round {prefix}",
    )  # fmt: skip
    return (
        f"<h2>Spend per round</h2>{charts([spend_over_rounds(run)], prefix)}"
        f'<details><summary>Every round</summary><div id="{escape(prefix)}rounds">{numbers}</div>'
        f"</details>{note}"
    )


def bounds(run: RunRecord, prefix: str) -> str:
    """Every column with its status and source."""
    assert run.spend is not None
    rows: list[tuple[Cell, ...]] = []
    for name, column in run.spend.columns.items():
        note = f" Here: {column.note}." if column.note else ""
        rows.append(
            (name, Number(column.worst), str(column.status),
             f"{EXPLAINED[name]}{note}", column.source)
        )  # fmt: skip
    ratio = run.spend.proven_over_lower
    gain = "" if ratio is None else f"<p>{escape(ratio_line(ratio))}.</p>"
    heads = ("column", "epsilon", "status", "what it is", "source")
    return (
        f'<h2>Every bound</h2><div id="{escape(prefix)}bounds">'
        f"{html_table(heads, rows, cards=True)}</div>{gain}"
    )


def clients(run: RunRecord, prefix: str) -> str:
    """Every client's own spend, and how it is spread."""
    spend, totals = run.spend, run.totals
    assert spend is not None
    shown = {"proven": totals.proven, "sum": totals.sum, "local": totals.local}
    shown = {name: each for name, each in shown.items() if not np.isnan(each).any()}
    levels = (0.1, 0.5, 0.9, 0.99, 1.0)
    quantiles = html_table(
        ("column", *(f"{level:.0%}" if level < 1.0 else "worst" for level in levels)),
        [
            (name, *(Number(float(np.quantile(values, level))) for level in levels))
            for name, values in shown.items()
        ],
        caption="Quantiles over the clients of their own epsilon",
        label=f"quantiles over the clients {prefix}",
    )
    return (
        f"<h2>Clients</h2>{charts([clients_distribution(run)], prefix)}"
        f'<div id="{escape(prefix)}quantiles">{quantiles}</div>'
        f"{_every_client(run, list(shown), prefix)}"
    )


def _every_client(run: RunRecord, columns: list[str], prefix: str) -> str:
    table = clients_table(run)
    order = np.argsort(-run.totals.headline, kind="stable")[:LISTED_CLIENTS]
    names = ["client", "rounds", *(f"{name}_epsilon" for name in columns)]
    names += ["epsilon0", "delta0", "scale", "radius", "records"]
    heads = ["client", "rounds", *columns, "budget epsilon", "budget delta", "noise", "clip",
             "records"]  # fmt: skip
    values = [table[name][order].tolist() for name in names]
    rows: list[list[Cell]] = [[Number(cell) for cell in row] for row in zip(*values, strict=True)]
    hidden = len(run.totals.rounds) - len(order)
    more = (
        f'<p class="quiet">{hidden:,} less exposed clients are not listed; '
        "<code>fl-shuffle ledger RUN --clients</code> has all.</p>"
        if hidden
        else ""
    )
    return (
        sortable_table(
            heads,
            rows,
            name=f"{prefix}clients-table",
            caption="All clients, the most exposed first: rounds in which it reported, its own "
            "epsilons, the budget it asked for one report, and its noise and clip norm",
            label=f"all clients {prefix}",
            hint="Client number",
            printed=PRINTED_ROWS,
        )
        + more
    )


def curves(run: RunRecord, prefix: str) -> str:
    """Profile and trade-off curve of the most exposed client."""
    if run.worst is None:
        return ""
    figures = [privacy_profile(run), trade_off(run)]
    return f"<h2>Profile and trade-off</h2>{charts(figures, prefix)}"


def accuracy(run: RunRecord, prefix: str) -> str:
    """Accuracy over the rounds, if it was measured more than once."""
    if len(run.accuracy) < 2:
        return ""
    return f"<h2>Accuracy</h2>{charts([accuracy_over_rounds(run)], prefix)}"


def remarks(run: RunRecord) -> str:
    """The ledger's remarks that are no warnings."""
    rows = [
        (Number(number), kind, text)
        for number, kind, text in run.ledger.notes
        if kind not in ("warning", "assumption")
    ]
    if not rows:
        return ""
    hidden = len(rows) - LISTED_NOTES
    more = f'<p class="quiet">and {hidden:,} more in the ledger</p>' if hidden > 0 else ""
    heads = ("round", "kind", "remark")
    return f"<h2>Remarks</h2>{html_table(heads, rows[:LISTED_NOTES], cards=True)}{more}"


def again(run: RunRecord) -> str:
    """Configuration, versions, and how to run it again."""
    meta = run.ledger.meta
    facts = {
        "fl-shuffle": meta["code_version"],
        "python": meta["python"],
        **meta["libraries"],
        "seed": meta["seed"],
        "ledger digest": run.ledger.link,
    }
    rows = [(str(key), str(value)) for key, value in facts.items()]
    same = (
        "the same bits"
        if run.config["run"]["entropy"] == "seeded"
        else "the same laws with other noise, which came from the operating system"
    )
    command = f"fl-shuffle simulate {run.directory}"
    return (
        f"<h2>How to run it again</h2><p><code>{escape(command)}</code> gives {same}.</p>"
        f"{html_table(('', ''), rows, cards=True)}"
        f'<details class="printed"><summary>configuration</summary><pre tabindex="0">'
        f"{escape(json.dumps(run.config, indent=2))}</pre></details>"
    )


def signature(runs: list[RunRecord]) -> str:
    """Where somebody signs for what was read, by the ledgers' digests."""
    digests = "".join(
        f"<li>{escape(run.name)}: <code>{escape(run.ledger.link[:16])}</code></li>" for run in runs
    )
    lines = "".join(f"<div>{text}</div>" for text in ("name and role", "date", "signature"))
    return (
        '<section class="signature"><h2>Read and accepted</h2><p>For the ledgers with these '
        f"digests (first 16 characters):</p><ul>{digests}</ul>"
        f'<div class="sign">{lines}</div></section>'
    )


def _accuracy(run: RunRecord) -> str:
    if not run.accuracy:
        return ""
    last = max(run.accuracy)
    value = run.accuracy[last]
    return (
        f'Test accuracy <data data-key="accuracy" value="{value!r}">{value:.2%}</data> after round '
        f"{last} (test records: {escape(run.ledger.meta['test_data'])})."
    )


def _finished(meta: Mapping[str, Any]) -> str:
    if "finished" not in meta:
        return "not finished"
    return "finished" if meta["finished"] is None else f"finished {_time(meta['finished'])}"


def _data(facts: Mapping[str, Any]) -> str:
    if not facts["records"]:
        return f"{facts['source']}: the server knows nothing else of them"
    shape = " x ".join(map(str, facts["shape"]))
    what = "numbers to predict" if facts.get("regression") else "classes"
    return (
        f"{facts['source']}: {facts['records']:,} records of {shape}, {facts['classes']} {what}, "
        f"{facts['test_records']:,} test records"
    )


def _time(stamp: str) -> str:
    if len(stamp) == len("2026-01-01"):
        return f"on {stamp}"
    return f"{datetime.fromisoformat(stamp):%Y-%m-%d %H:%M:%S %Z}"

"""The report page: what ran, what it cost whom, and which of the numbers are guarantees."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fl_shuffle.accounting.guarantee import ratio_line
from fl_shuffle.accounting.rounds.trust import towards
from fl_shuffle.errors import RunError
from fl_shuffle.extras import installed
from fl_shuffle.report import charts
from fl_shuffle.report.markup import CSS, html_table
from fl_shuffle.report.record import RunRecord, read_run

LISTED_CLASSES = 20
"""Rows of the table of classes, the most exposed first."""
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


def write_report(directory: Path, out: Path | None = None) -> Path:
    """Write the page of the run in `directory`; returns where it is (default RUN/report.html).

    Every epsilon is recomputed from the ledger's classes and attendance, and a disagreement with
    the recorded number is printed on top. Raises `RunError` if the run cannot be read or the page
    not be written.
    """
    run = read_run(directory)
    path = directory / "report.html" if out is None else out
    try:
        # As private as the run directory it tells of; whoever publishes it opens it up.
        with open(path, "w", encoding="utf-8", opener=_private) as file:
            file.write(render(run))
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from None
    return path


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def render(run: RunRecord) -> str:
    """The whole page as text."""
    body = [_head(run), *_warnings(run)]
    if run.spend is None:
        body.append("<p>No round has been released: nothing has been spent.</p>")
    else:
        body += [_columns(run), _figures(run), _clients(run)]
    body += [_notes(run), _setup(run)]
    name = escape(run.directory.resolve().name)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>fl-shuffle run {name}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def _head(run: RunRecord) -> str:
    config, meta = run.config, run.ledger.meta
    privacy = config["privacy"]
    lines = [f"<h1>Privacy report: {escape(run.directory.resolve().name)}</h1>"]
    lines.append(
        f'<p class="quiet">{config["data"]["clients"]:,} clients, {len(run.ledger.rounds):,} of '
        f"{config['run']['rounds']:,} rounds, {escape(privacy['randomizer'])} reports, "
        f"{escape(config['training']['schedule'])} schedule; started {_time(meta['started'])}, "
        f"{_finished(meta)}</p>"
    )
    if run.spend is not None:
        lines.append(
            f'<p class="headline">epsilon &le; {_number(run.spend.headline)} at delta = '
            f"{privacy['target_delta']:g}</p><p>proven (column {run.spend.headline_column}), for "
            f"the worst client, towards {escape(_towards(run))}; unit of privacy: one "
            f"{escape(privacy['unit'])}, replaced by any other ({escape(meta['relation'])}). "
            f"{_accuracy(run)}{_not_covered(run)}</p>"
        )
    return "\n".join(lines)


def _towards(run: RunRecord) -> str:
    assert run.spend is not None
    shuffler = run.config["privacy"].get("shuffler", "in-server")
    local = run.spend.columns["local"].worst
    whom = towards(run.spend.release, shuffler)
    if shuffler == "apart":
        return whom
    return f"{whom}; towards the operator of the server, which shuffles, too, {_number(local)}"


def _accuracy(run: RunRecord) -> str:
    if not run.accuracy:
        return ""
    last = max(run.accuracy)
    return (
        f"Test accuracy {run.accuracy[last]:.2%} after round {last} (test records: "
        f"{escape(run.ledger.meta['test_data'])})."
    )


def _not_covered(run: RunRecord) -> str:
    count = run.ledger.meta["records_not_covered"]
    return f" <b>NOT COVERED: {count:,} private records, see below.</b>" if count else ""


def _finished(meta: Mapping[str, Any]) -> str:
    if "finished" not in meta:
        return "not finished"
    return "finished" if meta["finished"] is None else f"finished {_time(meta['finished'])}"


def _warnings(run: RunRecord) -> list[str]:
    texts = [text for _, kind, text in run.ledger.notes if kind == "warning"]
    if not run.agrees:
        texts.insert(
            0,
            f"the ledger says epsilon {_number(run.recorded)}, but its rounds, counted "
            f"again, give {_number(run.recounted)}: it was changed, or written by another "
            "version of the accountant",
        )
    if run.differing.size:
        texts.insert(
            0,
            f"{run.differing.size:,} clients, counted again, spent something else than the ledger "
            f"says (the first is client {run.differing[0]}): it was changed, or written by another "
            "version of the accountant",
        )
    return [f'<p class="warning">{escape(text)}</p>' for text in dict.fromkeys(texts)]


def _columns(run: RunRecord) -> str:
    assert run.spend is not None
    rows = []
    for name, column in run.spend.columns.items():
        note = f"<br><em>{escape(column.note)}</em>" if column.note else ""
        rows.append(
            f'<tr><td><b>{name}</b></td><td class="n">{_number(column.worst)}</td>'
            f"<td>{escape(str(column.status))}</td><td>{EXPLAINED[name]} "
            f'<span class="quiet">{escape(column.source)}.</span>{note}</td></tr>'
        )
    head = '<tr><th>column</th><th class="n">epsilon</th><th>status</th><th>what it is</th></tr>'
    ratio = run.spend.proven_over_lower
    gain = "" if ratio is None else f"<p>{ratio_line(ratio)}.</p>"
    table = f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'
    return f"<h2>What was spent</h2>{table}{gain}"


def _figures(run: RunRecord) -> str:
    if not installed("matplotlib"):
        return (
            "<h2>Figures</h2><p>None: they need matplotlib, which is not installed; "
            "pip install 'fl-shuffle[report]'. Every number is in the tables.</p>"
        )
    shown = [
        (
            charts.spend_over_rounds(run),
            "Cumulative epsilon of the worst client. Dashed: published formulas, not guarantees.",
        )
    ]
    if len(run.accuracy) > 1:
        shown.append((charts.accuracy_over_rounds(run), "Accuracy on the test set."))
    shown.append(
        (
            charts.clients_distribution(run),
            "Every client's own epsilon: how many are at most that exposed.",
        )
    )
    if run.worst is not None:
        who = f"client {run.worst.client}, the most exposed"
        shown.append((charts.privacy_profile(run), f"The whole privacy profile of {who}."))
        shown.append(
            (
                charts.trade_off(run),
                f"Trade-off curve of {who}: whoever tests for its data must accept these errors. "
                "A published curve above the proven one promises more than is proven.",
            )
        )
    return '<h2>Figures</h2><div class="charts">' + "".join(
        f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
        for svg, caption in shown
    ) + "</div>"  # fmt: skip


def _clients(run: RunRecord) -> str:
    levels = (0.1, 0.5, 0.9, 0.99, 1.0)
    totals, spend = run.totals, run.spend
    assert spend is not None
    shown = {"proven": totals.proven, "sum": totals.sum, "local": totals.local}
    shown = {name: values for name, values in shown.items() if not np.isnan(values).any()}
    quantiles = html_table(
        ("", *(f"{level:.0%}" if level < 1.0 else "worst" for level in levels)),
        [
            (name, *(_number(float(np.quantile(values, level))) for level in levels))
            for name, values in shown.items()
        ],
    )
    worst = np.zeros(len(run.ledger.classes))
    np.maximum.at(worst, run.ledger.class_of, totals.headline)
    members = np.bincount(run.ledger.class_of, minlength=len(worst))
    most = np.zeros(len(worst), dtype=np.int64)
    np.maximum.at(most, run.ledger.class_of, totals.rounds)
    order = np.argsort(-worst, kind="stable")[:LISTED_CLASSES]
    rows = []
    for index in order.tolist():
        own = run.ledger.classes[index]
        rows.append(
            (own.noise, f"{members[index]:,}", f"{own.records:,}",
             f"({own.epsilon0:.4g}, {own.delta0:.2g})", f"{own.scale:.4g}",
             f"{own.exposure:.4g}", f"{most[index]:,}", _number(float(worst[index])))
        )  # fmt: skip
    heads = ("noise", "clients", "records", "budget asked", "noise scale", "exposure", "rounds",
             spend.headline_column)  # fmt: skip
    more = len(worst) - len(order)
    rest = f'<p class="quiet">{more:,} less exposed classes are not listed.</p>' if more else ""
    return (
        "<h2>Clients</h2><p>Quantiles over the clients of their own epsilon:</p>"
        + quantiles
        + '<p>Classes of equal randomizers, most exposed first (exposure: how far one unit moves '
        "the report before noise, in noise widths):</p>"
        + html_table(heads, rows)
        + rest
    )  # fmt: skip


def _notes(run: RunRecord) -> str:
    rows = [
        (str(number), kind, text)
        for number, kind, text in run.ledger.notes
        if kind != "warning"
    ]  # fmt: skip
    if not rows:
        return ""
    hidden = len(rows) - LISTED_NOTES
    more = f'<p class="quiet">and {hidden:,} more in the ledger</p>' if hidden > 0 else ""
    return f"<h2>Remarks</h2>{html_table(('round', 'kind', 'remark'), rows[:LISTED_NOTES])}{more}"


def _setup(run: RunRecord) -> str:
    meta = run.ledger.meta
    facts = {
        "seed": meta["seed"],
        "data": _data(meta["data"]),
        "fl-shuffle": meta["code_version"],
        "python": meta["python"],
        **meta["libraries"],
    }
    rows = [(str(key), str(value)) for key, value in facts.items()]
    return (
        f"<h2>How to run it again</h2>{html_table(('', ''), rows)}"
        f"<details><summary>configuration</summary><pre>"
        f"{escape(json.dumps(run.config, indent=2))}</pre></details>"
    )


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


def _number(value: float | None) -> str:
    return "-" if value is None or np.isnan(value) else f"{value:.4g}"

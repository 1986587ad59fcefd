"""The certificate of what a run says of one client, from its ledger."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from fl_shuffle._internal.renamed import warn_renamed
from fl_shuffle.accounting.rounds.events import OLD_COLUMNS
from fl_shuffle.certificates.gaussian_rounds import shuffled_witness
from fl_shuffle.certificates.writing import certificate
from fl_shuffle.errors import InvalidValueError, NotApplicableError, RunError, require_choice
from fl_shuffle.verify.gaussian import rounds_of
from fl_shuffle.verify.ledger import ledger_facts
from fl_shuffle.verify.reading import Fields, Refused

KINDS = {"shuffled": "shuffled", "sum": "sum", "local": "local"}
"""Columns, and the kind of claim that certifies them."""
NOT_CERTIFIED = [
    "what the run says of other clients and in other columns",
    "that the run did what its ledger says, beyond the assumptions stated here",
]


def certificate_of_run(
    directory: Path,
    client: int | None = None,
    column: str | None = None,
    *,
    short: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Any], float]:
    """Return what `fl_shuffle.verify` accepts of one client of a finished run; and its printed
    epsilon.

    `column`: "shuffled", "sum" or "local"; by default the run's headline. Where a client's own
    noise alone proves as much as "shuffled" says, the claim is of kind local, against more
    adversaries.
    `client`: by default the most exposed in that column. The epsilon claimed is the one that the
    verifier proves, at the run's delta, and beside it the one by convex order alone; with `short`
    that one alone. `tell` receives progress lines. Raises `RunError` for a
    folder without a finished run, `NotApplicableError` where there is no certificate.
    """
    path = directory / "ledger.sqlite"
    meta, spent = _finished(path)
    if meta["config"]["privacy"]["randomizer"] == "none":
        raise NotApplicableError(
            f"{directory} protects nobody (privacy.randomizer = 'none'): there is no epsilon to "
            "certify"
        )
    if column in OLD_COLUMNS:
        warn_renamed(f"column {column!r}", repr(OLD_COLUMNS[column]), stacklevel=3)
        column = OLD_COLUMNS[column]
    column = _headline(meta) if column is None else column
    require_choice("column", column, tuple(KINDS))
    place = ("shuffled", "sum", "local").index(column)
    printed = {number: row[place] for number, *row in spent if row[place] is not None}
    local = {number: row[-1] for number, *row in spent}
    if not printed:
        raise NotApplicableError(
            f"{path}: the run has no epsilon in column {column!r}; choose another column"
        )
    if client is None:
        client = max(printed, key=lambda number: (printed[number], -number))
    if client not in printed:
        raise InvalidValueError("client", client, f"must be one of the run's {len(spent)} clients")
    kind = KINDS[column]
    if column == "shuffled" and printed[client] == local.get(client):
        kind = "local"  # shuffling hides nobody: the client's own noise, against anybody
    try:
        facts = ledger_facts(path, kind, client).facts
        if not facts["rounds"]:
            raise NotApplicableError(f"client {client} has spent nothing; choose another client")
        rounds = rounds_of(Fields(facts, "facts"))
    except Refused as why:
        raise NotApplicableError(f"no certificate for column {column!r}: {why}") from None
    delta = float(meta["delta"])
    witness: dict[str, Any] = {}
    page = None
    if kind == "shuffled":
        witness = shuffled_witness(rounds, delta, printed=printed[client], short=short, tell=tell)
        if not short:
            page = shuffled_witness(rounds, delta, printed=printed[client], short=True, tell=tell)
    written = certificate(
        kind,
        facts,
        witness,
        unit=str(meta["unit"]),
        relation=str(meta["relation"]),
        client=client,
        delta=delta,
        start=printed[client],
        page=page,
        tell=tell,
    )
    return {**written, "not certified": NOT_CERTIFIED}, printed[client]


def _finished(path: Path) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """Return a ledger's facts, and what every client spent."""
    if not path.is_file():
        raise RunError(f"{path} does not exist: this is not a run directory")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            rows = database.execute("SELECT key, value FROM meta").fetchall()
            meta = {key: json.loads(value) for key, value in rows}
            # client_id, rounds, shuffled, sum, local: the names are not those of every schema.
            rows = database.execute("SELECT * FROM client_spend ORDER BY client_id").fetchall()
            spent = [(client, *epsilons) for client, _, *epsilons in rows]
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise RunError(f"{path} is not a readable ledger: {error}") from None
    if "finished" not in meta or not {"delta", "unit", "release", "relation"} <= set(meta):
        raise RunError(
            f"{path}: certificates can be written only for finished runs of this version"
        )
    return meta, spent


def _headline(meta: dict[str, Any]) -> str:
    if meta["config"]["privacy"]["randomizer"] == "declared":
        return "local"
    return "sum" if meta["release"] == "sum" else "shuffled"

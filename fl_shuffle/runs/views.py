"""summary.json and metrics.csv: a run's numbers, as views of its ledger alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_shuffle._internal.renamed import RenamedKeys, with_old_keys
from fl_shuffle.accounting.guarantee import proof_over_attack
from fl_shuffle.accounting.rounds.events import OLD_COLUMNS
from fl_shuffle.errors import RunError
from fl_shuffle.ledger.reader import RunView
from fl_shuffle.ledger.tables import ALWAYS, BY_COLUMN, EPSILONS, OLD_CSV, OLD_SUMMARY
from fl_shuffle.runs.console_messages import (
    hides_nobody,
    hiding_advice,
    left_out,
    plain_words,
)
from fl_shuffle.settings_schema import json_ready

if TYPE_CHECKING:
    from fl_shuffle.accounting.columns import ClientTotals

QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}


def summary_of(view: RunView) -> dict[str, Any]:
    """Return summary.json: the final numbers, each with its standing, JSON-ready.

    Raises `RunError` for a run that did not come to its end.
    """
    if not view.finished:
        raise RunError(f"{view.directory} holds no finished run: its ledger has no end")
    try:
        if "outcome" not in view.meta:  # of version 0.1
            return _renamed(view.meta["summary"])
        return summary_with(view, view.meta["outcome"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{view.path} is damaged: its outcome: {type(error).__name__} {error}"
        ) from None


def summary_with(view: RunView, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same of a run that ended so."""
    return _renamed(json_ready(_final(view, outcome)))


def _renamed(summary: Mapping[str, Any]) -> RenamedKeys[Any]:
    """Return the summary, which can still be asked for its old keys."""
    tables = {n: RenamedKeys(summary[n], OLD_COLUMNS) for n in BY_COLUMN if n in summary}
    return RenamedKeys({**summary, **tables}, OLD_SUMMARY)


def under_both_names(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands in summary.json: for one release each renamed key also under its old
    name."""
    tables = {n: with_old_keys(summary[n], OLD_COLUMNS) for n in BY_COLUMN if n in summary}
    return with_old_keys({**summary, **tables}, OLD_SUMMARY)


def summary_text(summary: Mapping[str, Any]) -> str:
    """Return the text of summary.json."""
    return as_text(under_both_names(summary))


def as_text(table: Mapping[str, Any]) -> str:
    """Return the table as it stands in a JSON file."""
    return json.dumps(table, indent=2) + "\n"


def _final(view: RunView, outcome: Mapping[str, Any]) -> dict[str, Any]:
    privacy = view.config["privacy"]
    last: dict[str, Any] = view.rows[-1] if view.rows else {}
    measured = view.metrics.get(view.last_round, {})
    epsilons = {name: view.spent(name) for name in EPSILONS}
    headline = view.headline
    fewest = min((row["num_reports"] for row in view.rows), default=0)
    public = view.meta["test_data"] == "public"
    words = plain_words(epsilons, headline=headline, reports=fewest, rounds=view.last_round)
    return {
        "run_directory": str(view.directory),
        "rounds": view.last_round,
        "stopped_early": outcome["stopped_early"],
        "failed": outcome["failed"],
        "accuracy": measured.get("accuracy"),
        "loss": measured.get("loss"),
        "metrics": {name: value for name, value in measured.items() if name not in ALWAYS},
        "test_data": view.meta["test_data"],
        # How many private records there are is private, too.
        "test_records": view.meta["data"]["test_records"] if public else None,
        "clients": view.config["data"]["clients"],
        "seeded": view.seeded,
        "delta": view.delta,
        "unit": privacy["unit"],
        "relation": view.meta["relation"],
        "release": privacy["release"],
        "shuffler": privacy["shuffler"],
        "headline": headline if last else None,
        # None of a run without privacy, whose epsilon is infinite.
        "epsilon": epsilons.get(headline),
        "shuffled_epsilon": epsilons["shuffled"],
        "sum_epsilon": epsilons["sum"],
        "sum_epsilon_add_remove": view.sum_add_remove,
        "epsilon_quantiles": outcome["epsilon_quantiles"],
        "columns": {
            name: {"epsilon": epsilons[name], **standing}
            for name, standing in outcome["columns"].items()
        },
        "min_reports_per_round": fewest if last else None,
        "description": words if last else None,
        "advice": _advice(view, epsilons, headline),
        "tightness": proof_over_attack(epsilons["shuffled"], epsilons["shuffled_lower"]),
        "left_out": left_out(view.notes),
        "gspa_mu": last.get("gspa_mu"),
        "records_not_covered": view.meta["records_not_covered"],
        "ledger_hash": view.hash,
        "warnings": _told(view, "warning"),
        "assumptions": _told(view, "assumption"),
        "accounting_seconds": outcome["accounting_seconds"],
        "seconds": outcome["seconds"],
    }


def _advice(view: RunView, epsilons: Mapping[str, float | None], headline: str) -> str | None:
    """Return what could let shuffling hide a client; None where it does."""
    if not hides_nobody(epsilons.get(headline), epsilons["local"]):
        return None
    return hiding_advice(view.config)


def _told(view: RunView, kind: str) -> list[str]:
    """Return the notes of a kind, each once."""
    return list(dict.fromkeys(said for _, own, said in view.notes if own == kind))


def quantiles_of(totals: ClientTotals) -> dict[str, Any]:
    """Return quantiles of the clients' own epsilons in each proven column; None for one that says
    nothing."""
    found: dict[str, Any] = {}
    for name in ("shuffled", "sum", "local"):
        each = getattr(totals, name)
        with np.errstate(invalid="ignore"):
            values = np.quantile(each, list(QUANTILES.values()))
        # Between two infinities there is infinity, and NumPy's interpolation finds nothing.
        known = np.where(np.isnan(values), np.inf, values).tolist()
        found[name] = None if np.isnan(each).any() else dict(zip(QUANTILES, known, strict=True))
    return found


def metrics_of(view: RunView, before: float = math.inf) -> str:
    """Return metrics.csv: what the ledger says of rounds before this one."""
    lines = [metrics_line(row, view.columns) for row in view.lines if row["round"] < before]
    return "".join([",".join([*view.columns, *OLD_CSV]) + "\n", *lines])


def metrics_line(row: Mapping[str, Any], columns: Iterable[str]) -> str:
    """Return a line of metrics.csv: what a round has under these columns, and again under their old
    names."""
    return ",".join(_cell(name, row.get(name)) for name in [*columns, *OLD_CSV.values()]) + "\n"


def _cell(name: str, value: float | None) -> str:
    return "" if value is None else f"{value:.6f}" if name == "seconds" else f"{value:.10g}"

"""summary.json: the final numbers, each with its standing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl_shuffle.accounting.accountant import Accountant, Vector
from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.configuration.sections import Config
from fl_shuffle.flower.strategy import RoundOutcome
from fl_shuffle.run_words import plain_words
from fl_shuffle.runs.facts import RunFacts, assumptions_of, publishes_times, test_data_of
from fl_shuffle.runs.metrics import ALWAYS


def summarize(
    directory: Path,
    config: Config,
    facts: RunFacts,
    accountant: Accountant,
    last: RoundOutcome | None,
    *,
    warnings: Sequence[str],
    stopped_early: str | None,
    failed: bool,
    started: float,
    accounting_seconds: float,
    link: str,
    reports: int,
) -> dict[str, Any]:
    """The final numbers, JSON-ready; `started` is `time.time()` at the start, `link` the ledger's
    last one, `reports` the fewest that a round of its had."""
    spend = last.spend if last else None
    times = publishes_times(config)
    totals = accountant.client_totals()
    each = {"proven": totals.proven, "sum": totals.sum, "local": totals.local}
    quantiles = {name: _quantiles(values) for name, values in each.items()}
    return {
        "run_directory": str(directory),
        "rounds": last.round_number if last else 0,
        "stopped_early": stopped_early,
        "failed": failed,
        "accuracy": last.metrics.get("accuracy") if last else None,
        "loss": last.metrics.get("loss") if last else None,
        "metrics": {
            name: _finite(value)
            for name, value in (last.metrics if last else {}).items()
            if name not in ALWAYS
        },
        "test_data": test_data_of(facts),
        "delta": config.privacy.target_delta,
        "unit": config.privacy.unit,
        "relation": config.relation,
        "release": config.privacy.release,
        "shuffler": config.privacy.shuffler,
        "headline": spend.headline_column if spend else None,
        "epsilon": _finite(spend.headline) if spend else None,
        "proven_epsilon": _finite(spend.columns["proven"].worst) if spend else None,
        "sum_epsilon": _finite(spend.columns["sum"].worst) if spend else None,
        "epsilon_quantiles": quantiles,
        "columns": _columns(spend) if spend else {},
        "fewest_reports": reports if spend else None,
        "in_plain_words": _in_plain_words(spend, reports) if spend else None,
        "proven_over_lower": spend.proven_over_lower if spend else None,
        "gspa_mu": spend.mu_total if spend else None,
        "records_not_covered": facts.records_not_covered,
        "ledger_link": link,
        "warnings": list(warnings),
        "assumptions": list(assumptions_of(config, facts)),
        "accounting_seconds": accounting_seconds if times else None,
        "seconds": time.time() - started if times else None,
    }


def _in_plain_words(spend: Spend, reports: int) -> str:
    epsilons = {name: column.worst for name, column in spend.columns.items()}
    return plain_words(
        epsilons, headline=spend.headline_column, reports=reports, rounds=spend.round_number
    )


def _quantiles(each: Vector) -> dict[str, Any] | None:
    """Of the clients' own epsilons [n]; None for a column that says nothing."""
    if np.isnan(each).any():
        return None
    found = {}
    for q in (0.1, 0.5, 0.9):
        with np.errstate(invalid="ignore"):
            value = float(np.quantile(each, q))
        # Between two infinities there is infinity, and NumPy's interpolation finds nothing.
        found[f"p{int(100 * q)}"] = _finite(np.inf if np.isnan(value) else value)
    return found


def _columns(spend: Spend) -> dict[str, Any]:
    return {
        name: {
            "epsilon": _finite(column.worst),
            "status": str(column.status),
            "source": column.source,
            "note": column.note,
        }
        for name, column in spend.columns.items()
    }


def _finite(value: float | None) -> float | str | None:
    """JSON has no infinity: it is written as the text "inf"."""
    return value if value is None or np.isfinite(value) else str(value)

"""What other programs read of a run: metrics.csv and summary.json, as views of its ledger alone."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.add_remove import add_remove_of
from fl_shuffle.accounting.guarantee import proof_over_attack
from fl_shuffle.errors import RunError
from fl_shuffle.ledger.reader import EPSILONS, LedgerView
from fl_shuffle.ledger.store import SCHEMA_VERSION
from fl_shuffle.run_words import plain_words
from fl_shuffle.runs.directory import LEDGER, METRICS
from fl_shuffle.runs.metrics import ALWAYS, COLUMNS, line_of

QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}


class RunView(LedgerView):
    """The ledger of the run in `directory`, and its final numbers: epsilons in nats, of the worst
    client, None where a column says nothing.

    A ledger of version 0.1 has neither metrics nor outcome: they are then what its metrics.csv and
    its own copy of the summary say. Raises `RunError` as `LedgerView`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        super().__init__(directory / LEDGER)
        if self.meta["schema"] != SCHEMA_VERSION:
            self.metrics = _metrics_of(directory / METRICS)

    @property
    def last_round(self) -> int:
        """The last recorded round; 0 before the first."""
        return int(self.rows[-1]["round"]) if self.rows else 0

    @property
    def delta(self) -> float:
        """Of every epsilon."""
        return float(self.config["privacy"]["target_delta"])

    @property
    def epsilon(self) -> float | None:
        """The reported epsilon: that of the column `headline`, which matches what was released."""
        return self.spent(self.headline)

    @property
    def lower(self) -> float | None:
        """What an attack on what was released certainly reaches: never above `epsilon`."""
        return self.spent("sum_lower" if self.headline == "sum" else "lower")

    @property
    def headline(self) -> str:
        """The column of the reported epsilon: `sum` where sums alone are released, and it says
        something; `local` where clients declare what they did."""
        if self.config["privacy"]["randomizer"] == "declared":
            return "local"
        summed = self.config["privacy"]["release"] == "sum" and self.spent("sum") is not None
        return "sum" if summed else "proven"

    def spent(self, column: str) -> float | None:
        """Epsilon of a column after the last recorded round (nats, worst client); None where the
        column says nothing, and before the first round."""
        return self.rows[-1][EPSILONS[column]] if self.rows else None

    @property
    def sum_add_remove(self) -> float | None:
        """Of the column `sum`, in another relation than every other epsilon: see
        `add_remove_epsilon`; None where it does not apply."""
        return add_remove_of(self.config, self.spent("sum"), self.delta)

    def measured(self, name: str) -> float | None:
        """A metric of the last recorded round; None if it was not measured then."""
        return self.metrics.get(self.last_round, {}).get(name)

    def metrics_text(self, before: float = math.inf) -> str:
        """metrics.csv: a line for each round, those from `before` on left out."""
        columns, file = (*COLUMNS, *self.own_metrics), io.StringIO()
        rows = csv.writer(file, lineterminator="\n")
        kept = [row for row in self.rows if row["round"] < before]
        if kept:
            rows.writerow(columns)
        for row in kept:
            rows.writerow(line_of(columns, row, self.metrics.get(row["round"], {})))
        return file.getvalue()

    @property
    def own_metrics(self) -> list[str]:
        """Names of what is measured beside accuracy and loss."""
        declared: list[str] = list(self.meta.get("metrics", ()))
        found = dict.fromkeys([*declared, *(n for each in self.metrics.values() for n in each)])
        return [name for name in found if name not in ALWAYS]

    def table(self) -> dict[str, NDArray[Any]]:
        """The same as metrics.csv: columns by name, one row a round; NaN where there is nothing."""
        rows = [{**self.metrics.get(row["round"], {}), **row} for row in self.rows]
        table: dict[str, NDArray[Any]] = {}
        for name in (*COLUMNS, *self.own_metrics):
            values = [row.get(name) for row in rows]
            if name in ("round", "n_reports"):
                table[name] = np.array(values, dtype=np.int64)
            else:
                found = [np.nan if value is None else value for value in values]
                table[name] = np.array(found, dtype=np.float64)
        return table

    def summary(self) -> dict[str, Any]:
        """summary.json: the final numbers, each with its standing, JSON-ready.

        Raises `RunError` for a run that did not come to its end.
        """
        if not self.finished:
            raise RunError(f"{self.directory} holds no finished run: its ledger has no end")
        try:
            if "outcome" not in self.meta:  # of version 0.1
                return dict(self.meta["summary"])
            return self._final(self.meta["outcome"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"{self.path} is damaged: its outcome: {type(error).__name__} {error}"
            ) from None

    def _final(self, outcome: Mapping[str, Any]) -> dict[str, Any]:
        privacy = self.config["privacy"]
        last: dict[str, Any] = self.rows[-1] if self.rows else {}
        measured = self.metrics.get(self.last_round, {})
        epsilons = {name: self.spent(name) for name in EPSILONS}
        headline = self.headline
        fewest = min((row["n_reports"] for row in self.rows), default=None)
        return {
            "run_directory": str(self.directory),
            "rounds": self.last_round,
            "stopped_early": outcome["stopped_early"],
            "failed": outcome["failed"],
            "accuracy": measured.get("accuracy"),
            "loss": measured.get("loss"),
            "metrics": {
                name: _json(measured[name]) for name in self.own_metrics if name in measured
            },
            "test_data": self.meta["test_data"],
            # How many private records there are is private, too.
            "test_records": self.meta["data"]["test_records"]
            if self.meta["test_data"] == "public"
            else None,
            "clients": self.config["data"]["clients"],
            "seeded": self.config["run"]["entropy"] == "seeded",
            "delta": self.delta,
            "unit": privacy["unit"],
            "relation": self.meta["relation"],
            "release": privacy["release"],
            "shuffler": privacy["shuffler"],
            "headline": headline if last else None,
            "epsilon": _json(epsilons[headline]),
            "proven_epsilon": _json(epsilons["proven"]),
            "sum_epsilon": _json(epsilons["sum"]),
            "sum_epsilon_add_remove": _json(self.sum_add_remove),
            "epsilon_quantiles": outcome["epsilon_quantiles"],
            "columns": {
                name: {"epsilon": _json(epsilons[name]), **standing}
                for name, standing in outcome["columns"].items()
            },
            "fewest_reports": fewest,
            "in_plain_words": plain_words(
                epsilons, headline=headline, reports=fewest or 0, rounds=last["round"]
            )
            if last
            else None,
            "proven_over_lower": proof_over_attack(epsilons["proven"], epsilons["lower"])
            if last
            else None,
            "gspa_mu": last.get("gspa_mu"),
            "records_not_covered": self.meta["records_not_covered"],
            "ledger_link": self.link,
            "warnings": self._told("warning"),
            "assumptions": self._told("assumption"),
            "accounting_seconds": outcome["accounting_seconds"],
            "seconds": outcome["seconds"],
        }

    def _told(self, kind: str) -> list[str]:
        """The notes of a kind, each once."""
        return list(dict.fromkeys(said for _, own, said in self.notes if own == kind))


def quantiles_of(columns: Mapping[str, NDArray[np.float64]]) -> dict[str, Any]:
    """Of each column of the clients' own epsilons [n]; None for one that says nothing."""
    return {name: _quantiles(each) for name, each in columns.items()}


def _quantiles(each: NDArray[np.float64]) -> dict[str, Any] | None:
    if np.isnan(each).any():
        return None
    found = {}
    for name, q in QUANTILES.items():
        with np.errstate(invalid="ignore"):
            value = float(np.quantile(each, q))
        # Between two infinities there is infinity, and NumPy's interpolation finds nothing.
        found[name] = _json(np.inf if np.isnan(value) else value)
    return found


def _metrics_of(path: Path) -> dict[int, dict[str, float]]:
    """What version 0.1 has written down of each round's metrics, as far as it can be read."""
    found: dict[int, dict[str, float]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                names = [name for name in row if name in ALWAYS or name not in COLUMNS]
                found[int(row["round"])] = {n: float(row[n]) for n in names if row[n]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not a run's metrics: {error}") from None
    return found


def _json(value: float | None) -> float | str | None:
    """JSON has no infinity: it is written as the text "inf"."""
    return value if value is None or np.isfinite(value) else str(value)

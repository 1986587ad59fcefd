"""What other programs read of a run: metrics.csv and summary.json, as views of its ledger alone."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.add_remove import add_remove_of
from fl_shuffle.accounting.guarantee import proof_over_attack
from fl_shuffle.errors import ConfigError, RunError
from fl_shuffle.ledger.reader import LedgerView
from fl_shuffle.ledger.store import SCHEMA_VERSION
from fl_shuffle.ledger.tables import EPSILONS, ROUNDS
from fl_shuffle.run_words import plain_words
from fl_shuffle.runs.directory import LEDGER, METRICS

if TYPE_CHECKING:
    from fl_shuffle.accounting.columns import ClientTotals

ALWAYS = ("accuracy", "loss")
"""Metrics that have their columns whatever is measured; others come behind `seconds`."""
COLUMNS = (*list(ROUNDS)[:2], *ALWAYS, *list(ROUNDS)[2:])
"""Of metrics.csv."""
MOST_METRICS = 64
"""Of a user's own: a line stays a line."""
QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}


def columns_with(metrics: Iterable[str]) -> tuple[str, ...]:
    """The columns of metrics.csv where these are measured.

    Raises `ConfigError` for names that are no column's, or another one's already.
    """
    own = tuple(name for name in dict.fromkeys(metrics) if name not in ALWAYS)
    for name in own:
        if not name.isidentifier() or name in COLUMNS:
            raise ConfigError(
                f"a metric is named {name!r}: a name has letters, digits and _ only, and is none "
                "of metrics.csv's own columns"
            )
    if len(own) > MOST_METRICS:
        raise ConfigError(f"{len(own)} metrics are measured; at most {MOST_METRICS} are kept")
    return (*COLUMNS, *own)


def as_csv(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Lines of metrics.csv: what each row has under these columns."""
    file = io.StringIO()
    lines = ([_cell(name, row.get(name)) for name in columns] for row in rows)
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()


def _cell(name: str, value: float | None) -> str:
    return "" if value is None else f"{value:.6f}" if name == "seconds" else f"{value:.10g}"


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

    @property
    def columns(self) -> tuple[str, ...]:
        """Of metrics.csv."""
        found = [name for each in self.metrics.values() for name in each]
        return columns_with([*self.meta.get("metrics", ()), *found])

    def metrics_text(self, before: float = math.inf) -> str:
        """metrics.csv: a line for each round, those from `before` on left out."""
        rows = [row for row in self._lines if row["round"] < before]
        return ",".join(self.columns) + "\n" + as_csv(self.columns, rows)

    def table(self) -> dict[str, NDArray[Any]]:
        """The same as metrics.csv: columns by name, one row a round; NaN where there is nothing."""
        lines, whole = self._lines, ("round", "n_reports")
        return {
            name: np.array([row.get(name) for row in lines], np.int64 if name in whole else float)
            for name in self.columns
        }

    @property
    def _lines(self) -> list[dict[str, Any]]:
        return [{**self.metrics.get(row["round"], {}), **row} for row in self.rows]

    def summary(self) -> dict[str, Any]:
        """summary.json: the final numbers, each with its standing, JSON-ready.

        Raises `RunError` for a run that did not come to its end.
        """
        if not self.finished:
            raise RunError(f"{self.directory} holds no finished run: its ledger has no end")
        try:
            if "outcome" not in self.meta:  # of version 0.1
                return dict(self.meta["summary"])
            return dict(json_ready(self._final(self.meta["outcome"])))
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
        fewest = min((row["n_reports"] for row in self.rows), default=0)
        public = self.meta["test_data"] == "public"
        words = plain_words(epsilons, headline=headline, reports=fewest, rounds=self.last_round)
        return {
            "run_directory": str(self.directory),
            "rounds": self.last_round,
            "stopped_early": outcome["stopped_early"],
            "failed": outcome["failed"],
            "accuracy": measured.get("accuracy"),
            "loss": measured.get("loss"),
            "metrics": {name: value for name, value in measured.items() if name not in ALWAYS},
            "test_data": self.meta["test_data"],
            # How many private records there are is private, too.
            "test_records": self.meta["data"]["test_records"] if public else None,
            "clients": self.config["data"]["clients"],
            "seeded": self.config["run"]["entropy"] == "seeded",
            "delta": self.delta,
            "unit": privacy["unit"],
            "relation": self.meta["relation"],
            "release": privacy["release"],
            "shuffler": privacy["shuffler"],
            "headline": headline if last else None,
            "epsilon": epsilons[headline],
            "proven_epsilon": epsilons["proven"],
            "sum_epsilon": epsilons["sum"],
            "sum_epsilon_add_remove": self.sum_add_remove,
            "epsilon_quantiles": outcome["epsilon_quantiles"],
            "columns": {
                name: {"epsilon": epsilons[name], **standing}
                for name, standing in outcome["columns"].items()
            },
            "fewest_reports": fewest if last else None,
            "in_plain_words": words if last else None,
            "proven_over_lower": proof_over_attack(epsilons["proven"], epsilons["lower"]),
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


def quantiles_of(totals: ClientTotals) -> dict[str, Any]:
    """Of the clients' own epsilons in each proven column; None for one that says nothing."""
    found: dict[str, Any] = {}
    for name in ("proven", "sum", "local"):
        each = getattr(totals, name)
        with np.errstate(invalid="ignore"):
            values = np.quantile(each, list(QUANTILES.values()))
        # Between two infinities there is infinity, and NumPy's interpolation finds nothing.
        known = np.where(np.isnan(values), np.inf, values).tolist()
        found[name] = None if np.isnan(each).any() else dict(zip(QUANTILES, known, strict=True))
    return found


def _metrics_of(path: Path) -> dict[int, dict[str, float]]:
    """What version 0.1 has written down of each round's metrics, as far as it can be read."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return {
                int(row["round"]): {n: float(row[n]) for n in row if row[n] and n not in ROUNDS}
                for row in csv.DictReader(file)
            }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not a run's metrics: {error}") from None


def json_ready(value: Any) -> Any:
    """JSON has no infinity: it is written as the text "inf"."""
    if isinstance(value, Mapping):
        return {key: json_ready(each) for key, each in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

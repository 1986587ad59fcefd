"""A finished run's summary.json, read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_shuffle.errors import RunError
from fl_shuffle.runs.directory import SUMMARY


@dataclass(frozen=True)
class Summary:
    """The final numbers of a run: epsilons in nats at `delta`, of the worst client.

    `epsilon` is the headline, of the column `headline` that matches what was released; `columns`
    holds every column's; None where there is no number. `data` is the whole of the file.
    """

    rounds: int
    accuracy: float | None
    loss: float | None
    delta: float
    headline: str | None
    epsilon: float | None
    columns: Mapping[str, float | None]
    data: dict[str, Any]

    @property
    def lower(self) -> float | None:
        """What an attack on what was released certainly reaches: never above `epsilon`."""
        return self.columns.get("sum_lower" if self.headline == "sum" else "lower")


def read_summary(path: Path) -> Summary:
    """The summary in the run directory `path`. Raises `RunError` if there is none, or no sense
    in it."""
    file = path / SUMMARY
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return Summary(
            rounds=int(data["rounds"]),
            accuracy=_number(data["accuracy"]),
            loss=_number(data["loss"]),
            delta=float(data["delta"]),
            headline=data["headline"],
            epsilon=_number(data["epsilon"]),
            columns={
                str(name): _number(column["epsilon"]) for name, column in data["columns"].items()
            },
            data=data,
        )
    except FileNotFoundError:
        raise RunError(f"{path} holds no finished run: there is no {SUMMARY}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{file} cannot be read: {type(error).__name__} {error}") from None


def _number(value: Any) -> float | None:
    """A number of the file, where infinity stands as the text "inf"."""
    return None if value is None else float(value)

"""Links between the attempts of a ledger: a digest of each row and of everything before it.

A ledger whose attempts were changed, taken out, put in another order or mixed with another run's no
longer fits its links. There is no key: whoever means to forge can compute new ones, but the last
link stands in summary.json, too. Links are made of cells of the ledger alone, so they tell nothing
that it does not tell.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.rounds.class_table import COLUMNS, ClassTable
from fl_shuffle.accounting.rounds.events import ClientClass

CHANGEABLE = (
    *("run.rounds", "run.out", "run.jobs", "run.timeout", "run.supernodes", "run.ray_address"),
    *("data.root", "budgets.file"),
)
"""Settings that may differ when a run goes on. Where the data and budgets lie may, too: what is in
them is compared."""

COVERED = ("schema", "seed", "data", "relation", "dimension")


def first_link(
    meta: Mapping[str, Any], classes: Iterable[ClientClass], class_of: NDArray[np.int64]
) -> str:
    """The link before the first attempt: who the clients are, and what they were promised."""
    facts = {key: meta.get(key) for key in COVERED}
    facts["config"] = fixed_settings(meta.get("config", {}))
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    table = ClassTable.of(classes)
    for name in ("noise", *COLUMNS, "records"):
        kind = {"noise": "<i1", "records": "<i8"}.get(name, "<f8")
        digest.update(np.ascontiguousarray(getattr(table, name), dtype=kind).data)
    digest.update(np.ascontiguousarray(class_of, dtype="<i8").data)
    return digest.hexdigest()


def next_link(previous: str, attempt: tuple[Any, ...]) -> str:
    """The link after a row of `reservations`, given as (attempt, round, expected reports, epsilon,
    released, present)."""
    return hashlib.sha256(f"{previous} {attempt!r}".encode()).hexdigest()


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """`section.key` -> value of nested tables."""
    return {
        f"{name}.{key}": value for name, table in config.items() for key, value in table.items()
    }


def fixed_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run keeps from its start to its end."""
    return {key: value for key, value in settings_of(config).items() if key not in CHANGEABLE}

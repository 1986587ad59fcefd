"""Settings and values as earlier versions call them, and what they are called today.

Files and ledgers of versions 0.1 and 0.2 are read for good. A ledger is hashed with the names that
stand in it: nothing here touches those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fl_shuffle.configuration.sections import AppSection
from fl_shuffle.errors import ConfigError

SETTINGS = {
    "data.records": "records_per_client",
    "data.alpha": "dirichlet_alpha",
    "data.validation": "validation_fraction",
    "server.decay": "lr_schedule",
    "server.decay_to": "lr_final_fraction",
    "server.averaging": "averaging_fraction",
    "server.trim": "trim_fraction",
    "privacy.clip": "clipping",
    "privacy.client_clip": "client_clip_norm",
    "privacy.client_epsilon": "lifetime_epsilon",
}
"""`section.key` of version 0.2 -> today's key of the same section."""
VALUES = {
    "run.noise": {"pooled": "per-sum"},
    "privacy.shuffler": {"in-server": "server", "apart": "separate"},
    # As version 0.1, and versions 0.2 and 0.3, call the framework's own apps.
    "app.server": {
        "fl_shuffle.apps.server:app": AppSection().server,
        "fl_shuffle.pages.server.app:app": AppSection().server,
    },
    "app.client": {
        "fl_shuffle.apps.client:app": AppSection().client,
        "fl_shuffle.pages.clients.app:app": AppSection().client,
    },
}
"""`section.key` -> values of earlier versions -> today's."""


class Renaming(NamedTuple):
    """What stood in a configuration, and what it is called today."""

    old: str
    new: str


def todays(key: str, value: Any) -> tuple[str, Any, list[Renaming]]:
    """Return `section.key` and value by their names of today, and what was renamed."""
    section, dot, name = key.partition(".")
    found = []
    if key in SETTINGS:
        key = f"{section}{dot}{SETTINGS[key]}"
        found.append(Renaming(f"{section}{dot}{name}", key))
    new = VALUES.get(key, {}).get(value) if isinstance(value, str) else None
    if new is None:
        return key, value, found
    return key, new, [*found, Renaming(f"{key} = {value!r}", f"{key} = {new!r}")]


def with_todays_names(tables: Mapping[str, Any]) -> tuple[dict[str, Any], list[Renaming]]:
    """Return nested tables by the names of today, and what was renamed; what is no table, as it is.

    Raises `ConfigError` where a setting stands under both names.
    """
    found: dict[str, Any] = {}
    renamed: list[Renaming] = []
    for section, table in tables.items():
        found[section] = table
        if not isinstance(table, Mapping):
            continue
        found[section] = new = dict[str, Any]()
        for old, value in table.items():
            key, today, changed = todays(f"{section}.{old}", value)
            name = key.removeprefix(f"{section}.")
            if name != old and name in table:
                raise ConfigError(
                    f"[{section}] has both {old} and {name}, which is its name today: leave out "
                    f"{old}"
                )
            new[name] = today
            renamed += changed
    return found, renamed

"""How a run's configuration reaches the apps: through Flower's flat run configuration.

`fl-shuffle simulate` passes the resolved configuration as one JSON text. A plain `flwr run .` names
a TOML file (looked up beside the app when the path is relative) and `;`-separated overrides.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flwr.app import Context

from fl_shuffle.configuration.reading import parse_config, resolve_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError, InvalidValueError

RESOLVED = "resolved"
CONFIG_FILE = "config"
OVERRIDES = "overrides"
DATA = "data"
RESERVED = (
    RESOLVED, CONFIG_FILE, OVERRIDES, DATA, "run-directory", "resume", "shuffler", "analyzer-key",
)  # fmt: skip
"""What of Flower's run configuration is the run's, and no setting of a user's own app."""
SIMULATED = "fl-shuffle-simulation"
"""In the configuration of simulated nodes. A SuperNode's operator writes its configuration, and
the server cannot."""
APP_ROOT = Path(__file__).resolve().parents[2]


@lru_cache(maxsize=4)
def config_of(
    run_config: tuple[tuple[str, object], ...], beside: str | Path | None = None
) -> Config:
    """Return the configuration that Flower's run configuration, its items, names. Raises
    `ConfigError` if there is none.

    Relative paths (the file's, and that of budgets in it) are looked for beside the file `beside`
    first: an app that Flower unpacked somewhere does not run in its own folder.
    """
    values = {key: str(value) for key, value in run_config}
    if values.get(RESOLVED):
        return parse_config(json.loads(values[RESOLVED]))
    if not values.get(CONFIG_FILE):
        raise ConfigError(
            f"the run configuration names no file; pass --run-config '{CONFIG_FILE}=\"FILE.toml\"'"
        )
    settings = [part for part in values.get(OVERRIDES, "").split(";") if part.strip()]
    if values.get(DATA):
        settings.append(f"data.root={json.dumps(values[DATA])}")
    folders = [] if beside is None else [*Path(beside).resolve().parents[:2]]
    config = resolve_config(_beside(values[CONFIG_FILE], [*folders, APP_ROOT]), settings)
    if not folders or not config.budgets.file:
        return config
    named = _beside(config.budgets.file, [*folders, APP_ROOT])
    return replace(config, budgets=replace(config.budgets, file=str(named)))


def with_app_config(config: Config, folder: Path) -> Config:
    """Return the configuration with what `[tool.flwr.app.config]` of the app in `folder` says
    beside it: `flwr run` would hand that to the apps. `[app.config]` comes first.

    Raises `ConfigError` for a file that cannot be read, and for values that Flower has not.
    """
    if not config.app.custom:
        return config
    tables = app_tables(folder).get("config", {})
    beside = {key: each for key, each in _flat(tables).items() if key not in RESERVED}
    values = {**beside, **_flat(config.app.config)}
    for key, value in values.items():
        if key in RESERVED:
            raise ConfigError(
                f"app.config: {key!r} is reserved for the run and reaches no app; rename it"
            )
        finite = not isinstance(value, float) or math.isfinite(value)
        if not isinstance(value, bool | int | float | str) or not finite:
            raise InvalidValueError(
                f"app.config.{key}", value, "must be a text, a boolean or a finite number"
            )
    return replace(config, app=replace(config.app, config=values))


def app_tables(folder: Path) -> dict[str, Any]:
    """Return `[tool.flwr.app]` of the folder's pyproject.toml; empty without. Raises `ConfigError`
    for a file that cannot be read."""
    try:
        tables: Any = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / 'pyproject.toml'} cannot be read: {error}") from None
    for name in ("tool", "flwr", "app"):
        tables = tables.get(name, {}) if isinstance(tables, dict) else {}
    return tables if isinstance(tables, dict) else {}


def _flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return tables in tables as Flower hands them to apps: `{"a": {"b": 1}}` as `{"a.b": 1}`."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        deeper = isinstance(value, dict)
        found |= _flat(value, f"{prefix}{key}.") if deeper else {prefix + key: value}
    return found


def require_same_app_config(context: Context, config: Config) -> None:
    """Raise `ConfigError` where `[app.config]` says what apps do not read: `flwr run` hands them
    its own run configuration."""
    for key, value in _flat(config.app.config).items():
        found = context.run_config.get(key)
        if found != value:
            raise ConfigError(
                f"app.config.{key} = {value!r}, but the apps would read {found!r}: `flwr run` "
                "takes it from [tool.flwr.app.config] of pyproject.toml; set the same value "
                "there, or add: "
                f"--run-config '{key}={json.dumps(value)}'"
            )


def _beside(file: str, places: list[Path]) -> Path:
    """Return the file in the first of the places that has it; else as it is named."""
    return next((place / file for place in places if (place / file).is_file()), Path(file))


def require_simulated(context: Context, config: Config, *, summed: bool = False) -> None:
    """Refuse to send, outside of simulations, what has no noise: sums of clients that add none
    (`summed`: the request is for a sum), and a baseline's updates; raises `ConfigError`.

    The server writes the run's configuration: a node must not believe it that it is simulated.
    """
    if context.node_config.get(SIMULATED):
        return
    if config.privacy.randomizer == "none":
        raise ConfigError(
            "privacy.randomizer = 'none' is for `fl-shuffle simulate` alone: clients would send "
            "their exact updates; choose gaussian"
        )
    if summed or config.run.aggregate_noise:
        raise ConfigError(
            "run.noise = 'per-sum' is for `fl-shuffle simulate` alone: no client adds "
            "noise; set run.noise = 'per-report'"
        )


def require_solved_here(context: Context) -> None:
    """Refuse totals of shuffled reports outside of simulations; raises `ConfigError`.

    They are solved for by a search, which another version or machine may end elsewhere: a node
    could then add less noise than the server counts.
    """
    if not context.node_config.get(SIMULATED):
        raise ConfigError(
            "totals of the run (budgets.of = 'run') with privacy.release = 'reports' are for "
            "`fl-shuffle simulate` alone: each node would search for its noise itself; give "
            "budgets of one report (`fl-shuffle bound CONFIG` prints them for each total), with "
            "each total as the client's lifetime_epsilon"
        )


def is_simulated(config: Config, node_config: Mapping[str, object] = MappingProxyType({})) -> bool:
    """Return whether all data belong to the user who runs it, who may then see clients' errors.

    Seeded noise protects nobody, wherever it is drawn.
    """
    return bool(node_config.get(SIMULATED)) or config.run.entropy == "seeded"

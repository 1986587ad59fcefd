"""How a run's configuration reaches the apps: through Flower's flat run configuration.

`fl-shuffle simulate` passes the resolved configuration as one JSON text. A plain `flwr run .` names
a TOML file (looked up beside the app when the path is relative) and `;`-separated overrides.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from flwr.app import Context

from fl_shuffle.configuration.reading import load_config, parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError

RESOLVED = "resolved"
CONFIG_FILE = "config"
OVERRIDES = "overrides"
DATA = "data"
SIMULATED = "fl-shuffle-simulation"
"""In the configuration of simulated nodes. Whoever starts a SuperNode writes its configuration, and
the server cannot."""
SIMULATION_VARIABLE = "FL_SHUFFLE_SIMULATION"
"""Set, to "1", for the processes that play the nodes on Ray."""
APP_ROOT = Path(__file__).resolve().parents[2]


def config_of(context: Context, beside: str | Path | None = None) -> Config:
    """The configuration of the run a context belongs to. Raises `ConfigError` if there is none.

    Relative paths (the file's, and that of budgets in it) are looked for beside the file `beside`
    first: an app that Flower unpacked somewhere does not run in its own folder.
    """
    values = {key: str(context.run_config.get(key, "")) for key in (RESOLVED, CONFIG_FILE)}
    if values[RESOLVED]:
        return _parsed(values[RESOLVED])
    if not values[CONFIG_FILE]:
        raise ConfigError(
            f"the run configuration names no file; pass --run-config '{CONFIG_FILE}=\"FILE.toml\"'"
        )
    overrides = str(context.run_config.get(OVERRIDES, ""))
    root = str(context.run_config.get(DATA, ""))
    folder = None if beside is None else str(Path(beside).resolve().parent)
    return _loaded(values[CONFIG_FILE], overrides, root, folder)


@lru_cache(maxsize=4)
def _parsed(text: str) -> Config:
    return parse_config(json.loads(text))


@lru_cache(maxsize=4)
def _loaded(file: str, overrides: str, root: str, folder: str | None) -> Config:
    settings = [part for part in overrides.split(";") if part.strip()]
    if root:
        settings.append(f"data.root={json.dumps(root)}")
    places = [APP_ROOT] if folder is None else [Path(folder), Path(folder).parent, APP_ROOT]
    config = load_config(_beside(file, places), settings)
    if folder is None:
        return config
    named = _beside(config.budgets.file, places) if config.budgets.file else Path()
    return replace(
        config, budgets=replace(config.budgets, file=str(named) if config.budgets.file else "")
    )


def _beside(file: str, places: list[Path]) -> Path:
    """The file in the first of the places that has it; else as it is named."""
    return next((place / file for place in places if (place / file).is_file()), Path(file))


def require_simulated(context: Context) -> None:
    """Refuse sums without noise outside of simulations; raises `ConfigError`.

    The server writes the run's configuration: a node must not believe it that it is simulated.
    """
    if not (context.node_config.get(SIMULATED) or os.environ.get(SIMULATION_VARIABLE) == "1"):
        raise ConfigError(
            "run.noise = 'pooled' is for `fl-shuffle simulate` alone: clients add no noise of "
            "their own; set run.noise = 'per-report'"
        )

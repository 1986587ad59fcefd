"""How a run's configuration reaches the apps: through Flower's flat run configuration.

`fl-shuffle simulate` passes the resolved configuration as one JSON text. A plain `flwr run .` names
a TOML file (looked up beside the app when the path is relative) and `;`-separated overrides.
"""

from __future__ import annotations

import json
import os
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


def config_of(context: Context) -> Config:
    """The configuration of the run a context belongs to. Raises `ConfigError` if there is none."""
    values = {key: str(context.run_config.get(key, "")) for key in (RESOLVED, CONFIG_FILE)}
    if values[RESOLVED]:
        return _parsed(values[RESOLVED])
    if not values[CONFIG_FILE]:
        raise ConfigError(
            f"the run configuration names no file; pass --run-config '{CONFIG_FILE}=\"FILE.toml\"'"
        )
    overrides = str(context.run_config.get(OVERRIDES, ""))
    root = str(context.run_config.get(DATA, ""))
    return _loaded(values[CONFIG_FILE], overrides, root)


@lru_cache(maxsize=4)
def _parsed(text: str) -> Config:
    return parse_config(json.loads(text))


@lru_cache(maxsize=4)
def _loaded(file: str, overrides: str, root: str) -> Config:
    path = Path(file)
    settings = [part for part in overrides.split(";") if part.strip()]
    if root:
        settings.append(f"data.root={json.dumps(root)}")
    beside = APP_ROOT / path
    return load_config(beside if beside.is_file() else path, settings)


def require_simulated(context: Context) -> None:
    """Refuse sums without noise outside of simulations; raises `ConfigError`.

    The server writes the run's configuration: a node must not believe it that it is simulated.
    """
    if not (context.node_config.get(SIMULATED) or os.environ.get(SIMULATION_VARIABLE) == "1"):
        raise ConfigError(
            "run.noise = 'pooled' is for `fl-shuffle simulate` alone: clients add no noise of "
            "their own; set run.noise = 'per-report'"
        )

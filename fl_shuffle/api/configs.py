"""One way to name a configuration: a file, nested tables, or a `Config`; with overrides."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl_shuffle.configuration.reading import Overrides, load_config, overridden
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError

QUICKSTART = "configs/quickstart.toml"
"""Shipped with the package; found wherever the caller stands."""

ConfigLike = str | Path | Mapping[str, Any] | Config


def resolve_config(config: ConfigLike, overrides: Overrides | None = None) -> Config:
    """The validated configuration. `overrides` maps `section.key` to a value.

    `config` is a TOML file, a run's folder (its own configuration again), tables or a `Config`.
    Raises `ConfigError` or `InvalidValueError` naming the key.

    >>> resolve_config({"run": {"rounds": 3}}, {"data.clients": 12}).data.clients
    12
    """
    if isinstance(config, str | Path) and not Path(config).is_dir():
        return load_config(config, overrides or ())
    return overridden(_tables(config), overrides or ())


def _tables(config: ConfigLike) -> dict[str, Any]:
    if isinstance(config, Config):
        return config.to_dict()
    if isinstance(config, Mapping):
        return copy.deepcopy(dict(config))
    if not isinstance(config, str | Path):
        raise ConfigError(
            f"a configuration is a path, a dict or a Config, got {type(config).__name__}"
        )
    file = Path(config) / "config.json"
    try:
        tables: Any = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{config} is no run's folder: there is no config.json in it") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file} is nested too deeply") from None
    if not isinstance(tables, dict):
        raise ConfigError(f"{file} holds no table of sections: it is damaged")
    return tables

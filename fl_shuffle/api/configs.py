"""One way to name a configuration: a file, nested tables, or a `Config`; with overrides."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_shuffle.configuration.reading import load_config, overridden
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError

QUICKSTART = "configs/quickstart.toml"
"""Shipped with the package; found wherever the caller stands."""

ConfigLike = str | Path | Mapping[str, Any] | Config


def resolve_config(config: ConfigLike, overrides: Mapping[str, Any] | None = None) -> Config:
    """The validated configuration. `overrides` maps `section.key` to a value.

    `config` is a TOML file, a run's folder (its own configuration again), tables or a `Config`.
    Raises `ConfigError` or `InvalidValueError` naming the key.

    >>> resolve_config({"run": {"rounds": 3}}, {"data.clients": 12}).data.clients
    12
    """
    return configured(
        config, [f"{key}={_toml(key, value)}" for key, value in (overrides or {}).items()]
    )


def configured(config: ConfigLike, settings: Sequence[str]) -> Config:
    """The same with overrides as the command line has them: `section.key=value`, in TOML."""
    if isinstance(config, str | Path) and not Path(config).is_dir():
        return load_config(config, settings)
    return overridden(_tables(config), settings)


def _tables(config: ConfigLike) -> dict[str, Any]:
    if isinstance(config, Config):
        return config.to_dict()
    if isinstance(config, Mapping):
        return copy.deepcopy(dict(config))
    if not isinstance(config, str | Path):
        raise ConfigError(
            f"a configuration is a path, a dict or a Config, got {type(config).__name__}"
        )
    path = Path(config)
    try:
        tables: Any = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} is no run's folder: there is no config.json in it") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path / 'config.json'} cannot be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path / 'config.json'} is nested too deeply") from None
    if not isinstance(tables, dict):
        raise ConfigError(f"{path / 'config.json'} holds no table of sections: it is damaged")
    return tables


def _toml(key: str, value: Any) -> str:
    """The value as TOML."""
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(str(name))} = {_toml(key, each)}" for name, each in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(key, each) for each in value) + "]"
    if isinstance(value, Path):
        return json.dumps(str(value))
    if isinstance(value, bool | int | str):
        return json.dumps(value)
    if isinstance(value, float):
        return str(value)  # also inf and nan, which the field's own check refuses
    raise ConfigError(
        f"override {key}: a {type(value).__name__} is no setting; use a number, text, list or table"
    )

"""Reading a configuration: TOML and overrides in, a validated `Config` out."""

from __future__ import annotations

import copy
import dataclasses
import json
import tomllib
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fl_shuffle import settings_schema
from fl_shuffle._internal.renamed import RenamedWarning, warn_renamed
from fl_shuffle.configuration import conflicts
from fl_shuffle.configuration.renamed import todays, with_todays_names
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError, InvalidValueError, suggestion

LARGEST_FILE = 1 << 20
"""Bytes. A configuration is written by hand."""

QUICKSTART = "configs/quickstart.toml"
"""Shipped with the package; found wherever the caller stands."""
ConfigLike = str | Path | Mapping[str, Any] | Config
Overrides = Mapping[str, Any] | Iterable[str]
"""`section.key` -> its value, or `section.key=value` as the command line has them."""

SECTIONS: dict[str, Any] = {spec.name: spec.default_factory for spec in dataclasses.fields(Config)}
SETTINGS = {
    f"{name}.{key}": each
    for name, section in SECTIONS.items()
    for key, each in settings_schema.settings_of(section).items()
}
"""`section.key` of everything that a configuration can say."""


def parse_config(tables: Mapping[str, Any]) -> Config:
    """Validate nested tables (as read from TOML or JSON) and return the configuration.

    Names of earlier versions are read as what they are called today. Raises `ConfigError` for an
    unknown section or key (suggesting the nearest valid one) and `InvalidValueError` for a value
    that is not allowed, alone or together with others."""
    if not isinstance(tables, Mapping):
        raise ConfigError(f"a configuration is a table of sections, got {type(tables).__name__}")
    sections: dict[str, Any] = {}
    for name, table in with_todays_names(tables)[0].items():
        settings_schema.require_known("section", name, SECTIONS)
        if not isinstance(table, Mapping):
            raise ConfigError(f"[{name}] must be a table of keys, got {table!r}")
        sections[name] = settings_schema.read(SECTIONS[name], table, f"{name}.", f"key in [{name}]")
    config = Config(**sections)
    for each in conflicts.rules(config):
        if each.found:
            value = value_of(config, each.setting)
            raise InvalidValueError(each.setting, value, each.reason, each.remedy)
    return config


def without_effect(config: Config) -> dict[str, str]:
    """Return `section.key` of what nothing reads, each with the setting that has it so.

    This covers no runs with user-defined apps, which may read anything.
    """
    if config.app.custom:
        return {}
    found = {}
    for key, each in SETTINGS.items():
        other, _, values = (each.needs or each.unless).partition(" = ")
        if other:
            where = f"{key.partition('.')[0]}.{other}"
            value = value_of(config, where)
            if (str(value) in values.split(" or ")) is not bool(each.needs):
                found[key] = f"out {each.told}" if each.told else f" {where} = {value!r}"
    return found


def idle_settings(config: Config) -> tuple[str, ...]:
    """Return one line for every setting that is not at its default and changes nothing."""
    return tuple(
        f"{key} = {value_of(config, key)!r} has no effect with{reason}"
        for key, reason in without_effect(config).items()
        if value_of(config, key) != value_of(Config(), key)
    )


def own_parts(config: Config) -> dict[str, str]:
    """Return `section.key` -> `module:attribute` of every part that is not this package's own."""
    paths = {key: str(value_of(config, key)) for key, each in SETTINGS.items() if each.own}
    return {
        key: path
        for key, path in paths.items()
        if ":" in path and not path.startswith("fl_shuffle.")
    }


def value_of(config: Config, key: str) -> object:
    """Return the value of `section.key`."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def resolve_config(config: ConfigLike, overrides: Overrides | None = None) -> Config:
    """Return the validated configuration. `overrides` maps `section.key` to a value.

    `config` is a TOML file, a run's folder (its own configuration again), tables or a `Config`. A
    relative path that does not exist is looked for among the shipped files. Names of earlier
    versions are read, with a `DeprecationWarning`. Raises `ConfigError` or `InvalidValueError`
    naming the key, and `ConfigError` for a file that is missing or is not TOML.

    >>> resolve_config({"run": {"rounds": 3}}, {"data.clients": 12}).data.clients
    12
    """
    if isinstance(config, str | Path):
        path = Path(config)
        tables, renamed = with_todays_names(read_tables(path))
        # A run's folder has the names of its time, and nobody writes it by hand.
        for each in renamed if not path.is_dir() else ():
            text = f"{path}: {each.old} is now called {each.new}; fl-shuffle migrate {path}"
            warnings.warn(f"{text} writes today's names", RenamedWarning, stacklevel=2)
    elif isinstance(config, Config | Mapping):
        tables = config.to_dict() if isinstance(config, Config) else copy.deepcopy(dict(config))
    else:
        kind = type(config).__name__  # type: ignore[unreachable]
        raise ConfigError(f"a configuration is a path, a dict or a Config, got {kind}")
    return overridden(tables, overrides or ())


def read_tables(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds, as it stands there, or the configuration of a run's folder;
    raises `ConfigError`."""
    folder = path.is_dir()
    source = path / "config.json" if folder else shipped_or_own(path)
    what = str(source) if folder else f"configuration file {source}"
    try:
        with source.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise ConfigError(
                f"{what} is larger than {LARGEST_FILE:,} bytes; name a configuration file"
            )
        tables = (json if folder else tomllib).loads(content.decode("utf-8"))
    except FileNotFoundError:
        none = f"{path} is not a run directory: it has no config.json"
        raise ConfigError(none if folder else f"{what} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what} cannot be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{what} is nested too deeply") from None
    except ConfigError:
        raise
    except ValueError as error:  # no TOML or JSON, or a number with thousands of digits
        form = "JSON" if folder else "TOML"
        raise ConfigError(f"{what} is not valid {form}: {error}") from None
    if not isinstance(tables, dict):
        raise ConfigError(
            f"{what} has no table of sections: the file is damaged; use an intact copy"
        )
    return tables


def overridden(tables: dict[str, Any], overrides: Overrides = ()) -> Config:
    """Return the configuration of these tables, with overrides applied in order.

    A budgets file that is named without `levels` is taken as it is, whatever the tables have for
    other budgets. Raises as `parse_config` does, and `ConfigError` for an override that is
    malformed or has no effect.
    """
    tables, renamed = with_todays_names(tables)
    for each in renamed:
        warn_renamed(*each, stacklevel=3)
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(parsed, overrides)
    keys = [set_value(tables, key, value) for key, value in pairs]
    if "budgets.file" in keys and "budgets.levels" not in keys:
        tables["budgets"].pop("levels", None)
    config = parse_config(tables)
    idle = without_effect(config)
    for key in keys:
        if key in idle:
            raise ConfigError(
                f"{key} = {value_of(config, key)!r} has no effect with{idle[key]}; "
                "leave it out, or change that"
            )
    return config


def shipped() -> dict[str, Path]:
    """Name -> file of the configurations that come with the package."""
    package = Path(__file__).resolve().parents[1]
    # A wheel has them in the package, a clone and a Flower app beside it.
    folders = (package / "configs", package.parent / "configs")
    files = [path for folder in folders for path in sorted(folder.glob("*.toml"))]
    return {path.stem: path for path in files}


def shipped_or_own(path: Path) -> Path:
    """Return the path itself, or the shipped file of this name where there is none: `quickstart`,
    or `configs/quickstart.toml`. Raises `ConfigError` for a name that is neither."""
    if path.exists():
        return path
    known, name = shipped(), path.name.removesuffix(".toml")  # and no other: names have dots
    if name in known and path.parts in ((path.name,), ("configs", path.name)):
        return known[name]
    if path.suffix == ".toml" or str(path.parent) != ".":
        return path  # its reader reports that it does not exist
    hint = suggestion(path.name, known) or f"there are {', '.join(known)}"
    raise ConfigError(f"configuration {path.name!r} is neither a file nor shipped; {hint}")


def set_value(tables: dict[str, Any], target: str, value: Any) -> str:
    """Set one `section.key` in nested tables of today's names; returns it, by its name of today.

    Raises `ConfigError` if it is none.
    """
    section, dot, key = target.partition(".")
    if not dot or not section or not key:
        raise ConfigError(f"--set {target!r}: must look like section.key=value")
    target, value, renamed = todays(target, str(value) if isinstance(value, Path) else value)
    for each in renamed:
        warn_renamed(*each, stacklevel=3)
    key = target.removeprefix(f"{section}.")
    table = tables.setdefault(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"[{section}] must be a table of keys, got {table!r}")
    table[key] = value
    return target


def parsed(override: str) -> tuple[str, Any]:
    """Return `section.key` and its value; raises `ConfigError` if it is malformed."""
    target, separator, text = override.partition("=")
    if not separator:
        raise ConfigError(f"--set {override!r}: must look like section.key=value")
    return target.strip(), toml_or_text(text, f"--set {target.strip()}")


def toml_or_text(text: str, what: str) -> Any:
    """Return a value as TOML has it where that works (numbers, booleans, lists), else as plain
    text.

    Raises `ConfigError`, naming `what` it is, for one that nobody wrote by hand.
    """
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
    except RecursionError:
        raise ConfigError(f"{what}: its value is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from None

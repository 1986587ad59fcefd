"""Reading a configuration: TOML and overrides in, a validated `Config` out."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_shuffle.configuration.checks import (
    Check,
)
from fl_shuffle.configuration.effects import require_effect
from fl_shuffle.configuration.sections import (
    AppSection,
    BudgetsSection,
    Config,
    DataSection,
    ModelSection,
    PrivacySection,
    RunSection,
    ServerSection,
    TrainingSection,
)
from fl_shuffle.errors import (
    ConfigError,
    InvalidValueError,
    suggestion,
)

LARGEST_FILE = 1 << 20
"""Bytes. A configuration is written by hand."""

SECTIONS: dict[str, type] = {
    "run": RunSection,
    "data": DataSection,
    "model": ModelSection,
    "training": TrainingSection,
    "server": ServerSection,
    "privacy": PrivacySection,
    "budgets": BudgetsSection,
    "app": AppSection,
}


def parse_config(tables: Mapping[str, Any]) -> Config:
    """Validate nested tables (as read from TOML or JSON) and return the configuration.

    Raises `ConfigError` for an unknown section or key (suggesting the nearest valid one) and
    `InvalidValueError` for a value that is not allowed, alone or together with others.
    """
    if not isinstance(tables, Mapping):
        raise ConfigError(f"a configuration is a table of sections, got {type(tables).__name__}")
    sections: dict[str, Any] = {}
    for name, table in tables.items():
        if name not in SECTIONS:
            raise ConfigError(_unknown("section", name, SECTIONS))
        if not isinstance(table, Mapping):
            raise ConfigError(f"[{name}] must be a table of keys, got {table!r}")
        sections[name] = _section(name, table)
    config = Config(**sections)
    _check_together(config)
    return config


def _section(name: str, table: Mapping[str, Any]) -> Any:
    specifications = {spec.name: spec for spec in dataclasses.fields(SECTIONS[name])}
    values = {}
    for key, value in table.items():
        if key not in specifications:
            raise ConfigError(_unknown(f"key in [{name}]", key, specifications))
        check: Check = specifications[key].metadata["check"]
        values[key] = check(f"{name}.{key}", value)
    return SECTIONS[name](**values)


def _unknown(what: str, key: str, options: Mapping[str, Any]) -> str:
    hint = suggestion(key, options) or f"valid ones: {', '.join(options)}"
    return f"unknown {what}: {key!r}; {hint}"


def _check_together(config: Config) -> None:
    privacy, budgets = config.privacy, config.budgets
    allowed = ("update",) if privacy.unit == "client" else ("record", "average")
    if config.clip not in allowed:
        raise InvalidValueError(
            "privacy.clip",
            privacy.clip,
            f"with privacy.unit = {privacy.unit!r} must be auto or {' or '.join(allowed)}",
        )
    if privacy.randomizer == "laplace" and privacy.calibration != "analytic":
        if privacy.calibration == "classical":
            raise InvalidValueError(
                "privacy.calibration", "classical", "is a Gaussian formula; use analytic"
            )
    elif privacy.randomizer in ("gaussian", "discrete-gaussian") and budgets.delta == 0.0:
        raise InvalidValueError(
            "budgets.delta", 0.0, "the Gaussian randomizer needs a value in (0, 1)"
        )
    if budgets.distribution == "file" and not budgets.file:
        raise ConfigError("budgets.file is missing: budgets.distribution = 'file' reads a CSV")
    if budgets.distribution == "uniform" and not budgets.low <= budgets.high:
        raise InvalidValueError("budgets.low", budgets.low, f"must be <= high = {budgets.high:g}")
    if budgets.conservative_fraction + budgets.moderate_fraction > 1.0 + 1e-12:
        raise InvalidValueError(
            "budgets.conservative_fraction + budgets.moderate_fraction",
            budgets.conservative_fraction + budgets.moderate_fraction,
            "must be at most 1 (the liberal group is the rest)",
        )
    if privacy.calibration == "as-published" and privacy.unit == "client":
        raise InvalidValueError(
            "privacy.calibration",
            "as-published",
            "the papers publish a record-level formula; set privacy.unit = 'record'",
        )
    if privacy.randomizer.startswith("discrete-"):
        _check_discrete(config)
    _check_trust(config)
    _check_natural(config.data)
    if config.training.schedule == "sequential" and config.server.weights != "uniform":
        raise InvalidValueError(
            "server.weights",
            config.server.weights,
            "a sequential schedule applies reports one by one; use uniform",
        )
    if config.run.ray_address and config.run.engine != "ray":
        raise InvalidValueError(
            "run.ray_address",
            config.run.ray_address,
            f"is for run.engine = 'ray'; it is {config.run.engine!r}",
        )
    if config.run.noise == "pooled":
        _check_pooled(config)
    if config.training.local_steps > 1 and privacy.unit != "client":
        raise InvalidValueError(
            "training.local_steps",
            config.training.local_steps,
            "several local steps have no per-record sensitivity; set privacy.unit = 'client'",
        )


def _check_natural(data: DataSection) -> None:
    """Natural clients have the records they have."""
    if data.partition != "natural":
        return
    default = DataSection()
    for name in ("records", "sizes"):
        value = getattr(data, name)
        if value != getattr(default, name):
            raise InvalidValueError(
                f"data.{name}",
                value,
                "changes nothing with data.partition = 'natural': every client has its own records",
                "leave it out",
            )


def _check_discrete(config: Config) -> None:
    """Discrete noise is offered where its guarantee is proven, and where its law matters."""
    privacy = config.privacy
    reasons = {
        "run.entropy = 'seeded' draws noise that is no secret; use system, or continuous noise": (
            config.run.entropy != "system"
        ),
        f"privacy.clip = {config.clip!r} bounds no norm of whole steps; use average or update": (
            config.clip == "record"
        ),
        "server.weights = 'inverse-variance' leaves the grid; use uniform": (
            config.server.weights != "uniform"
        ),
        "privacy.personalization = 'clipping' is calibrated for continuous noise; use noise": (
            privacy.personalization != "noise"
        ),
        f"privacy.calibration = {privacy.calibration!r} is for continuous noise; use analytic": (
            privacy.calibration != "analytic"
        ),
        "run.device = 'cuda' has no such sampler; use cpu": config.run.device == "cuda",
    }
    for reason, holds in reasons.items():
        if holds:
            raise InvalidValueError("privacy.randomizer", privacy.randomizer, reason)


def _check_pooled(config: Config) -> None:
    """Pooled noise stands for reports that nobody sees: refuse it where somebody does."""
    privacy = config.privacy
    reasons = {
        "training.schedule = 'sequential' applies every report by itself": (
            config.training.schedule == "sequential"
        ),
        f"server.analyzer = {config.server.analyzer!r} wants the reports": (
            config.server.analyzer != "mean"
        ),
        f"app.server = {config.app.server!r} is your own and expects reports": (
            config.app.server != AppSection().server
        ),
        "run.entropy = 'system' is for noise that protects somebody: each client draws its own": (
            config.run.entropy == "system"
        ),
        f"privacy.randomizer = {privacy.randomizer!r} has no known law of a sum": (
            privacy.randomizer not in ("gaussian", "laplace")
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise InvalidValueError(
                "run.noise", "pooled", f"makes no reports, and {reason}", "use per-report"
            )


def _check_trust(config: Config) -> None:
    """What leaves the shuffler, and who is honest, must fit who gets what."""
    privacy = config.privacy
    honest = privacy.assumed_honest
    if isinstance(honest, int) and honest > config.data.clients:
        raise InvalidValueError(
            "privacy.assumed_honest",
            honest,
            f"must be at most the number of clients, {config.data.clients}",
        )
    if privacy.min_reports > config.data.clients:
        clients = config.data.clients
        remedy = "raise data.clients"
        if clients > 1:
            remedy += f", or lower privacy.min_reports to at most {clients}"
        elif privacy.release == "reports":
            remedy += ", or set privacy.min_reports = 1: one client's reports, which nothing hides"
        raise InvalidValueError(
            "data.clients",
            clients,
            f"is below privacy.min_reports = {privacy.min_reports}, so no round could be released",
            remedy,
        )
    if honest is not None and config.training.schedule == "sequential":
        raise InvalidValueError(
            "privacy.assumed_honest",
            honest,
            "changes nothing in a sequential schedule: only `local` holds there, and it counts on "
            "nobody else; leave it out",
        )
    if privacy.shuffler == "apart":
        _check_apart(config)
    if privacy.release == "reports":
        return
    if config.training.schedule == "sequential":
        raise InvalidValueError(
            "training.schedule",
            "sequential",
            "with privacy.release = 'sum' must be aggregate: in a sequential schedule each report "
            "meets the model alone, and only `local` holds",
            "or set privacy.release = 'reports'",
        )
    if config.server.analyzer != "mean":
        raise InvalidValueError(
            "server.analyzer",
            config.server.analyzer,
            "with privacy.release = 'sum' must be mean: an analyzer gets single reports, and only "
            "sums leave",
            "or set privacy.release = 'reports'",
        )
    if privacy.min_reports < 2:
        raise InvalidValueError(
            "privacy.min_reports",
            privacy.min_reports,
            "with privacy.release = 'sum' must be at least 2: a sum of one report is that report",
        )


def _check_apart(config: Config) -> None:
    """A shuffler of its own is for a deployment, in rounds that are batches."""
    reasons = {
        "training.schedule = 'sequential' has no batch to shuffle; use aggregate": (
            config.training.schedule == "sequential"
        ),
        "run.entropy = 'seeded' is noise that the server can remove; use system": (
            config.run.entropy == "seeded"
        ),
        "with privacy.release = 'sum' it adds up reports on a known grid: not those of a "
        "privacy.randomizer of your own": (
            config.privacy.release == "sum" and ":" in config.privacy.randomizer
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise InvalidValueError("privacy.shuffler", "apart", reason)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, apply `section.key=value` overrides in order, and validate.

    An override's value is read as TOML where that works (numbers, booleans, lists) and as plain
    text otherwise. A relative path that does not exist is looked for among the shipped files.
    Raises `ConfigError` for a file that is missing or is not TOML.
    """
    source = shipped_or_own(Path(path))
    try:
        with source.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        text = content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"configuration file {source} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {source} cannot be read: {error}") from None
    if len(content) > LARGEST_FILE:
        raise ConfigError(
            f"configuration file {source} is larger than {LARGEST_FILE:,} bytes: is it one?"
        )
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"configuration file {source} is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, or a number with thousands of digits
        raise ConfigError(f"configuration file {source} is not valid TOML: {error}") from None
    return overridden(tables, overrides)


def overridden(tables: dict[str, Any], overrides: Sequence[str]) -> Config:
    """The configuration of these tables, changed, with `section.key=value` applied in order.

    Raises as `parse_config` does, and `ConfigError` for an override that has no effect.
    """
    keys = [apply_override(tables, override) for override in overrides]
    config = parse_config(tables)
    require_effect(config, keys)
    return config


def shipped_or_own(path: Path) -> Path:
    """The path itself, or the shipped file of this name where there is none, as in
    `configs/quickstart.toml`."""
    shipped = Path(__file__).resolve().parents[1] / path
    return shipped if not path.exists() and shipped.is_file() else path


def apply_override(tables: dict[str, Any], override: str) -> str:
    """Set one `section.key=value` in nested tables; returns `section.key`.

    Raises `ConfigError` if it is malformed.
    """
    target, separator, text = override.partition("=")
    section, dot, key = target.strip().partition(".")
    if not separator or not dot or not section or not key:
        raise ConfigError(f"--set {override!r}: must look like section.key=value")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except RecursionError:
        raise ConfigError(f"--set {target.strip()}: its value is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"--set {target.strip()}: {error}") from None
    table = tables.setdefault(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"[{section}] must be a table of keys, got {table!r}")
    table[key] = value
    return f"{section}.{key}"

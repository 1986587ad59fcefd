"""Reading a configuration: TOML and overrides in, a validated `Config` out."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_shuffle import declare
from fl_shuffle.configuration.sections import AppSection, Config
from fl_shuffle.errors import ConfigError, FlShuffleError, InvalidValueError, suggestion

LARGEST_FILE = 1 << 20
"""Bytes. A configuration is written by hand."""

RENAMED_APPS = {
    "fl_shuffle.apps.server:app": AppSection().server,
    "fl_shuffle.apps.client:app": AppSection().client,
}
"""What version 0.1 called the framework's own apps, in configurations and ledgers."""

SECTIONS: dict[str, Any] = {spec.name: spec.default_factory for spec in dataclasses.fields(Config)}


def parse_config(tables: Mapping[str, Any]) -> Config:
    """Validate nested tables (as read from TOML or JSON) and return the configuration.

    Raises `ConfigError` for an unknown section or key (suggesting the nearest valid one) and
    `InvalidValueError` for a value that is not allowed, alone or together with others.
    """
    if not isinstance(tables, Mapping):
        raise ConfigError(f"a configuration is a table of sections, got {type(tables).__name__}")
    sections: dict[str, Any] = {}
    for name, table in tables.items():
        declare.require_known("section", name, SECTIONS)
        if not isinstance(table, Mapping):
            raise ConfigError(f"[{name}] must be a table of keys, got {table!r}")
        known = _renamed(table) if name == "app" else table
        sections[name] = declare.read(SECTIONS[name], known, f"{name}.", f"key in [{name}]")
    config = Config(**sections)
    for conflict in _conflicts(config):
        raise conflict
    return config


def _renamed(apps: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: RENAMED_APPS.get(value, value) if isinstance(value, str) else value
        for key, value in apps.items()
    }


def _conflicts(config: Config) -> Iterator[FlShuffleError]:
    """What does not go together, in the order in which a user is told: the first is raised."""
    yield from _noise_conflicts(config)
    yield from _trust_conflicts(config)
    yield from _schedule_conflicts(config)
    if config.app.config and not config.app.custom:
        yield _wrong(config, "app.config", "is for apps of your own (app.server, app.client)")


def _wrong(config: Config, key: str, reason: str, remedy: str = "") -> InvalidValueError:
    return InvalidValueError(key, value_of(config, key), reason, remedy)


def _noise_conflicts(config: Config) -> Iterator[FlShuffleError]:
    privacy, budgets = config.privacy, config.budgets
    clips = ("update",) if privacy.unit == "client" else ("record", "average")
    if config.clip not in clips:
        allowed = f"must be auto or {' or '.join(clips)}"
        yield _wrong(config, "privacy.clip", f"with privacy.unit = {privacy.unit!r} {allowed}")
    if privacy.randomizer == "laplace" and privacy.calibration == "classical":
        yield _wrong(config, "privacy.calibration", "is a Gaussian formula; use analytic")
    if privacy.randomizer in ("gaussian", "discrete-gaussian") and budgets.delta == 0.0:
        yield _wrong(config, "budgets.delta", "the Gaussian randomizer needs a value in (0, 1)")
    if budgets.distribution == "file" and not budgets.file:
        yield ConfigError("budgets.file is missing: budgets.distribution = 'file' reads a CSV")
    listed = len(budgets.epsilons)
    if budgets.distribution == "listed" and listed != config.data.clients:
        yield ConfigError(
            f"budgets.epsilons holds {listed} numbers, and data.clients is {config.data.clients}: "
            "budgets.distribution = 'listed' takes one a client"
        )
    if budgets.distribution == "uniform" and not budgets.low <= budgets.high:
        yield _wrong(config, "budgets.low", f"must be <= high = {budgets.high:g}")
    both = budgets.conservative_fraction + budgets.moderate_fraction
    if both > 1.0 + 1e-12:
        yield InvalidValueError(
            "budgets.conservative_fraction + budgets.moderate_fraction",
            both,
            "must be at most 1 (the liberal group is the rest)",
        )
    if privacy.calibration == "as-published" and privacy.unit == "client":
        published = "the papers publish a record-level formula; set privacy.unit = 'record'"
        yield _wrong(config, "privacy.calibration", published)
    for reason, holds in (_not_discrete(config) | _not_declared(config)).items():
        if holds:
            yield _wrong(config, "privacy.randomizer", reason)


def _trust_conflicts(config: Config) -> Iterator[FlShuffleError]:
    """What leaves the shuffler, and who is honest, must fit who gets what."""
    privacy, clients = config.privacy, config.data.clients
    sequential, summed = config.training.schedule == "sequential", privacy.release == "sum"
    if isinstance(privacy.assumed_honest, int) and privacy.assumed_honest > clients:
        most = f"must be at most the number of clients, {clients}"
        yield _wrong(config, "privacy.assumed_honest", most)
    if privacy.min_reports > clients:
        remedy = "raise data.clients"
        if clients > 1:
            remedy += f", or lower privacy.min_reports to at most {clients}"
        elif not summed:
            remedy += ", or set privacy.min_reports = 1: one client's reports, which nothing hides"
        least = f"is below privacy.min_reports = {privacy.min_reports}"
        yield _wrong(config, "data.clients", f"{least}, so no round could be released", remedy)
    if privacy.assumed_honest is not None and sequential:
        yield _wrong(
            config,
            "privacy.assumed_honest",
            "changes nothing in a sequential schedule: only `local` holds there, and it counts on "
            "nobody else; leave it out",
        )
    for reason, holds in _not_apart(config).items():
        if holds:
            yield _wrong(config, "privacy.shuffler", reason)
    if privacy.reports_per_round > 1:
        for reason, holds in {
            "must be 1 in a sequential schedule: each report meets the model alone": sequential,
            "must be 1 with privacy.randomizer = 'declared': several reports would be the same": (
                privacy.randomizer == "declared"
            ),
        }.items():
            if holds:
                yield _wrong(config, "privacy.reports_per_round", reason)
    if not summed:
        return
    if sequential:
        yield _wrong(
            config,
            "training.schedule",
            "with privacy.release = 'sum' must be aggregate: in a sequential schedule each report "
            "meets the model alone, and only `local` holds",
            "or set privacy.release = 'reports'",
        )
    if config.server.analyzer != "mean":
        yield _wrong(
            config,
            "server.analyzer",
            "with privacy.release = 'sum' must be mean: an analyzer gets single reports, and only "
            "sums leave",
            "or set privacy.release = 'reports'",
        )
    if privacy.min_reports < 2:
        yield _wrong(
            config,
            "privacy.min_reports",
            "with privacy.release = 'sum' must be at least 2: a sum of one report is that report",
        )


def _schedule_conflicts(config: Config) -> Iterator[FlShuffleError]:
    run, data, training = config.run, config.data, config.training
    if data.partition == "natural":
        for name in ("records", "sizes"):
            if getattr(data, name) != getattr(type(data)(), name):
                yield _wrong(
                    config,
                    f"data.{name}",
                    "changes nothing with data.partition = 'natural': every client has its own "
                    "records",
                    "leave it out",
                )
    if training.schedule == "sequential" and config.server.weights != "uniform":
        one_by_one = "a sequential schedule applies reports one by one; use uniform"
        yield _wrong(config, "server.weights", one_by_one)
    if run.ray_address and run.engine == "in-process":
        yield _wrong(config, "run.ray_address", f"is for run.engine = 'ray'; it is {run.engine!r}")
    for reason, holds in _not_pooled(config).items():
        if holds:
            yield _wrong(config, "run.noise", f"makes no reports, and {reason}", "use per-report")
    if training.local_steps > 1 and config.privacy.unit != "client":
        unbounded = "several local steps have no per-record sensitivity"
        yield _wrong(config, "training.local_steps", f"{unbounded}; set privacy.unit = 'client'")


def _not_discrete(config: Config) -> dict[str, bool]:
    """Discrete noise is offered where its guarantee is proven, and where its law matters."""
    privacy = config.privacy
    if not privacy.randomizer.startswith("discrete-"):
        return {}
    return {
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


def _not_declared(config: Config) -> dict[str, bool]:
    """A mechanism that clients declare is their own training, which nothing else may change."""
    privacy = config.privacy
    if privacy.randomizer != "declared":
        return {}
    return {
        "needs privacy.declared_sigma, the noise that a client adds to each step's sum": (
            privacy.declared_sigma is None
        ),
        "is what clients of an app of your own do (app.client)": not config.app.custom_client,
        "is noise for single records; set privacy.unit = 'record'": privacy.unit != "record",
        "clips each record; leave privacy.clip out": config.clip != "record",
        "has one noise for all; set privacy.personalization = 'noise'": (
            privacy.personalization != "noise"
        ),
        "is not calibrated here; leave privacy.calibration out": privacy.calibration != "analytic",
        "has no weights; set server.weights = 'uniform'": config.server.weights != "uniform",
    }


def _not_pooled(config: Config) -> dict[str, bool]:
    """Pooled noise stands for reports that nobody sees: refuse it where somebody does."""
    if config.run.noise != "pooled":
        return {}
    return {
        "training.schedule = 'sequential' applies every report by itself": (
            config.training.schedule == "sequential"
        ),
        f"server.analyzer = {config.server.analyzer!r} wants the reports": (
            config.server.analyzer != "mean"
        ),
        f"app.server = {config.app.server!r} is your own and expects reports": (
            config.app.custom_server
        ),
        "run.entropy = 'system' is for noise that protects somebody: each client draws its own": (
            config.run.entropy == "system"
        ),
        f"privacy.randomizer = {config.privacy.randomizer!r} has no known law of a sum": (
            config.privacy.randomizer not in ("gaussian", "laplace")
        ),
    }


def _not_apart(config: Config) -> dict[str, bool]:
    """A shuffler of its own is for a deployment, in rounds that are batches."""
    if config.privacy.shuffler != "apart":
        return {}
    return {
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


def without_effect(config: Config) -> dict[str, str]:
    """`section.key` of what nothing reads, each with the setting that has it so.

    Nothing is said of runs with apps of the user's own, which may read anything.
    """
    if config.app.custom:
        return {}
    found: dict[str, str] = {}
    for name in SECTIONS:
        found |= declare.idle(getattr(config, name), name)
    return found


def idle_settings(config: Config) -> tuple[str, ...]:
    """One line for every setting that is not at its default and changes nothing."""
    return tuple(
        f"{key} = {value_of(config, key)!r} has no effect with {reason}"
        for key, reason in without_effect(config).items()
        if value_of(config, key) != value_of(Config(), key)
    )


def require_effect(config: Config, keys: Iterable[str]) -> None:
    """Raise `ConfigError` for these `section.key`, which a user asked for by name, where they
    change nothing."""
    idle = without_effect(config)
    for key in keys:
        if key in idle:
            raise ConfigError(
                f"{key} = {value_of(config, key)!r} has no effect with {idle[key]}; "
                "leave it out, or change that"
            )


def own_parts(config: Config) -> dict[str, str]:
    """`section.key` -> `module:attribute` of every part that is not this package's own."""
    found = {
        f"{name}.{key}": str(getattr(getattr(config, name), key))
        for name, section in SECTIONS.items()
        for key, each in declare.settings_of(section).items()
        if each.own
    }
    return {
        key: path
        for key, path in found.items()
        if ":" in path and not path.startswith("fl_shuffle.")
    }


def value_of(config: Config, key: str) -> object:
    """The value of `section.key`."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


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


def shipped() -> dict[str, Path]:
    """Name -> file of the configurations that come with the package."""
    package = Path(__file__).resolve().parents[1]
    # A wheel has them in the package, a clone and a Flower app beside it.
    folders = (package / "configs", package.parent / "configs")
    files = [path for folder in folders for path in sorted(folder.glob("*.toml"))]
    return {path.stem: path for path in files}


def shipped_or_own(path: Path) -> Path:
    """The path itself, or the shipped file of this name where there is none: `quickstart`, or
    `configs/quickstart.toml`. Raises `ConfigError` for a name that is neither."""
    if path.exists():
        return path
    named = path.name if str(path.parent) == "." else str(path)
    known = shipped()
    name = path.name.removesuffix(".toml")  # and no other: some names have dots
    if name in known and path.parts in ((path.name,), ("configs", path.name)):
        return known[name]
    if path.suffix == ".toml" or str(path.parent) != ".":
        return path  # whoever reads it says that it does not exist
    hint = suggestion(named, known) or f"there are {', '.join(known)}"
    raise ConfigError(f"configuration {named!r} is neither a file nor shipped; {hint}")


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

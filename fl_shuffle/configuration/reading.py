"""Reading a configuration: TOML and overrides in, a validated `Config` out."""

from __future__ import annotations

import copy
import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fl_shuffle import declare
from fl_shuffle.configuration.sections import AppSection, Config, DataSection
from fl_shuffle.errors import ConfigError, InvalidValueError, suggestion

LARGEST_FILE = 1 << 20
"""Bytes. A configuration is written by hand."""

RENAMED_APPS = {
    "fl_shuffle.apps.server:app": AppSection().server,
    "fl_shuffle.apps.client:app": AppSection().client,
}
"""What version 0.1 called the framework's own apps, in configurations and ledgers."""

AUDIT_CLIENT = "fl_shuffle.auditing.published:client"
"""The ClientApp of an audit's own runs. They are seeded, whatever the configuration says: two of
them are compared byte by byte."""

QUICKSTART = "configs/quickstart.toml"
"""Shipped with the package; found wherever the caller stands."""
ConfigLike = str | Path | Mapping[str, Any] | Config
Overrides = Mapping[str, Any] | Iterable[str]
"""`section.key` -> its value, or `section.key=value` as the command line has them."""

SECTIONS: dict[str, Any] = {spec.name: spec.default_factory for spec in dataclasses.fields(Config)}
SETTINGS = {
    f"{name}.{key}": each
    for name, section in SECTIONS.items()
    for key, each in declare.settings_of(section).items()
}
"""`section.key` of everything that a configuration can say."""


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
        today = {key: RENAMED_APPS.get(str(value), value) for key, value in table.items()}
        sections[name] = declare.read(SECTIONS[name], today, f"{name}.", f"key in [{name}]")
    config = Config(**sections)
    for conflict, found in _conflicts(config).items():
        if found:
            key, _, reason = conflict.partition(" ")
            raise InvalidValueError(key, value_of(config, key), reason)
    return config


def _conflicts(config: Config) -> dict[str, bool]:
    """What does not go together, in the order in which a user is told: the setting that is named
    and what is wrong with it -> whether it is so."""
    return {
        **_noise_conflicts(config),
        **_discrete_conflicts(config),
        **_declared_conflicts(config),
        **_trust_conflicts(config),
        **_schedule_conflicts(config),
        "app.config is for apps of your own (app.server, app.client)":
            bool(config.app.config) and not config.app.custom,
    }  # fmt: skip


def _noise_conflicts(config: Config) -> dict[str, bool]:
    privacy, budgets = config.privacy, config.budgets
    client, listed = privacy.unit == "client", len(budgets.epsilons)
    clips, share = ("update",) if client else ("record", "average"), budgets.conservative_fraction
    return {
        f"privacy.clip with privacy.unit = {privacy.unit!r} must be auto or {' or '.join(clips)}":
            config.clip not in clips,
        "privacy.calibration is a Gaussian formula; use analytic":
            privacy.randomizer == "laplace" and privacy.calibration == "classical",
        "budgets.delta the Gaussian randomizer needs a value in (0, 1)":
            privacy.randomizer in ("gaussian", "discrete-gaussian") and budgets.delta == 0.0,
        "budgets.file is missing: budgets.distribution = 'file' reads a CSV":
            budgets.distribution == "file" and not budgets.file,
        f"budgets.epsilons holds {listed} numbers, and data.clients is {config.data.clients}: "
        "budgets.distribution = 'listed' takes one a client":
            budgets.distribution == "listed" and listed != config.data.clients,
        f"budgets.low must be <= high = {budgets.high:g}":
            budgets.distribution == "uniform" and budgets.low > budgets.high,
        f"budgets.moderate_fraction must be at most 1 with budgets.conservative_fraction = "
        f"{share:g} (the liberal group is the rest)":
            share + budgets.moderate_fraction > 1.0 + 1e-12,
        "privacy.calibration the papers publish a record-level formula; set privacy.unit = "
        "'record'": privacy.calibration == "as-published" and client,
    }  # fmt: skip


def _discrete_conflicts(config: Config) -> dict[str, bool]:
    """Discrete noise is offered where its guarantee is proven, and where its law matters."""
    run, privacy = config.run, config.privacy
    return _of_randomizer(privacy.randomizer.startswith("discrete-"), {
        "run.entropy = 'seeded' draws noise that is no secret; use system, or continuous noise":
            run.entropy != "system" and config.app.client != AUDIT_CLIENT,
        f"privacy.clip = {config.clip!r} bounds no norm of whole steps; use average or update":
            config.clip == "record",
        "server.weights = 'inverse-variance' leaves the grid; use uniform":
            config.server.weights != "uniform",
        "privacy.personalization = 'clipping' is calibrated for continuous noise; use noise":
            privacy.personalization != "noise",
        f"privacy.calibration = {privacy.calibration!r} is for continuous noise; use analytic":
            privacy.calibration != "analytic",
        "run.device = 'cuda' has no such sampler; use cpu": run.device == "cuda",
    })  # fmt: skip


def _declared_conflicts(config: Config) -> dict[str, bool]:
    """A mechanism that clients declare is their own training, which nothing else may change."""
    privacy = config.privacy
    return _of_randomizer(privacy.randomizer == "declared", {
        "needs privacy.declared_sigma, the noise that a client adds to each step's sum":
            privacy.declared_sigma is None,
        "is what clients of an app of your own do (app.client)": not config.app.custom_client,
        "is noise for single records; set privacy.unit = 'record'": privacy.unit != "record",
        "clips each record; leave privacy.clip out": config.clip != "record",
        "has one noise for all; set privacy.personalization = 'noise'":
            privacy.personalization != "noise",
        "is not calibrated here; leave privacy.calibration out": privacy.calibration != "analytic",
        "has no weights; set server.weights = 'uniform'": config.server.weights != "uniform",
    })  # fmt: skip


def _of_randomizer(concerned: bool, conflicts: Mapping[str, bool]) -> dict[str, bool]:
    return {f"privacy.randomizer {text}": concerned and each for text, each in conflicts.items()}


def _trust_conflicts(config: Config) -> dict[str, bool]:
    """What leaves the shuffler, and who is honest, must fit who gets what."""
    privacy, clients, honest = config.privacy, config.data.clients, config.privacy.assumed_honest
    sequential, summed = config.training.schedule == "sequential", privacy.release == "sum"
    apart, several = privacy.shuffler == "apart", privacy.reports_per_round > 1
    remedy = "raise data.clients"
    if clients > 1:
        remedy += f", or lower privacy.min_reports to at most {clients}"
    elif not summed:
        remedy += ", or set privacy.min_reports = 1: one client's reports, which nothing hides"
    return {
        f"privacy.assumed_honest must be at most the number of clients, {clients}": (
            isinstance(honest, int) and honest > clients
        ),
        f"data.clients is below privacy.min_reports = {privacy.min_reports}, so no round could be "
        f"released; {remedy}": privacy.min_reports > clients,
        "privacy.assumed_honest changes nothing in a sequential schedule: only `local` holds "
        "there, and it counts on nobody else; leave it out": honest is not None and sequential,
        # A shuffler of its own is for a deployment, in rounds that are batches.
        "privacy.shuffler training.schedule = 'sequential' has no batch to shuffle; use aggregate":
            apart and sequential,
        "privacy.shuffler run.entropy = 'seeded' is noise that the server can remove; use system":
            apart and config.run.entropy == "seeded",
        "privacy.shuffler with privacy.release = 'sum' it adds up reports on a known grid: not "
        "those of a privacy.randomizer of your own": apart and summed and ":" in privacy.randomizer,
        "privacy.reports_per_round must be 1 in a sequential schedule: each report meets the model "
        "alone": several and sequential,
        "privacy.reports_per_round must be 1 with privacy.randomizer = 'declared': several reports "
        "would be the same": several and privacy.randomizer == "declared",
        "training.schedule with privacy.release = 'sum' must be aggregate: in a sequential "
        "schedule each report meets the model alone, and only `local` holds; or set "
        "privacy.release = 'reports'": summed and sequential,
        "server.analyzer with privacy.release = 'sum' must be mean: an analyzer gets single "
        "reports, and only sums leave; or set privacy.release = 'reports'": (
            summed and config.server.analyzer != "mean"
        ),
        "privacy.min_reports with privacy.release = 'sum' must be at least 2: a sum of one report "
        "is that report": summed and privacy.min_reports < 2,
    }  # fmt: skip


def _schedule_conflicts(config: Config) -> dict[str, bool]:
    run, data, server = config.run, config.data, config.server
    randomizer, analyzer = config.privacy.randomizer, server.analyzer
    sequential = config.training.schedule == "sequential"
    plain = DataSection()
    no_use = f"changes nothing with data.partition = {data.partition!r}, which says whose all are"
    # Pooled noise stands for reports that nobody sees: it is refused where somebody does.
    not_pooled = {
        "training.schedule = 'sequential' applies every report by itself": sequential,
        f"server.analyzer = {analyzer!r} wants the reports": analyzer != "mean",
        f"app.server = {config.app.server!r} is your own and expects reports":
            config.app.custom_server,
        "run.entropy = 'system' is for noise that protects somebody: each client draws its own":
            run.entropy == "system",
        f"privacy.randomizer = {randomizer!r} has no known law of a sum":
            randomizer not in ("gaussian", "laplace"),
    }  # fmt: skip
    return {
        f"data.records {no_use}; leave it out": data.sizes_fixed and data.records != plain.records,
        f"data.sizes {no_use}; leave it out": data.sizes_fixed and data.sizes != plain.sizes,
        "server.weights a sequential schedule applies reports one by one; use uniform":
            sequential and server.weights != "uniform",
        f"run.ray_address is for run.engine = 'ray'; it is {run.engine!r}":
            bool(run.ray_address) and run.engine == "in-process",
        **{
            f"run.noise makes no reports, and {reason}; use per-report":
                run.noise == "pooled" and found for reason, found in not_pooled.items()
        },
        "training.local_steps several local steps have no per-record sensitivity; set "
        "privacy.unit = 'client'":
            config.training.local_steps > 1 and config.privacy.unit != "client",
    }  # fmt: skip


def without_effect(config: Config) -> dict[str, str]:
    """`section.key` of what nothing reads, each with the setting that has it so.

    Nothing is said of runs with apps of the user's own, which may read anything.
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
                found[key] = f"{where} = {value!r}"
    return found


def idle_settings(config: Config) -> tuple[str, ...]:
    """One line for every setting that is not at its default and changes nothing."""
    return tuple(
        f"{key} = {value_of(config, key)!r} has no effect with {reason}"
        for key, reason in without_effect(config).items()
        if value_of(config, key) != value_of(Config(), key)
    )


def own_parts(config: Config) -> dict[str, str]:
    """`section.key` -> `module:attribute` of every part that is not this package's own."""
    paths = {key: str(value_of(config, key)) for key, each in SETTINGS.items() if each.own}
    return {
        key: path
        for key, path in paths.items()
        if ":" in path and not path.startswith("fl_shuffle.")
    }


def value_of(config: Config, key: str) -> object:
    """The value of `section.key`."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def resolve_config(config: ConfigLike, overrides: Overrides | None = None) -> Config:
    """The validated configuration. `overrides` maps `section.key` to a value.

    `config` is a TOML file, a run's folder (its own configuration again), tables or a `Config`. A
    relative path that does not exist is looked for among the shipped files. Raises `ConfigError` or
    `InvalidValueError` naming the key, and `ConfigError` for a file that is missing or is not TOML.

    >>> resolve_config({"run": {"rounds": 3}}, {"data.clients": 12}).data.clients
    12
    """
    if isinstance(config, str | Path):
        tables = _tables(Path(config))
    elif isinstance(config, Config | Mapping):
        tables = config.to_dict() if isinstance(config, Config) else copy.deepcopy(dict(config))
    else:
        kind = type(config).__name__  # type: ignore[unreachable]
        raise ConfigError(f"a configuration is a path, a dict or a Config, got {kind}")
    return overridden(tables, overrides or ())


def _tables(path: Path) -> dict[str, Any]:
    """What a TOML file holds, or the configuration of a run's folder; raises `ConfigError`."""
    folder = path.is_dir()
    source = path / "config.json" if folder else shipped_or_own(path)
    what = str(source) if folder else f"configuration file {source}"
    try:
        with source.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise ConfigError(f"{what} is larger than {LARGEST_FILE:,} bytes: is it one?")
        tables = (json if folder else tomllib).loads(content.decode("utf-8"))
    except FileNotFoundError:
        none = f"{path} is no run's folder: there is no config.json in it"
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
        raise ConfigError(f"{what} holds no table of sections: it is damaged")
    return tables


def overridden(tables: dict[str, Any], overrides: Overrides = ()) -> Config:
    """The configuration of these tables, which are changed: overrides are applied in order.

    A budgets file that is named without `levels` is taken as it is, whatever the tables have for
    other budgets. Raises as `parse_config` does, and `ConfigError` for an override that is
    malformed or has no effect.
    """
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(parsed, overrides)
    keys = [set_value(tables, key, value) for key, value in pairs]
    if "budgets.file" in keys and "budgets.levels" not in keys:
        tables["budgets"].pop("levels", None)
    config = parse_config(tables)
    idle = without_effect(config)
    for key in keys:
        if key in idle:
            raise ConfigError(
                f"{key} = {value_of(config, key)!r} has no effect with {idle[key]}; "
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
    """The path itself, or the shipped file of this name where there is none: `quickstart`, or
    `configs/quickstart.toml`. Raises `ConfigError` for a name that is neither."""
    if path.exists():
        return path
    known, name = shipped(), path.name.removesuffix(".toml")  # and no other: names have dots
    if name in known and path.parts in ((path.name,), ("configs", path.name)):
        return known[name]
    if path.suffix == ".toml" or str(path.parent) != ".":
        return path  # whoever reads it says that it does not exist
    hint = suggestion(path.name, known) or f"there are {', '.join(known)}"
    raise ConfigError(f"configuration {path.name!r} is neither a file nor shipped; {hint}")


def set_value(tables: dict[str, Any], target: str, value: Any) -> str:
    """Set one `section.key` in nested tables; returns it. Raises `ConfigError` if it is none."""
    section, dot, key = target.partition(".")
    if not dot or not section or not key:
        raise ConfigError(f"--set {target!r}: must look like section.key=value")
    table = tables.setdefault(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"[{section}] must be a table of keys, got {table!r}")
    table[key] = str(value) if isinstance(value, Path) else value
    return target


def parsed(override: str) -> tuple[str, Any]:
    """`section.key` and its value; raises `ConfigError` if it is malformed."""
    target, separator, text = override.partition("=")
    if not separator:
        raise ConfigError(f"--set {override!r}: must look like section.key=value")
    return target.strip(), toml_or_text(text, f"--set {target.strip()}")


def toml_or_text(text: str, what: str) -> Any:
    """A value as TOML has it where that works (numbers, booleans, lists), else as plain text.

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

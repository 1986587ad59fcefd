"""TOML -> a frozen, validated configuration.

Every field states what it allows; an unknown key, a wrong type or a value out of range raises
`ConfigError` or `InvalidValueError` with one line that names `section.key`, the value and what is
allowed. Nothing is guessed: a field has the default written here or the value in the file.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fl_shuffle.errors import (
    ConfigError,
    InvalidValueError,
    require_choice,
    require_integer,
    require_real,
    suggestion,
)

Check = Callable[[str, Any], Any]


def _real(default: float, **limits: Any) -> Any:
    return field(
        default=default,
        metadata={"check": lambda name, value: require_real(name, value, **limits)},
    )


def _optional_real(**limits: Any) -> Any:
    def check(name: str, value: Any) -> float | None:
        return None if value is None else require_real(name, value, **limits)

    return field(default=None, metadata={"check": check})


def _integer(default: int, **limits: Any) -> Any:
    return field(
        default=default,
        metadata={"check": lambda name, value: require_integer(name, value, **limits)},
    )


def _flag(default: bool) -> Any:
    def check(name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise InvalidValueError(name, value, "must be true or false")
        return value

    return field(default=default, metadata={"check": check})


def _text(default: str, *, allow_empty: bool = True) -> Any:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidValueError(name, value, "must be a text")
        if not allow_empty and not value:
            raise InvalidValueError(name, value, "must not be empty")
        return value

    return field(default=default, metadata={"check": check})


def _choice(default: str, *options: str) -> Any:
    return field(
        default=default,
        metadata={"check": lambda name, value: require_choice(name, value, options)},
    )


def _choice_or_path(default: str, *options: str) -> Any:
    """One of the named options, or a user's own `module:attribute`."""

    def check(name: str, value: Any) -> str:
        if isinstance(value, str) and value.count(":") == 1 and all(value.split(":")):
            return value
        return require_choice(name, value, [*options, "module:function"])

    return field(default=default, metadata={"check": check})


def _integers(default: tuple[int, ...], *, minimum: int) -> Any:
    def check(name: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise InvalidValueError(name, value, f"must be a list of whole numbers >= {minimum}")
        return tuple(
            require_integer(f"{name}[{index}]", item, minimum=minimum)
            for index, item in enumerate(value)
        )

    return field(default=default, metadata={"check": check})


def _table() -> Any:
    def check(name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise InvalidValueError(name, value, "must be a table of options")
        return dict(value)

    return field(default_factory=dict, metadata={"check": check})


@dataclass(frozen=True)
class RunSection:
    """How long, how seeded, on what."""

    rounds: int = _integer(10, minimum=1, maximum=1_000_000)
    seed: int = _integer(0, minimum=0, maximum=2**63 - 1)
    entropy: str = _choice("seeded", "seeded", "system")
    engine: str = _choice("in-process", "in-process", "ray")
    out: str = _text("runs", allow_empty=False)
    device: str = _choice("cpu", "cpu", "cuda")
    jobs: int = _integer(0, minimum=0, maximum=1024)
    evaluate_every: int = _integer(1, minimum=1)
    timeout: float = _real(3600.0, minimum=0.0, exclusive_minimum=True)


@dataclass(frozen=True)
class DataSection:
    """Which records, cut into which clients, seen through which features."""

    source: str = _choice_or_path("digits", "digits", "mnist")
    root: str = _text("")
    clients: int = _integer(50, minimum=1, maximum=100_000_000)
    records: int = _integer(0, minimum=0)
    partition: str = _choice("iid", "iid", "dirichlet", "shards", "ordered")
    alpha: float = _real(0.5, minimum=0.0, exclusive_minimum=True)
    shards_per_client: int = _integer(2, minimum=1)
    sizes: str = _choice("equal", "equal", "unequal")
    features: str = _choice_or_path("raw", "raw", "pca", "hog", "none")
    feature_options: dict[str, Any] = _table()
    validation: float = _real(0.0, minimum=0.0, maximum=0.5)
    seed: int = _integer(0, minimum=0)

    @property
    def dealt_by_label(self) -> bool:
        """Whether the labels decide which client holds which records."""
        return self.partition in ("dirichlet", "shards")


@dataclass(frozen=True)
class ModelSection:
    """What is trained."""

    kind: str = _choice_or_path("linear", "linear", "mlp")
    hidden: tuple[int, ...] = _integers((), minimum=1)
    init: str = _choice("default", "default", "zeros")
    bias: bool = _flag(True)


@dataclass(frozen=True)
class TrainingSection:
    """What a client computes, and who takes part."""

    schedule: str = _choice("aggregate", "aggregate", "sequential")
    participation: float = _real(1.0, minimum=0.0, maximum=1.0, exclusive_minimum=True)
    local_steps: int = _integer(1, minimum=1)
    local_learning_rate: float = _real(0.1, minimum=0.0, exclusive_minimum=True)


@dataclass(frozen=True)
class ServerSection:
    """What the server does with the mean of the shuffled reports."""

    optimizer: str = _choice("sgd", "sgd", "momentum", "adam")
    learning_rate: float = _real(1.0, minimum=0.0, exclusive_minimum=True)
    momentum: float = _real(0.9, minimum=0.0, maximum=1.0, exclusive_maximum=True)
    beta2: float = _real(0.999, minimum=0.0, maximum=1.0, exclusive_maximum=True)
    decay: str = _choice("constant", "constant", "linear", "cosine")
    averaging: float = _real(0.0, minimum=0.0, maximum=1.0)
    weights: str = _choice("uniform", "uniform", "inverse-variance")
    analyzer: str = _choice_or_path("mean", "mean")


@dataclass(frozen=True)
class PrivacySection:
    """Unit of privacy, clipping, local randomizer, and what the run may spend."""

    unit: str = _choice("record", "record", "client")
    clip: str = _choice("auto", "auto", "record", "average", "update")
    clip_norm: float = _real(1.0, minimum=0.0, exclusive_minimum=True)
    client_clip: float | None = _optional_real(minimum=0.0, exclusive_minimum=True)
    randomizer: str = _choice_or_path("gaussian", "gaussian", "laplace")
    calibration: str = _choice("analytic", "analytic", "classical", "as-published")
    personalization: str = _choice("noise", "noise", "clipping")
    target_delta: float = _real(
        1e-5, minimum=0.0, maximum=1.0, exclusive_minimum=True, exclusive_maximum=True
    )
    target_epsilon: float | None = _optional_real(minimum=0.0, exclusive_minimum=True)
    client_epsilon: float | None = _optional_real(minimum=0.0, exclusive_minimum=True)
    min_reports: int = _integer(2, minimum=1)


@dataclass(frozen=True)
class BudgetsSection:
    """Who has which local (epsilon0, delta0)."""

    distribution: str = _choice_or_path(
        "constant",
        "constant",
        "uniform",
        "unif1",
        "unif2",
        "unif3",
        "mixed",
        "groups",
        "file",
    )
    epsilon: float = _real(0.5, minimum=0.0, exclusive_minimum=True)
    low: float = _real(0.01, minimum=0.0, exclusive_minimum=True)
    high: float = _real(1.0, minimum=0.0, exclusive_minimum=True)
    delta: float = _real(1e-5, minimum=0.0, maximum=1.0, exclusive_maximum=True)
    file: str = _text("")
    levels: int = _integer(0, minimum=0, maximum=10_000)
    conservative: float = _real(0.1, minimum=0.0, exclusive_minimum=True)
    moderate: float = _real(0.5, minimum=0.0, exclusive_minimum=True)
    liberal: float = _real(1.0, minimum=0.0, exclusive_minimum=True)
    conservative_fraction: float = _real(0.54, minimum=0.0, maximum=1.0)
    moderate_fraction: float = _real(0.37, minimum=0.0, maximum=1.0)
    seed: int = _integer(0, minimum=0)


@dataclass(frozen=True)
class AppSection:
    """The Flower apps that play the two sides; a user's own go here."""

    server: str = _choice_or_path("server.app:app")
    client: str = _choice_or_path("clients.app:app")


@dataclass(frozen=True)
class Config:
    """A whole run, as resolved from a file and its overrides."""

    run: RunSection = field(default_factory=RunSection)
    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    server: ServerSection = field(default_factory=ServerSection)
    privacy: PrivacySection = field(default_factory=PrivacySection)
    budgets: BudgetsSection = field(default_factory=BudgetsSection)
    app: AppSection = field(default_factory=AppSection)

    @property
    def clip(self) -> str:
        """The clipping in force: `auto` is per record for the record unit, the update otherwise."""
        if self.privacy.clip != "auto":
            return self.privacy.clip
        return "record" if self.privacy.unit == "record" else "update"

    @property
    def relation(self) -> str:
        """The neighbouring relation of the guarantee.

        Where the partition is computed from the labels it is one of data sets that are cut into
        clients already: what the partition tells of the labels is not covered.
        """
        return (
            "replace-one after the partition by label"
            if self.data.dealt_by_label
            else ("replace-one")
        )

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain nested tables; unset optional values are left out, as TOML has no null."""
        return {
            section.name: {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in dataclasses.asdict(getattr(self, section.name)).items()
                if value is not None
            }
            for section in dataclasses.fields(self)
        }

    def to_json(self) -> str:
        """The configuration as one JSON text, as it travels to the apps and into the ledger."""
        return json.dumps(self.to_dict(), sort_keys=True)


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
    elif privacy.randomizer == "gaussian" and budgets.delta == 0.0:
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
    if config.training.schedule == "sequential" and config.server.weights != "uniform":
        raise InvalidValueError(
            "server.weights",
            config.server.weights,
            "a sequential schedule applies reports one by one; use uniform",
        )
    if config.training.local_steps > 1 and privacy.unit != "client":
        raise InvalidValueError(
            "training.local_steps",
            config.training.local_steps,
            "several local steps have no per-record sensitivity; set privacy.unit = 'client'",
        )


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, apply `section.key=value` overrides in order, and validate.

    An override's value is read as TOML where that works (numbers, booleans, lists) and as plain
    text otherwise. Raises `ConfigError` for a file that is missing or is not TOML.
    """
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"configuration file {source} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {source} cannot be read: {error}") from None
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration file {source} is not valid TOML: {error}") from None
    for override in overrides:
        apply_override(tables, override)
    return parse_config(tables)


def apply_override(tables: dict[str, Any], override: str) -> None:
    """Set one `section.key=value` in nested tables; raises `ConfigError` if it is malformed."""
    target, separator, text = override.partition("=")
    section, dot, key = target.strip().partition(".")
    if not separator or not dot or not section or not key:
        raise ConfigError(f"--set {override!r}: must look like section.key=value")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = tables.setdefault(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"[{section}] must be a table of keys, got {table!r}")
    table[key] = value

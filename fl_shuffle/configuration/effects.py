"""Settings that change nothing beside the others of a configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from fl_shuffle.configuration.sections import AppSection, Config
from fl_shuffle.errors import ConfigError


def without_effect(config: Config) -> dict[str, str]:
    """`section.key` of what nothing reads, each with the setting that has it so.

    Nothing is said of runs with apps of the user's own, which may read anything.
    """
    if config.app != AppSection():
        return {}
    budgets, data, server = config.budgets, config.data, config.server
    read = {
        f"budgets.distribution = {budgets.distribution!r}": {
            "epsilon": budgets.distribution == "constant",
            "low high": budgets.distribution == "uniform",
            "file": budgets.distribution == "file",
            "delta": budgets.distribution != "file",
            "conservative moderate liberal conservative_fraction moderate_fraction": (
                budgets.distribution == "groups"
            ),
        },
        f"data.partition = {data.partition!r}": {
            "alpha": data.partition == "dirichlet",
            "shards_per_client": data.partition == "shards",
        },
        f"model.kind = {config.model.kind!r}": {
            "hidden init bias": config.model.kind in ("linear", "mlp"),
        },
        f"training.local_steps = {config.training.local_steps}": {
            "local_learning_rate": config.training.local_steps > 1,
        },
        f"server.optimizer = {server.optimizer!r}": {
            "momentum": server.optimizer in ("momentum", "adam"),
            "beta2": server.optimizer == "adam",
        },
        f"server.analyzer = {server.analyzer!r}": {"trim": server.analyzer == "trimmed-mean"},
    }
    return {
        f"{reason.partition('.')[0]}.{key}": reason
        for reason, keys in read.items()
        for names, used in keys.items()
        if not used
        for key in names.split()
    }


def idle_settings(config: Config) -> tuple[str, ...]:
    """One line for every setting that is not at its default and changes nothing."""
    defaults = Config()
    return tuple(
        f"{key} = {value_of(config, key)!r} has no effect with {reason}"
        for key, reason in without_effect(config).items()
        if value_of(config, key) != value_of(defaults, key)
    )


def require_effect(config: Config, keys: Iterable[str]) -> None:
    """Refuse these `section.key`, which a user asked for by name, where they change nothing.

    Raises `ConfigError`.
    """
    idle = without_effect(config)
    for key in keys:
        if key in idle:
            raise ConfigError(
                f"{key} = {value_of(config, key)!r} has no effect with {idle[key]}; "
                "leave it out, or change that"
            )


def value_of(config: Config, key: str) -> object:
    """The value of `section.key`."""
    section, _, name = key.partition(".")
    tables = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return getattr(tables[section], name)

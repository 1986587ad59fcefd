"""What is swept: every combination of the grid's values, each with every seed."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fl_shuffle.configuration.reading import parse_config, set_value, toml_or_text
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError, FlShuffleError, require_integer

MOST_RUNS = 10_000
"""More are a slip of the keyboard: at a second each they would take three hours."""

NOT_SWEPT = {
    "run.out": "every run of a sweep has its own folder in the sweep's",
    "run.jobs": "it changes no result; say how many runs go on at once with jobs",
}


@dataclass(frozen=True)
class Axis:
    """One setting, `section.key`, and the values it takes, in order."""

    key: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if self.key in NOT_SWEPT:
            raise ConfigError(f"grid {self.key}: it cannot be swept; {NOT_SWEPT[self.key]}")
        if not self.values:
            raise ConfigError(f"grid {self.key}: there is no value; give at least one")
        for index, value in enumerate(self.values):
            if value in self.values[:index]:
                raise ConfigError(f"grid {self.key}: {value!r} stands there twice")


def parse_axis(text: str) -> Axis:
    """`section.key=value,value,...`, values as TOML where that works and as plain text otherwise.

    Raises `ConfigError` if it is malformed.

    >>> parse_axis("privacy.clip_norm=0.01,0.02")
    Axis(key='privacy.clip_norm', values=(0.01, 0.02))
    """
    key, separator, values = (part.strip() for part in text.partition("="))
    section, dot, name = key.partition(".")
    if not (separator and dot and section and name):
        raise ConfigError(f"--grid {text!r}: must look like section.key=value,value,...")
    found = toml_or_text(f"[{values}]", f"--grid {key}")
    if isinstance(found, str):  # texts without quotes
        found = [toml_or_text(each, f"--grid {key}") for each in values.split(",")]
    return Axis(key, tuple(found))


@dataclass(frozen=True, eq=False)
class Point:
    """One run: a combination (counted from 0), its settings, its seed, and all of it resolved."""

    name: str
    combination: int
    settings: Mapping[str, Any]
    seed: int
    config: Config


@dataclass(frozen=True)
class Sweep:
    """A base configuration (nested tables), the axes of the grid, and the seeds of every point.

    Raises `ConfigError` for a grid that makes no sense as a whole, and names the point whose
    configuration is refused.
    """

    base: Mapping[str, Any]
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        keys = [axis.key for axis in self.axes]
        for key in keys:
            if keys.count(key) > 1:
                raise ConfigError(f"grid {key}: it is given twice; put all its values into one")
        if "run.seed" in keys and len(self.seeds) > 1:
            raise ConfigError("grid run.seed: --seeds already says which seeds there are")
        count = math.prod([len(self.seeds), *(len(axis.values) for axis in self.axes)])
        if count > MOST_RUNS:
            raise ConfigError(f"the grid has {count:,} runs; at most {MOST_RUNS:,} are allowed")
        _ = self.points

    @classmethod
    def of(cls, base: Mapping[str, Any], axes: Sequence[Axis], seeds: int) -> Sweep:
        """With `seeds` seeds a point: the configuration's own and the ones that follow it."""
        require_integer("seeds", seeds, minimum=1, maximum=MOST_RUNS)
        first = parse_config(base).run.seed
        return cls(copy.deepcopy(dict(base)), tuple(axes), tuple(range(first, first + seeds)))

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every run, combination by combination."""
        keys = [axis.key for axis in self.axes]
        found = []
        for number, values in enumerate(itertools.product(*(axis.values for axis in self.axes))):
            settings = dict(zip(keys, values, strict=True))
            for seed in self.seeds:
                config = self._config(settings, seed)
                name = f"{number:03d}-seed-{config.run.seed}"
                found.append(Point(name, number, settings, config.run.seed, config))
        return tuple(found)

    def _config(self, settings: Mapping[str, Any], seed: int) -> Config:
        tables = copy.deepcopy(dict(self.base))
        try:
            for key, value in {"run.seed": seed, **settings}.items():
                set_value(tables, key, value)
            return parse_config(tables)
        except FlShuffleError as error:
            shown = ", ".join(f"{key} = {value!r}" for key, value in settings.items())
            raise ConfigError(f"the point {shown or '(base)'}: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """As sweep.json holds it."""
        return {
            "base": dict(self.base),
            "grid": [[axis.key, list(axis.values)] for axis in self.axes],
            "seeds": list(self.seeds),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sweep:
        """What `to_json` wrote. Raises `ConfigError` for anything else."""
        try:
            axes = tuple(Axis(str(key), tuple(values)) for key, values in data["grid"])
            return cls(dict(data["base"]), axes, tuple(int(seed) for seed in data["seeds"]))
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, FlShuffleError):
                raise
            raise ConfigError(f"it is no description of a sweep ({error})") from None

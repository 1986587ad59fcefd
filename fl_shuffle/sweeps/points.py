"""What is swept: every combination of the grid's values, each with every seed."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
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


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Setting -> values, of `section.key=value,value,...` each: values as TOML where that works
    and as plain text otherwise.

    Raises `ConfigError` if one is malformed, or a setting is given twice.

    >>> parse_grid(["privacy.clip_norm=0.01,0.02"])
    {'privacy.clip_norm': [0.01, 0.02]}
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, separator, values = (part.strip() for part in text.partition("="))
        if not (separator and all(key.partition("."))):
            raise ConfigError(f"--grid {text!r}: must look like section.key=value,value,...")
        if key in grid:
            raise ConfigError(f"grid {key}: it is given twice; put all its values into one")
        found = toml_or_text(f"[{values}]", f"--grid {key}")
        if isinstance(found, str):  # texts without quotes
            found = [toml_or_text(each, f"--grid {key}") for each in values.split(",")]
        grid[key] = found
    return grid


@dataclass(frozen=True, eq=False)
class Point:
    """One run: its name, the settings that it has of the grid, and its whole configuration."""

    name: str
    settings: Mapping[str, Any]
    config: Config


@dataclass(frozen=True)
class Sweep:
    """A base configuration (nested tables), a grid of settings (`section.key`) with their values,
    in order, and the seeds of every point.

    Raises `ConfigError` for a grid that makes no sense as a whole, and names the point whose
    configuration is refused.
    """

    base: Mapping[str, Any]
    grid: Mapping[str, Sequence[Any]]
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        for key, values in self.grid.items():
            if key in NOT_SWEPT:
                raise ConfigError(f"grid {key}: it cannot be swept; {NOT_SWEPT[key]}")
            if not values:
                raise ConfigError(f"grid {key}: there is no value; give at least one")
            for index, value in enumerate(values):
                if value in values[:index]:
                    raise ConfigError(f"grid {key}: {value!r} stands there twice")
        if "run.seed" in self.grid and len(self.seeds) > 1:
            raise ConfigError("grid run.seed: --seeds already says which seeds there are")
        count = math.prod(map(len, (self.seeds, *self.grid.values())))
        if count > MOST_RUNS:
            raise ConfigError(f"the grid has {count:,} runs; at most {MOST_RUNS:,} are allowed")
        _ = self.points

    @classmethod
    def of(cls, base: Mapping[str, Any], grid: Mapping[str, Sequence[Any]], seeds: int) -> Sweep:
        """With `seeds` seeds a point: the configuration's own and the ones that follow it."""
        require_integer("seeds", seeds, minimum=1, maximum=MOST_RUNS)
        first = parse_config(base).run.seed
        return cls(copy.deepcopy(dict(base)), grid, tuple(range(first, first + seeds)))

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every run, combination by combination."""
        found = []
        for number, values in enumerate(itertools.product(*self.grid.values())):
            settings = dict(zip(self.grid, values, strict=True))
            for seed in self.seeds:
                config = self._config(settings, seed)
                found.append(Point(f"{number:03d}-seed-{config.run.seed}", settings, config))
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

"""What is swept: every combination of the grid's values, each with every seed."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fl_shuffle.configuration.reading import parse_config, set_value, toml_or_text
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError, FlShuffleError, require_integer

NONE, TRUSTED, SHUFFLED, LOCAL = "no privacy", "trusted server", "shuffled", "local"
"""What a shuffled run is set beside, and itself."""
BASELINE = "baseline"
"""The column that names a point's baseline, before the settings of the grid."""
MOST_RUNS = 10_000
"""More are a slip of the keyboard: at a second each they would take three hours."""

NOT_SWEPT = {
    "run.out": "every run of a sweep has its own folder in the sweep's",
    "run.jobs": "it changes no result; set the number of simultaneous runs with jobs",
}


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Return setting -> values, of `section.key=value,value,...` each: values as TOML where that
    works and as plain text otherwise.

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
            raise ConfigError(f"grid {key}: is given twice; put all its values into one --grid")
        found = toml_or_text(f"[{values}]", f"--grid {key}")
        if isinstance(found, str):  # texts without quotes
            found = [toml_or_text(each, f"--grid {key}") for each in values.split(",")]
        grid[key] = found
    return grid


def changed(tables: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables with these settings in place of their own."""
    found = {name: dict(table) for name, table in tables.items()}
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        table = found.setdefault(section, {})
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value
    return found


@dataclass(frozen=True, eq=False)
class SweepPoint:
    """One run: its name, the settings that it has of the grid, and its whole configuration."""

    name: str
    settings: Mapping[str, Any]
    config: Config


@dataclass(frozen=True)
class Sweep:
    """A base configuration (nested tables), a grid of settings (`section.key`) with their values,
    in order, and the seeds of every point. `baselines`: of each combination the runs that are set
    beside one another, with the name, the combination's settings `at`, and the `settings` that
    make the baseline (`sweeps.baselines`); none where only combinations are run.

    Raises `ConfigError` for a grid that makes no sense as a whole, and names the point whose
    configuration is refused.
    """

    base: Mapping[str, Any]
    grid: Mapping[str, Sequence[Any]]
    seeds: tuple[int, ...]
    baselines: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for key, values in self.grid.items():
            if key in NOT_SWEPT:
                raise ConfigError(f"grid {key}: it cannot be swept; {NOT_SWEPT[key]}")
            if not values:
                raise ConfigError(f"grid {key}: there is no value; give at least one")
            for index, value in enumerate(values):
                if value in values[:index]:
                    raise ConfigError(f"grid {key}: {value!r} is given twice; give it once")
        if "run.seed" in self.grid and len(self.seeds) > 1:
            raise ConfigError(
                "grid run.seed: --seeds sets the seeds already; leave one of the two out"
            )
        combinations = len(self.baselines) or math.prod(map(len, self.grid.values()))
        count = len(self.seeds) * combinations
        if count > MOST_RUNS:
            raise ConfigError(f"the grid has {count:,} runs; at most {MOST_RUNS:,} are allowed")
        _ = self.points

    @classmethod
    def of(
        cls,
        base: Mapping[str, Any],
        grid: Mapping[str, Sequence[Any]],
        seeds: int,
        *,
        baselines: bool = False,
    ) -> Sweep:
        """Return the sweep with `seeds` seeds a point: the configuration's own and the ones that
        follow it; and with every combination's baselines.

        Raises as `baselines_of` does.
        """
        require_integer("seeds", seeds, minimum=1, maximum=MOST_RUNS)
        first = parse_config(base).run.seed
        plain = cls(copy.deepcopy(dict(base)), grid, tuple(range(first, first + seeds)))
        return replace(plain, baselines=tuple(plain._baselines())) if baselines else plain

    def _baselines(self) -> Iterator[dict[str, Any]]:
        # It needs the planner, and PyTorch for some data.
        from fl_shuffle.sweeps.baselines import baselines_of

        met = list[Any]()
        for values in itertools.product(*self.grid.values()):
            settings = dict(zip(self.grid, values, strict=True))
            tables = self._config(settings, self.seeds[0]).to_dict()
            for name, own in baselines_of(tables).items():
                at: dict[str, Any] = dict(settings)
                if name == NONE:
                    # What is set of privacy changes nothing there: such runs are one.
                    at = {k: None if k.startswith(("privacy.", "budgets.")) else v
                          for k, v in at.items()}  # fmt: skip
                if (name, at) not in met:
                    met.append((name, at))
                    yield {"baseline": name, "at": at, "settings": own}

    @cached_property
    def points(self) -> tuple[SweepPoint, ...]:
        """Every run, combination by combination."""
        found = []
        for number, (settings, own) in enumerate(self._combinations()):
            at = {key: value for key, value in settings.items() if key != BASELINE}
            for seed in self.seeds:
                config = self._config(at, seed, own)
                found.append(SweepPoint(f"{number:03d}-seed-{config.run.seed}", settings, config))
        return tuple(found)

    @property
    def settings(self) -> list[str]:
        """What tells the combinations apart."""
        return [BASELINE] * bool(self.baselines) + list(self.grid)

    def _combinations(self) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        """Yield the settings of each combination, and what makes a baseline of it."""
        for each in self.baselines:
            yield {BASELINE: each["baseline"], **each["at"]}, each["settings"]
        if not self.baselines:
            for values in itertools.product(*self.grid.values()):
                yield dict(zip(self.grid, values, strict=True)), {}

    def _config(
        self, settings: Mapping[str, Any], seed: int, baseline: Mapping[str, Any] | None = None
    ) -> Config:
        tables = copy.deepcopy(dict(self.base))
        try:
            for key, value in {"run.seed": seed, **settings}.items():
                if value is not None:
                    set_value(tables, key, value)
            return parse_config(changed(tables, baseline or {}))
        except FlShuffleError as error:
            shown = ", ".join(f"{key} = {value!r}" for key, value in settings.items())
            raise ConfigError(f"the point {shown or '(base)'}: {error}") from None

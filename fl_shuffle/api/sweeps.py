"""Running a configuration over a grid of settings and several seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_shuffle.api.configs import QUICKSTART, ConfigLike, resolve_config

if TYPE_CHECKING:
    from fl_shuffle.runs.directory import RunDirectory
    from fl_shuffle.sweeps.points import Sweep
    from fl_shuffle.sweeps.results import SweepResult
    from fl_shuffle.sweeps.running import SweepEvent


def sweep(
    config: ConfigLike = QUICKSTART,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 1,
    jobs: int = 1,
    overrides: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    on_event: Callable[[SweepEvent], None] | None = None,
) -> SweepResult:
    """Run every combination of `grid` (`section.key` to its values) with `seeds` seeds each.

    `jobs` runs go on at once, each in a process of its own; their number changes no result. The
    sweep's folder is `out`, which must be empty or absent, or a new one below `run.out`;
    `resume_sweep` goes on with one. `on_event` is called with every round, finished and failed run.
    A run that fails leaves the others alone: it is missing in the result. Nothing is printed.
    Raises `FlShuffleError`, before anything runs if any combination is not allowed.
    """
    from fl_shuffle.sweeps.directory import new_sweep
    from fl_shuffle.sweeps.points import Axis, Sweep

    base = resolve_config(config, overrides).to_dict()
    axes = [Axis(key, tuple(values)) for key, values in (grid or {}).items()]
    plan = Sweep.of(base, axes, seeds)
    return played(new_sweep(plan, None if out is None else Path(out)), plan, jobs, on_event)


def resume_sweep(
    directory: str | Path,
    *,
    jobs: int = 1,
    on_event: Callable[[SweepEvent], None] | None = None,
) -> SweepResult:
    """Go on with a sweep: finished runs are kept, unfinished ones resumed, the others started.

    Raises `FlShuffleError`.
    """
    from fl_shuffle.sweeps.directory import reopen_sweep

    return played(*reopen_sweep(Path(directory)), jobs, on_event)


def played(
    directory: RunDirectory,
    plan: Sweep,
    jobs: int,
    on_event: Callable[[SweepEvent], None] | None,
) -> SweepResult:
    """Run what has no result yet, write tables and page, and give the folder back."""
    from fl_shuffle.sweeps.results import SweepResult
    from fl_shuffle.sweeps.running import run_sweep

    try:
        run_sweep(directory.path, plan, jobs=jobs, observe=on_event)
        result = SweepResult(directory.path)
        result.write_tables()
        result.report()
    finally:
        directory.close()
    return result

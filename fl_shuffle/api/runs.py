"""Running a federation from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_shuffle.api.configs import QUICKSTART, ConfigLike, resolve_config
from fl_shuffle.api.results import Result
from fl_shuffle.errors import RunError

if TYPE_CHECKING:
    from fl_shuffle.flower.strategy import RoundOutcome


def simulate(
    config: ConfigLike = QUICKSTART,
    *,
    overrides: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    on_round: Callable[[RoundOutcome], None] | None = None,
) -> Result:
    """Run a federation to its end and return what it left behind.

    `config` is a TOML file, nested tables or a `Config`; `overrides` maps `section.key` to a value.
    The run's folder is `out`, which must not hold a run, or a new one below `run.out`. `on_round`
    is called after every round with its spend and metrics (not by the Ray engine, whose rounds run
    in other processes); what it raises ends the run. Nothing is printed. Raises `FlShuffleError`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = simulate(overrides={"run.rounds": 2, "run.out": folder})
    ...     len(result.metrics["round"])
    2
    """
    from fl_shuffle.runs import RoundFinished, RunEvent, RunFinished, RunPlace
    from fl_shuffle.runs.directory import require_free
    from fl_shuffle.simulation.launch import simulate as launch
    from fl_shuffle.simulation.threads import one_torch_thread

    resolved = resolve_config(config, overrides)
    directory = None if out is None else Path(out).resolve()
    if directory is not None:
        require_free(directory)
    finished: list[str] = []

    def observe(event: RunEvent) -> None:
        if isinstance(event, RoundFinished) and on_round is not None:
            on_round(event.outcome)
        elif isinstance(event, RunFinished):
            finished.append(event.summary["run_directory"])

    with one_torch_thread():
        launch(resolved, RunPlace(directory), observe)
    if not finished:
        raise RunError("the run ended without a result; see its run.log")
    return Result(finished[0])

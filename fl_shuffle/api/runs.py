"""Running a federation from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_shuffle.api.configs import QUICKSTART, ConfigLike, resolve_config
from fl_shuffle.api.results import Result
from fl_shuffle.errors import RunError

if TYPE_CHECKING:
    from fl_shuffle.configuration.sections import Config
    from fl_shuffle.runs.events import RunEvent
    from fl_shuffle.runs.outcome import RoundOutcome
    from fl_shuffle.runs.place import RunPlace

OnRound = Callable[["RoundOutcome"], None]
OnEvent = Callable[["RunEvent"], None]


def simulate(
    config: ConfigLike = QUICKSTART,
    *,
    overrides: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    on_round: OnRound | None = None,
    on_event: OnEvent | None = None,
) -> Result:
    """Run a federation to its end and return what it left behind.

    `config` is a TOML file, nested tables or a `Config`; `overrides` maps `section.key` to a value.
    The run's folder is `out`, which must not hold a run, or a new one below `run.out`. `on_round`
    is called after every round with its spend and metrics, `on_event` with every event of
    `fl_shuffle.runs.events`; what they raise ends the run. Nothing is printed. Raises
    `FlShuffleError`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = simulate(overrides={"run.rounds": 2, "run.out": folder})
    ...     len(result.metrics["round"])
    2
    """
    from fl_shuffle.runs.directory import require_free
    from fl_shuffle.runs.place import RunPlace

    resolved = resolve_config(config, overrides)
    directory = None if out is None else Path(out).resolve()
    if directory is not None:
        require_free(directory)
    return _play(resolved, RunPlace(directory), on_round, on_event)


def resume(
    directory: str | Path,
    *,
    settings: Sequence[str] = (),
    data_unchanged: bool = False,
    on_round: OnRound | None = None,
    on_event: OnEvent | None = None,
) -> Result:
    """Go on with the unfinished run in `directory`, with its own configuration, to its end.

    `settings` (`section.key=value`) change what may change (docs/reliability.md).
    Raises `RunError` where there is none, where what was released could not be accounted any more,
    and where nobody can tell whether the data are still the same, unless `data_unchanged` vouches
    for them. The callbacks are those of `simulate`.
    """
    from fl_shuffle.runs.place import RunPlace
    from fl_shuffle.runs.resume import unfinished_config

    path = Path(directory).resolve()
    place = RunPlace(path, "data-unchanged" if data_unchanged else "yes")
    return _play(unfinished_config(path, settings), place, on_round, on_event)


def _play(
    config: Config, place: RunPlace, on_round: OnRound | None, on_event: OnEvent | None
) -> Result:
    from fl_shuffle.runs.events import RoundFinished, RunFinished
    from fl_shuffle.simulation.launch import simulate as launch
    from fl_shuffle.threads import one_thread

    finished: list[str] = []

    def observe(event: RunEvent) -> None:
        if on_event is not None:
            on_event(event)
        if isinstance(event, RoundFinished) and on_round is not None:
            on_round(event.outcome)
        elif isinstance(event, RunFinished):
            finished.append(event.summary["run_directory"])

    with one_thread():
        launch(config, place, observe)
    if not finished:
        raise RunError("the run ended without a result; see its run.log")
    return Result(finished[0])

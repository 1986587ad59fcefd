"""`fl-shuffle sweep`: one configuration over a grid of settings and several seeds."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_shuffle.cli.overrides import add_overrides
from fl_shuffle.run_words import say, terminal_width

if TYPE_CHECKING:
    from fl_shuffle.sweeps import Sweep, SweepResult
    from fl_shuffle.sweeps.running import SweepEvent

SUMMARY = "Run a configuration over a grid of settings and several seeds: a table and a figure."


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", metavar="CONFIG.toml", nargs="?", help="what to run (default: the quickstart)"
    )
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE,VALUE,...",
        help="a setting and its values; may be repeated: every combination is run",
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="run each combination with N seeds (default 1)"
    )
    add_overrides(parser)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at once (default 1)")
    parser.add_argument("--out", metavar="DIR", help="the sweep's folder (default: runs/DATE-TIME)")
    parser.add_argument("--resume", metavar="DIR", help="go on with a sweep that was stopped")
    parser.add_argument("--quiet", action="store_true", help="print only the final table")


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.api.sweeps import played
    from fl_shuffle.errors import RunInterrupted
    from fl_shuffle.sweeps import SweepDirectory

    failures: list[str] = []
    if arguments.resume:
        _refuse_beside_resume(arguments)
        directory = SweepDirectory.reopen(Path(arguments.resume))
    else:
        out = Path(arguments.out) if arguments.out else None
        directory = SweepDirectory.create(_planned(arguments), out)
    try:
        with _progress(directory.sweep, failures, quiet=arguments.quiet) as observe:
            result = played(directory, arguments.jobs, observe)
    except KeyboardInterrupt:
        raise RunInterrupted(directory.path, "sweep") from None
    say(*_lines(result, failures))
    return 1 if failures else 0


def _refuse_beside_resume(arguments: argparse.Namespace) -> None:
    from fl_shuffle.errors import ConfigError

    for name in ("config", "grid", "seeds", "set", "out"):
        if getattr(arguments, name) not in (None, []):
            shown = name if name == "config" else f"--{name}"
            raise ConfigError(f"--resume DIR takes everything from DIR; leave out {shown}")


def _planned(arguments: argparse.Namespace) -> Sweep:
    """What is to be swept, found valid."""
    from fl_shuffle.api.configs import QUICKSTART
    from fl_shuffle.configuration.reading import load_config
    from fl_shuffle.sweeps import Sweep, parse_axis

    base = load_config(arguments.config or QUICKSTART, arguments.set)
    axes = [parse_axis(text) for text in arguments.grid]
    return Sweep.of(base.to_dict(), axes, 1 if arguments.seeds is None else arguments.seeds)


@contextmanager
def _progress(
    plan: Sweep, failures: list[str], *, quiet: bool
) -> Iterator[Callable[[SweepEvent], None]]:
    """One bar over all rounds on a terminal, a line per run elsewhere; failures are collected."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from fl_shuffle.sweeps import PointFailed, PointFinished, PointRound

    console = Console(stderr=True)
    total = sum(point.config.run.rounds for point in plan.points)
    done: dict[str, int] = {}
    ended = 0
    # How long rounds take may hang on private records.
    timed = all(point.config.run.entropy == "seeded" for point in plan.points)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"),
        *[TimeRemainingColumn()] * timed, console=console, disable=quiet or not console.is_terminal,
    )  # fmt: skip
    task = bar.add_task(f"0/{len(plan.points)} runs", total=total)

    def observe(event: SweepEvent) -> None:
        nonlocal ended
        name = event.point.name
        if isinstance(event, PointRound):
            done[name] = event.round_number
        else:
            ended += 1
            done[name] = event.point.config.run.rounds
            if isinstance(event, PointFailed):
                failures.append(f"{_named(event.point.settings, event.point.seed)}: {event.error}")
            if bar.disable and not quiet:
                said = "failed" if isinstance(event, PointFailed) else "finished"
                if isinstance(event, PointFinished) and event.kept:
                    said = "was finished"
                text = _named(event.point.settings, event.point.seed)
                print(f"[{ended}/{len(plan.points)}] {text}: {said}", file=sys.stderr, flush=True)
        bar.update(
            task, completed=sum(done.values()), description=f"{ended}/{len(plan.points)} runs"
        )

    with bar:
        yield observe


def _named(settings: Mapping[str, Any], seed: int) -> str:
    return ", ".join([*(f"{key} = {value}" for key, value in settings.items()), f"seed {seed}"])


def _lines(result: SweepResult, failures: Sequence[str]) -> list[str]:
    """The table, what failed, and where everything is."""
    from fl_shuffle.report.formats import aligned, short
    from fl_shuffle.report.many import EACH_ALONE
    from fl_shuffle.sweeps.results import PAGE

    cells = [[_head(name) for name in result.table]]
    cells += [
        [f"{100.0 * cell:.2f}%" if _is_share(name) and cell is not None else short(cell)
         for name, cell in zip(result.table, row, strict=True)]
        for row in zip(*result.table.values(), strict=True)
    ]  # fmt: skip
    lines = aligned(cells, terminal_width(sys.stdout))
    lines += ["", f"epsilon: the largest over a combination's runs; {EACH_ALONE}"]
    lines += [f"failed: {text}" for text in failures]
    if failures:
        lines.append(f"go on with: fl-shuffle sweep --resume {shlex.quote(str(result.directory))}")
    lines.append(f"page: {result.directory / PAGE}")
    return lines


def _is_share(name: str) -> bool:
    return name in ("accuracy", "accuracy_sd")


def _head(name: str) -> str:
    return name.replace("accuracy_sd", "+-").replace("_epsilon", "")

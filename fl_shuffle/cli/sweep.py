"""`fl-shuffle sweep`: one configuration over a grid of settings and several seeds."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fl_shuffle.api import played
from fl_shuffle.configuration.reading import QUICKSTART, resolve_config
from fl_shuffle.errors import ConfigError, RunInterrupted
from fl_shuffle.report.formats import as_text
from fl_shuffle.report.many import EACH_ALONE, sweep_table
from fl_shuffle.runs.console_messages import say, tell, terminal_width
from fl_shuffle.sweeps.directory import new_sweep, reopen_sweep
from fl_shuffle.sweeps.points import Sweep, SweepPoint, parse_grid
from fl_shuffle.sweeps.results import PAGE, SweepResult
from fl_shuffle.sweeps.running import SweepEvent


def run(arguments: Namespace) -> int:
    failures: list[str] = []
    if arguments.resume:
        for name in ("config", "grid", "seeds", "set", "out"):
            if getattr(arguments, name) not in (None, [], 1):
                shown = name if name == "config" else f"--{name}"
                raise ConfigError(f"--resume DIR takes everything from DIR; leave out {shown}")
        if arguments.baselines:
            raise ConfigError("--resume DIR takes everything from DIR; leave out --baselines")
        directory, plan = reopen_sweep(Path(arguments.resume))
    else:
        base = resolve_config(arguments.config or QUICKSTART, arguments.set).to_dict()
        grid, beside = parse_grid(arguments.grid), arguments.baselines
        if beside and not arguments.quiet:
            tell("solving for the baselines' budgets")
        plan = Sweep.of(base, grid, arguments.seeds, baselines=beside)
        directory = new_sweep(plan, Path(arguments.out) if arguments.out else None)
    try:
        with _progress(plan, failures, quiet=arguments.quiet) as observe:
            result = played(directory, plan, arguments.jobs, observe)
    except KeyboardInterrupt:
        raise RunInterrupted(directory.path, "sweep") from None
    say(*_lines(result, failures))
    return 1 if failures else 0


@contextmanager
def _progress(
    plan: Sweep, failures: list[str], *, quiet: bool
) -> Iterator[Callable[[SweepEvent], None]]:
    """Show one bar over all rounds on a terminal, a line per run elsewhere; failures are
    collected."""
    console, runs = Console(stderr=True), len(plan.points)
    done: dict[str, int] = {}
    ended = 0
    # The duration of rounds may depend on private records.
    timed = all(point.config.run.entropy == "seeded" for point in plan.points)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"),
        *[TimeRemainingColumn()] * timed, console=console, disable=quiet or not console.is_terminal,
    )  # fmt: skip
    total = sum(point.config.run.rounds for point in plan.points)
    task = bar.add_task(f"0/{runs} runs", total=total)

    def observe(event: SweepEvent) -> None:
        nonlocal ended
        point, over = event.point, event.round_number is None
        done[point.name] = event.round_number or point.config.run.rounds
        ended += over
        if event.error:
            failures.append(f"{_named(point)}: {event.error}")
        if over and bar.disable and not quiet:
            said = "failed" if event.error else "was finished" if event.kept else "finished"
            print(f"[{ended}/{runs}] {_named(point)}: {said}", file=sys.stderr, flush=True)
        bar.update(task, completed=sum(done.values()), description=f"{ended}/{runs} runs")

    with bar:
        yield observe


def _named(point: SweepPoint) -> str:
    settings = [f"{key} = {value}" for key, value in point.settings.items()]
    return ", ".join([*settings, f"seed {point.config.run.seed}"])


def _lines(result: SweepResult, failures: Sequence[str]) -> list[str]:
    """Return the table, what failed, and where everything is."""
    table = sweep_table(result.table)
    lines = as_text(table, "table", terminal_width(sys.stdout)).splitlines()
    lines += ["", f"epsilon: the largest over a combination's runs; {EACH_ALONE}"]
    lines += [result.cost_together] * bool(result.cost_together)
    lines += [f"failed: {text}" for text in failures]
    if failures:
        lines.append(
            f"continue with: fl-shuffle sweep --resume {shlex.quote(str(result.directory))}"
        )
    return [*lines, f"page: {result.directory / PAGE}"]

"""`fl-shuffle simulate`: run a federation described by a TOML file."""

from __future__ import annotations

from argparse import Namespace
from itertools import takewhile
from pathlib import Path

from fl_shuffle._internal.interrupts import load
from fl_shuffle._internal.plugins import require_package
from fl_shuffle.budgets import require_readable
from fl_shuffle.cli.options import overrides, show
from fl_shuffle.cli.parsers import OF_RUN
from fl_shuffle.configuration.reading import (
    QUICKSTART,
    own_parts,
    resolve_config,
    shipped,
)
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError, DataError
from fl_shuffle.runs.console_messages import say, tell
from fl_shuffle.runs.directory import require_begun, require_free


def run(arguments: Namespace) -> int:
    if arguments.list:
        say(*_shipped())
        return 0
    if arguments.data_unchanged and not arguments.resume:
        raise ConfigError(
            "--data-unchanged needs --resume DIR; add it, or leave --data-unchanged out"
        )
    if arguments.resume and (arguments.config or arguments.out):
        raise ConfigError("--resume DIR takes its configuration from DIR; give no other")
    if arguments.resume and arguments.dry_run:
        raise ConfigError("--dry-run needs a configuration; leave out --resume")
    settings = overrides(arguments, OF_RUN)
    # Errors of a configuration are reported before PyTorch is loaded.
    config = None if arguments.resume else resolve_config(arguments.config or QUICKSTART, settings)
    _require_files(config, arguments)
    tell("" if arguments.quiet or arguments.json else "loading PyTorch and Flower")
    load("fl_shuffle.federation.launch", "fl_shuffle.trackers")
    if arguments.dry_run and config is not None:
        from fl_shuffle.cli.cost import said_of_cost, said_of_time

        (body, lines), (times, more) = said_of_cost(config), said_of_time(config)
        show(({**body, **times}, [*lines, *more]), as_json=arguments.json)
        return 0

    from fl_shuffle.api import resume, simulate
    from fl_shuffle.runs.display import make_display
    from fl_shuffle.trackers import tracking

    display = make_display(quiet=arguments.quiet, as_json=arguments.json)
    with tracking(arguments.track, also=display) as observer:
        if config is None:
            vouched: bool = arguments.data_unchanged
            result = resume(
                arguments.resume, settings=settings, data_unchanged=vouched, on_event=observer
            )
        else:
            result = simulate(config, out=arguments.out, on_event=observer)
    return int(result.summary["failed"])


def _require_files(config: Config | None, arguments: Namespace) -> None:
    """Raise what can be said without PyTorch: a folder that is taken or no run's, files and
    packages that are not there."""
    if config is None:
        require_begun(Path(arguments.resume).resolve())
        return
    if arguments.out:
        require_free(Path(arguments.out).resolve())
    if config.run.engine != "flwr":  # there Flower says where the app's packages are
        for field, path in own_parts(config).items():
            require_package(path, field=field)
    require_readable(config)
    root = config.data.root
    if config.data.source == "files" and root and not Path(root).exists():
        raise DataError(f"{root} does not exist")


def _shipped() -> list[str]:
    """Return each shipped configuration, and what it says of itself."""
    lines = []
    for name, path in shipped().items():
        text = path.read_text(encoding="utf-8").splitlines()
        said = [line[1:].strip() for line in takewhile(lambda line: line.startswith("#"), text)]
        lines += [name, f"    {' '.join(said)}"]
    return lines

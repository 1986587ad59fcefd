"""`fl-shuffle simulate`: run a federation described by a TOML file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fl_shuffle.cli.overrides import add_overrides

SUMMARY = "Run a simulated federation and account for its privacy, round by round."


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config",
        metavar="CONFIG.toml",
        nargs="?",
        help="what to run: a file, or a run's folder to run its configuration anew "
        "(default: the quickstart)",
    )
    add_overrides(parser)
    parser.add_argument("--rounds", type=int, metavar="N", help="number of rounds")
    parser.add_argument("--clients", type=int, metavar="N", help="number of clients")
    parser.add_argument(
        "--budgets", metavar="FILE.csv", help="personal budgets: client_id,epsilon,delta"
    )
    parser.add_argument("--data", metavar="DIR", help="folder that holds the data (MNIST/raw)")
    parser.add_argument(
        "--engine", metavar="NAME", help="what plays the clients: in-process (default) or ray"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of everything random")
    parser.add_argument("--jobs", type=int, metavar="N", help="worker threads (0: as many as pay)")
    parser.add_argument("--device", metavar="NAME", help="where clients compute: cpu or cuda")
    parser.add_argument("--out", metavar="DIR", help="run directory (default: runs/DATE-TIME)")
    parser.add_argument("--resume", metavar="DIR", help="go on with an unfinished run")
    parser.add_argument(
        "--data-unchanged",
        action="store_true",
        help="with --resume: vouch for the data where they cannot be compared",
    )
    parser.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="NAME",
        help="tell tensorboard, mlflow, wandb, or what your module:function returns (repeatable)",
    )
    parser.add_argument(
        "--tensorboard",
        action="append_const",
        const="tensorboard",
        dest="track",
        help="the same as --track tensorboard: a folder tensorboard/RUN here",
    )
    parser.add_argument("--quiet", action="store_true", help="print only the final summary")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object per round and a final one"
    )


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.api.configs import QUICKSTART, configured
    from fl_shuffle.errors import ConfigError
    from fl_shuffle.interrupts import load
    from fl_shuffle.simulation.progress import tell

    if arguments.data_unchanged and not arguments.resume:
        raise ConfigError("--data-unchanged goes with --resume DIR")
    if arguments.resume and (arguments.config or arguments.out):
        raise ConfigError("--resume DIR takes its configuration from DIR; give no other")
    settings = [*arguments.set, *_overrides(arguments)]
    # What is wrong with a configuration is said before PyTorch is loaded.
    config = None if arguments.resume else configured(arguments.config or QUICKSTART, settings)
    tell("" if arguments.quiet or arguments.json else "loading PyTorch and Flower")
    load("fl_shuffle.simulation.launch", "fl_shuffle.trackers")

    from fl_shuffle.api.runs import resume, simulate
    from fl_shuffle.simulation.progress import make_display
    from fl_shuffle.trackers import tracking

    display = make_display(quiet=arguments.quiet, as_json=arguments.json)
    try:
        with tracking(arguments.track, also=display) as observer:
            if config is None:
                vouched: bool = arguments.data_unchanged
                result = resume(
                    arguments.resume, settings=settings, data_unchanged=vouched, on_event=observer
                )
            else:
                result = simulate(config, out=arguments.out, on_event=observer)
    finally:
        display.close()
    return int(result.summary["failed"])


def _overrides(arguments: argparse.Namespace) -> list[str]:
    """The short options as the `section.key=value` they stand for; none may be set twice."""
    from fl_shuffle.errors import ConfigError

    data, budgets = (
        None if path is None else str(Path(path).resolve())
        for path in (arguments.data, arguments.budgets)
    )
    options = {
        "run.rounds": ("--rounds", arguments.rounds),
        "data.clients": ("--clients", arguments.clients),
        "run.seed": ("--seed", arguments.seed),
        "run.jobs": ("--jobs", arguments.jobs),
        "run.engine": ("--engine", arguments.engine),
        "run.device": ("--device", arguments.device),
        "data.root": ("--data", data),
        "budgets.file": ("--budgets", budgets),
        "budgets.distribution": ("--budgets", None if budgets is None else "file"),
    }
    given = {key: option for key, option in options.items() if option[1] is not None}
    for setting in arguments.set:
        key = setting.partition("=")[0].strip()
        if key in given:
            raise ConfigError(f"--set {setting}: {given[key][0]} says the same; drop one of them")
    return [f"{key}={json.dumps(value)}" for key, (_, value) in given.items()]

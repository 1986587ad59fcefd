"""A sweep's folder: made for one sweep, worked on by one process, readable by its owner alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from fl_shuffle._internal.durable_files import PRIVATE_FOLDER
from fl_shuffle.errors import ConfigError, RunError
from fl_shuffle.ledger import LEDGER
from fl_shuffle.ledger.reader import RunView
from fl_shuffle.runs.directory import RunDirectory
from fl_shuffle.sweeps.points import Sweep, SweepPoint

DESCRIPTION = "sweep.json"
RUNS = "runs"


def new_sweep(sweep: Sweep, out: Path | None) -> RunDirectory:
    """Return a locked folder at `out`, or below the configuration's `run.out`, named by date and
    time.

    Raises `RunError` if `out` is not empty or nothing can be made there.
    """
    below = Path(sweep.points[0].config.run.out)
    directory = RunDirectory.create(below) if out is None else RunDirectory.claim(out)
    try:
        (directory.path / RUNS).mkdir(mode=PRIVATE_FOLDER)
        directory.write(DESCRIPTION, json.dumps(asdict(sweep), indent=2))
    except OSError as error:
        directory.close()
        raise RunError(f"{directory.path} cannot be written: {error.strerror}") from None
    return directory


def reopen_sweep(path: Path) -> tuple[RunDirectory, Sweep]:
    """Return one that is there. Raises `RunError` if it is not, or another process works on it."""
    sweep = read_sweep(path)
    return RunDirectory(path), sweep


def read_sweep(path: Path) -> Sweep:
    """Return what the sweep in `path` sweeps. Raises `RunError` if there is none."""
    try:
        found = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
        seeds, beside = tuple(map(int, found["seeds"])), found.get("baselines", ())
        return Sweep(dict(found["base"]), dict(found["grid"]), seeds, tuple(map(dict, beside)))
    except FileNotFoundError:
        raise RunError(f"{path} holds no sweep: there is no {DESCRIPTION} in it") from None
    except (KeyError, TypeError) as error:
        said = f"cannot be read: it is no description of a sweep ({error})"
        raise RunError(f"{path / DESCRIPTION} {said}") from None
    except (OSError, ValueError, ConfigError) as error:
        raise RunError(f"{path / DESCRIPTION} cannot be read: {error}") from None


def run_path(sweep: Path, point: SweepPoint) -> Path:
    """Return the run directory of `point` in the sweep folder."""
    return sweep / RUNS / point.name


def state_of(path: Path) -> str:
    """Return "finished", "unfinished" (it can be resumed) or "new"."""
    if (path / LEDGER).exists():
        return "finished" if RunView(path).finished else "unfinished"
    return "new"

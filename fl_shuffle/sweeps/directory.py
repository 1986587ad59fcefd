"""A sweep's folder: made for one sweep, worked on by one process, readable by its owner alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fl_shuffle.errors import ConfigError, RunError
from fl_shuffle.runs.directory import (
    LEDGER,
    PRIVATE_FOLDER,
    discard_unused,
    locked,
    new_directory,
    open_private,
    require_free,
)
from fl_shuffle.runs.views import RunView
from fl_shuffle.sweeps.points import Point, Sweep

DESCRIPTION = "sweep.json"
RUNS = "runs"


class SweepDirectory:
    """A locked sweep folder. Build with `create` or `reopen`; `close` ends the lock."""

    def __init__(self, path: Path, sweep: Sweep, lock: int) -> None:
        self.path = path
        self.sweep = sweep
        self._lock = lock

    @classmethod
    def create(cls, sweep: Sweep, out: Path | None) -> SweepDirectory:
        """A new one at `out`, or below the configuration's `run.out`, named by date and time.

        Raises `RunError` if `out` is not empty or nothing can be made there.
        """
        if out is None:
            path = new_directory(Path(sweep.points[0].config.run.out))
        else:
            path = out.resolve()
            if (path / DESCRIPTION).exists():
                raise RunError(f"{path} already holds a sweep; choose another, or --resume it")
            require_free(path)
        _make_private(path)
        lock = locked(path)
        try:
            if (path / DESCRIPTION).exists():
                raise RunError(f"{path} already holds a sweep; choose another folder")
            written = path / f"{DESCRIPTION}.new"
            _make_private(path / RUNS)
            with open_private(written, "w") as file:
                json.dump(sweep.to_json(), file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            os.replace(written, path / DESCRIPTION)
        except RunError:
            os.close(lock)
            raise
        except OSError as error:
            os.close(lock)
            raise RunError(f"{path} cannot be written: {error.strerror}") from None
        return cls(path, sweep, lock)

    @classmethod
    def reopen(cls, path: Path) -> SweepDirectory:
        """One that is there. Raises `RunError` if it is not, or another process works on it."""
        path = path.resolve()
        sweep = read_sweep(path)
        lock = locked(path)
        try:
            _make_private(path / RUNS)
        except RunError:
            os.close(lock)
            raise
        return cls(path, sweep, lock)

    def run_path(self, point: Point) -> Path:
        """Where this point's run is, or will be."""
        return run_path(self.path, point)

    def close(self) -> None:
        """Give the folder back."""
        os.close(self._lock)


def _make_private(path: Path) -> None:
    """Make the folder its owner's alone, whatever the umask; raises `RunError`."""
    try:
        path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        path.chmod(PRIVATE_FOLDER)
    except OSError as error:
        raise RunError(f"{path} cannot be used as a folder: {error.strerror}") from None


def read_sweep(path: Path) -> Sweep:
    """What the sweep in `path` sweeps. Raises `RunError` if there is none."""
    try:
        return Sweep.from_json(json.loads((path / DESCRIPTION).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise RunError(f"{path} holds no sweep: there is no {DESCRIPTION} in it") from None
    except (OSError, ValueError, ConfigError) as error:
        raise RunError(f"{path / DESCRIPTION} cannot be read: {error}") from None


def run_path(sweep: Path, point: Point) -> Path:
    """The run directory of `point` in the sweep folder."""
    return sweep / RUNS / point.name


def state_of(path: Path) -> str:
    """ "finished", "unfinished" (it can be resumed) or "new"."""
    if (path / LEDGER).exists():
        return "finished" if RunView(path).finished else "unfinished"
    discard_unused(path)
    return "new"

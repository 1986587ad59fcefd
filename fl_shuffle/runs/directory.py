"""A run's directory: made for one run, locked while that run is open, readable by its owner alone.

A directory is created exclusively, so that runs started in the same second get one each; one that
exists is taken only if no run ever began in it, and continued only when that is asked for. The
lock is an advisory one (flock) on the file `lock` and ends with the process that holds it. A run
has begun when its ledger is there: the ledger appears whole, before anything is released. Other
whole files (configuration, summary, model) are put in place in one step each.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from fl_shuffle._internal import durable_files as files
from fl_shuffle.errors import ConfigError, RunError, require_choice
from fl_shuffle.ledger import LEDGER, METRICS
from fl_shuffle.ledger.store import WITNESS_AT

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no file locks of this kind.
    raise ConfigError(
        "fl-shuffle runs on Linux and macOS; on Windows, run it in WSL (Windows Subsystem for "
        "Linux): this system has no fcntl, which locks a run's directory"
    ) from None

CONFIG = "config.json"
MODEL = "model.safetensors"
SUMMARY = "summary.json"
LOG = "run.log"
LOCK = "lock"
USE = "used as a run directory"

log = logging.getLogger("fl_shuffle.run")
"""What the server's side says about a run, and nothing that a client says: that is published with
the run. Clients log below `fl_shuffle.client` (which records have no finite gradient, exceptions
that may quote records, how gradients are computed): it stays with the owner of the data."""


def checkpoint_name(round_number: int) -> str:
    """Return what the model after a round is called (`run.checkpoint_every`)."""
    return f"model-round-{round_number}.safetensors"


def checkpoints_in(directory: Path) -> list[int]:
    """Return the rounds after which a model was saved, in order."""
    names = (path.name for path in directory.glob("model-round-*"))
    found = (re.fullmatch(r"model-round-([1-9][0-9]{0,8})\.safetensors", name) for name in names)
    return sorted(int(each[1]) for each in found if each is not None)


RUN_DIRECTORY = "run-directory"
RESUME = "resume"
RESUMES = ("no", "yes", "data-unchanged")


@dataclass(frozen=True)
class RunPlace:
    """A run directory (None: a new one below `run.out`) and whether its run is resumed.

    `resume` is "no", "yes", or "data-unchanged": the user vouches that the data are those the run
    was started with, where that cannot be checked. A run that is there already is never gone on
    with unasked. Raises `ConfigError` for a `resume` without a directory.
    """

    directory: Path | None = None
    resume: str = "no"
    given: tuple[tuple[str, object], ...] = ()
    """What else Flower's run configuration holds."""

    def __post_init__(self) -> None:
        require_choice(RESUME, self.resume, RESUMES)
        if self.resume != "no" and self.directory is None:
            raise ConfigError(
                f"{RESUME} = {self.resume!r} needs {RUN_DIRECTORY}, the directory of the "
                "run to continue"
            )

    @property
    def goes_on(self) -> bool:
        return self.resume != "no"

    @classmethod
    def of(cls, run_config: Mapping[str, object]) -> RunPlace:
        """Read it out of Flower's run configuration. Raises `InvalidValueError` or `ConfigError`,
        in the words of `flwr run`."""
        directory = str(run_config.get(RUN_DIRECTORY, ""))
        given = tuple((k, v) for k, v in run_config.items() if k not in (RUN_DIRECTORY, RESUME))
        how = str(run_config.get(RESUME, "")) or "no"
        require_choice(f"--run-config {RESUME}", how, RESUMES)
        if how != "no" and not directory:
            raise ConfigError(
                f"--run-config {RESUME}={how!r} needs the directory of the run to continue: add "
                f"{RUN_DIRECTORY}='FOLDER' to --run-config, or leave {RESUME} out"
            )
        return cls(Path(directory) if directory else None, how, given)

    def run_config(self) -> dict[str, str]:
        """Return the place as Flower's run configuration."""
        return {RUN_DIRECTORY: str(self.directory or ""), RESUME: self.resume}

    def flwr_run(self, path: Path, *, vouched: bool) -> str:
        """Return the `flwr run` command, for a shell in the app's folder, that resumes the run in
        `path`: with everything that the run was started with, since nodes read it there."""
        how = RESUMES[2] if vouched else RESUMES[1]
        values = {**dict(self.given), RUN_DIRECTORY: str(path), RESUME: how}
        listed = [f"{key}={_toml(value)}" for key, value in values.items() if value != ""]
        return f"flwr run . --run-config {shlex.quote(' '.join(listed))}"


class RunDirectory:
    """A locked run directory, by `create`, `claim` or `at`; `close` ends the lock.

    Raises `RunError` if another process has it, or its file system knows no locks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.lock = _locked(self.path)
        """The descriptor of the file `lock`."""

    @classmethod
    def at(cls, place: RunPlace, out: Path, *, flwr: bool = False) -> RunDirectory:
        """Return the directory of a run which begins or continues there; without a named place, a
        new one below `out`. Raises `RunError` also if no run began where one is to go on; `flwr`:
        in the words of `flwr run`."""
        if place.directory is None:
            return cls.create(out)
        if not place.goes_on:
            return cls.claim(place.directory, flwr=flwr)
        require_begun(place.directory.resolve(), flwr=flwr)
        return cls(place.directory)

    @classmethod
    def create(cls, out: Path) -> RunDirectory:
        """Return a new one below `out`, named by date and time: a second run in the same second
        gets the next name. Raises `RunError` if none can be made there."""
        with files.said_in_one_line(out, USE):
            out.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = out / (stamp() if number == 1 else f"{stamp()}-{number}")
            with files.said_in_one_line(path, USE), suppress(FileExistsError):
                path.mkdir(mode=files.PRIVATE_FOLDER)
                return cls(path)
        raise AssertionError("unreachable")

    @classmethod
    def claim(cls, path: Path, *, flwr: bool = False) -> RunDirectory:
        """Return the one the user asked for, made here or still empty.

        Raises `RunError` if it is a file, not empty, in use by another process, or cannot be made.
        """
        path = path.resolve()
        require_free(path, flwr=flwr)
        with files.said_in_one_line(path, USE):
            path.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        directory = cls(path)
        try:
            # Again: another process may have been there between the first look and the lock.
            require_free(path, flwr=flwr)
            with files.said_in_one_line(path, USE):
                path.chmod(files.PRIVATE_FOLDER)
                for entry in path.iterdir():
                    if entry.name != LOCK:
                        entry.unlink()  # of a process that died before its run began
        except RunError:
            directory.close()
            raise
        return directory

    def write(self, name: str, text: str) -> None:
        """Put a whole file in its place, in one step."""
        files.replace_text(self.path / name, text)

    @contextmanager
    def logging(self, *, times: bool) -> Iterator[None]:
        """Write the messages of `fl_shuffle.run` to run.log, with times or not. Raises
        `RunError` where there can be none."""
        path = self.path / LOG
        with files.said_in_one_line(path):
            opened = files.open_private(path, "a")
        with opened as file:
            handler = logging.StreamHandler(file)
            time = "%(asctime)s " if times else ""
            handler.setFormatter(logging.Formatter(f"{time}%(levelname)s %(name)s: %(message)s"))
            before = log.level
            log.addHandler(handler)
            log.setLevel(logging.INFO)
            try:
                yield
            finally:
                log.removeHandler(handler)
                log.setLevel(before)

    def close(self) -> None:
        """Give the directory back."""
        with suppress(OSError):
            os.pwrite(self.lock, b" " * (WITNESS_AT - 1) + b"\n", 0)
        os.close(self.lock)


def _toml(value: object) -> str:
    """Return a value of Flower's run configuration as its command line reads it: TOML, but that a
    text ends at the first quote."""
    if not isinstance(value, str):
        return json.dumps(value)
    return '"' + json.dumps(value, ensure_ascii=False)[1:-1].replace('\\"', "\\u0022") + '"'


def named(option: str, path: Path, *, flwr: bool) -> str:
    """Return a run's folder as its user wrote it: by an option of `fl-shuffle`, or for `flwr
    run`."""
    return f"--run-config {RUN_DIRECTORY}={str(path)!r}" if flwr else f"{option} {path}"


def require_free(path: Path, *, flwr: bool = False) -> None:
    """Raise `RunError` unless a new run may use `path`: no run ever began there."""
    given = named("--out", path, flwr=flwr)
    with files.said_in_one_line(path, USE):
        if not path.exists():
            return
        if not path.is_dir():
            raise RunError(f"{given} is a file; name a folder")
        if (path / LEDGER).exists():
            going_on = f"add {RESUME}='yes' to continue it" if flwr else "--resume it"
            raise RunError(f"{given} already holds a run; choose another folder or {going_on}")
        if not all(_before_a_run(entry.name) for entry in path.iterdir()):
            raise RunError(f"{given} is not empty; choose a new folder")


def require_begun(path: Path, *, flwr: bool = False) -> None:
    """Raise `RunError` unless `path` holds the ledger of a run."""
    with files.said_in_one_line(path, USE):
        if (path / LEDGER).is_file():
            return
        found = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    start = f"start it without {RESUME}" if flwr else "start it with --out"
    why = f"this is not a run directory, or its run was stopped before it began: {start}"
    if {METRICS, CONFIG} & found:
        why = "only the ledger knows what the run has released; put it back"
    raise RunError(f"{named('--resume', path, flwr=flwr)}: there is no {LEDGER} in it; {why}")


def _before_a_run(name: str) -> bool:
    """Return whether a run's directory may hold this file before its ledger."""
    return name == LOCK or name.removesuffix("-journal").endswith(files.UNFINISHED)


def stamp() -> str:
    """Return the present time, as a folder's name."""
    return datetime.now().strftime("%Y%m%d-%H%M%S")


def _locked(path: Path) -> int:
    """Return the descriptor that holds the lock of this folder; closing it gives the folder
    back."""
    with files.said_in_one_line(path, USE):
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, files.OWNER_ONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise RunError(
                f"{path} is in use by {_holder(path)}; wait for it or end it, or choose another "
                "folder"
            ) from None
        raise RunError(
            f"{path} cannot be locked ({error.strerror}); choose a folder on another file system"
        ) from None
    with suppress(OSError):  # a disk that is full: who is refused then learns no number
        os.pwrite(lock, b"%*d\n" % (WITNESS_AT - 1, os.getpid()), 0)
    return lock


def _holder(path: Path) -> str:
    """Return which process has the lock, where it is written there."""
    try:
        with (path / LOCK).open(encoding="ascii") as file:
            text = file.read(WITNESS_AT).strip()
    except (OSError, ValueError):
        text = ""
    return f"process {text}" if text.isdecimal() else "another process"

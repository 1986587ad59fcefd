"""Whether a resumed run's data are those it was started with, known outside its directory.

A run directory may be published, so it holds no digest of private records: whoever knew all records
but one could try values of that one until the digest fits, and even a digest under a secret key
would say whether two runs saw the same data. The digest lies in the user's own state folder, in one
small file per unfinished run, named by the run's random identifier; it goes when the run finishes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from fl_shuffle.durable_files import PRIVATE_FOLDER, replace_text

STATE_VARIABLE = "FL_SHUFFLE_STATE"


def state_folder() -> Path:
    """`$FL_SHUFFLE_STATE`, else fl-shuffle's folder below `$XDG_STATE_HOME` or ~/.local/state."""
    named = os.environ.get(STATE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path("~/.local/state").expanduser()) / "fl-shuffle"


def remember_data(run: str, fingerprint: str) -> bool:
    """Keep the fingerprint of a run's data; False if the state folder cannot be written."""
    try:
        path = _file(run)
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        replace_text(path, fingerprint)
    except (OSError, RuntimeError):
        return False
    return True


def recall_data(run: str) -> str | None:
    """The fingerprint of a run's data, or None where this machine does not know it."""
    try:
        return _file(run).read_text(encoding="utf-8")
    except (OSError, RuntimeError, UnicodeDecodeError):
        return None


def forget_data(run: str) -> None:
    """Remove what is kept of a finished run."""
    try:
        _file(run).unlink(missing_ok=True)
    except (OSError, RuntimeError):
        return


def _file(run: str) -> Path:
    """Raises `RuntimeError` for what is no identifier of a run, or without a home folder."""
    if not re.fullmatch("[0-9a-f]{32}", run):
        raise RuntimeError(f"{run!r} is not a run's identifier")
    return state_folder() / "data" / run

"""Mistakes in a user's own app, told from clients that fail: in simulations, in the first round.

A client whose training fails reports a zero update with its noise, like any other: that it failed
may depend on its records. Where everybody fails for the same line of code a run would go on to its
end, and train on noise alone.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from threading import Lock

import flwr

from fl_shuffle.errors import ProgramError, text_of
from fl_shuffle.flower.settings import APP_ROOT

FEW = 3
"""This number of clients that fail alike, with none before them that does not, is a mistake."""
PROGRAM_FAILS = 77
"""Code of a node's error reply that tells of one; its reason says which."""
LONGEST = 400
"""Characters of it that are told."""


class FirstTrainings:
    """How the first trainings of a run in this process ended; of `clients` there are."""

    def __init__(self, clients: int) -> None:
        self._wanted = min(FEW, clients)
        self._kinds: list[str] = []
        self._over = False
        self._lock = Lock()

    def tell(self, failure: BaseException | None) -> None:
        """Note that one has ended, with an exception or (None) well.

        Raises `ProgramError`, with type, text and place, if it is the last of the first few, and
        all of them have failed alike.
        """
        if self._over:
            return
        kind, text, place = ("", "", "") if failure is None else described(failure)
        with self._lock:
            alike = bool(kind) and kind == (self._kinds or [kind])[0] and not self._over
            self._kinds.append(kind)
            self._over = not alike or len(self._kinds) == self._wanted
        if alike and self._over:
            told = f"app.client: the first {self._wanted} clients all failed alike"
            raise ProgramError(f"{told}: {text[:LONGEST]}", place[:LONGEST])


def described(failure: BaseException) -> tuple[str, str, str]:
    """Return what is the same of all who fail alike; type, text and the app's own line; and the
    same without the text, which may quote records."""
    frames = traceback.extract_tb(failure.__traceback__)
    own = [frame for frame in frames if not _of_a_library(frame.filename)]
    said = f"{type(failure).__name__}: {text_of(failure)}"
    name = type(failure).__name__
    if not own:
        return name, said, name
    last = own[-1]
    line = f"({Path(last.filename).name}, line {last.lineno}, in {last.name})"
    return f"{name} {last.filename} {last.lineno}", f"{said} {line}", f"{name} {line}"


_LIBRARIES = (str(APP_ROOT / "fl_shuffle"), str(Path(flwr.__file__).parents[1]))


def _of_a_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or "site-packages" in file

"""The state of a large model: in a file of its own, beside the ledger that names it by its digest.

Durable before the ledger names it, and removed only after the ledger durably names another one.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl_shuffle._internal.durable_files import replace_file, sync_folder
from fl_shuffle.errors import RunError
from fl_shuffle.ledger.store import STATE

MOST_IN_LEDGER = 1_000_000
"""Numbers of a state that the ledger holds itself. It writes each twice, and every round anew."""


def store_state(folder: Path, state: Mapping[str, Any]) -> bytes | str:
    """Return what the ledger is to hold: the state itself, or the SHA-256 (hex) of the file that
    does."""
    if _numbers_in(state) <= MOST_IN_LEDGER:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        return buffer.getvalue()
    path = folder / STATE
    replace_file(path, lambda unfinished: torch.save(state, unfinished))
    digest = _digest(path)
    path.replace(folder / f"{STATE}{digest}")
    sync_folder(folder)
    return digest


def load_state(folder: Path, kept: bytes | str) -> dict[str, Any]:
    """Return what was stored. Raises `RunError` for a file that is missing, or is not what it was;
    what torch raises is passed on."""
    if isinstance(kept, bytes):
        return dict(torch.load(io.BytesIO(kept), weights_only=True))
    path = folder / f"{STATE}{kept}"
    try:
        same = _digest(path) == kept
    except OSError as error:
        raise RunError(
            f"{path}: the saved state cannot be read ({error.strerror}); put the file back"
        ) from None
    if not same:
        raise RunError(f"{path}: the saved state is damaged; put an intact copy back")
    return dict(torch.load(path, weights_only=True))


def _numbers_in(state: Mapping[str, Any]) -> int:
    parts = [each if isinstance(each, tuple) else (each,) for each in state.values()]
    return sum(one.numel() for each in parts for one in each if isinstance(one, Tensor))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

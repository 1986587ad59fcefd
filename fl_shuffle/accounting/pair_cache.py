"""Certified pairs and epsilons of rounds kept on disk: a run's report, and the next run of the same
federation, read them.

They lie in `pairs` of the user's cache folder (`private_cache`). A file's name is a digest of
everything that a pair hangs on to its last digit: the round, bit for bit; the content of all
accounting code; Python, NumPy, SciPy and the machine. So what is read is what would be computed, or
is not read. Nothing of it is private: a round is described by the public plan and by how many
reports arrived.

Pairs of the quickstart and of a new app come with the package, under a digest of round and
code: the same code certified them on another machine (`scripts/generate`), so they are upper
bounds, too, and differ from this machine's in last digits at most.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from base64 import b64decode
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
import scipy

from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair
from fl_shuffle.private_cache import PrivateCache, cache_folder
from fl_shuffle.version import __version__

KEPT: Final = PrivateCache("certified pairs", ".pair", 256 << 20)
SHIPPED: Final = Path(__file__).with_name("shipped_pairs.json")


def digest_of_code(root: Path) -> str:
    """Of all Python files below `root`."""
    code = hashlib.blake2b(digest_size=32)
    for path in sorted(root.rglob("*.py")):
        code.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return code.hexdigest()


CODE: Final = digest_of_code(Path(__file__).parent)
"""The accounting that this process runs: what changes on disk later is not it."""
Kind = TypeVar("Kind")
Certified = TypeVar("Certified", DominatingPair, float)


def kept(certify: Callable[[Kind], Certified]) -> Callable[[Kind], Certified]:
    """`certify` of a round (a dataclass), a function of that alone, read from the disk if there."""

    @wraps(certify)
    def certified(kind: Kind) -> Certified:
        folder = _folder()
        shipped = None if folder is None else _shipped().get(key(kind, anywhere=True))
        found: Any = None if shipped is None else _from_bytes(b64decode(shipped))
        if found is not None:
            return cast(Certified, found)
        if folder is None or not KEPT.made(folder / "pairs"):
            return certify(kind)
        path = folder / "pairs" / (key(kind) + KEPT.suffix)
        body = KEPT.read(path)
        found = None if body is None else _from_bytes(body)
        if found is None:
            found = certify(kind)
            KEPT.write(path, _to_bytes(found))
        return cast(Certified, found)

    return certified


def _folder() -> Path | None:
    try:
        return cache_folder()
    except RuntimeError:  # nobody's home
        return None


def _shipped() -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(SHIPPED.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def key(kind: Any, *, anywhere: bool = False) -> str:
    """What a round's file is called; `anywhere`: whatever machine and libraries certified it."""
    digest = hashlib.blake2b(digest_size=32)
    round_ = {"kind": type(kind).__name__, **asdict(kind)}
    libraries = [__version__, sys.version, np.__version__, scipy.__version__]
    machine = [libraries, [platform.node(), platform.machine()]]
    for part in (round_, CODE, *([] if anywhere else machine)):
        # Floats are written with as many digits as tell them apart.
        digest.update(json.dumps(part, sort_keys=True, default=str).encode() + b"\0")
    return digest.hexdigest()


def _to_bytes(pair: DominatingPair | float) -> bytes:
    if isinstance(pair, float):
        return json.dumps({"epsilon": pair.hex()}).encode()
    head: dict[str, Any] = {"losses": len(pair.losses), "infinite": float(pair.infinite).hex()}
    head["grid"] = float(pair.grid).hex()
    arrays = (pair.losses, pair.masses)
    body = b"".join(np.ascontiguousarray(array, "<f8").tobytes() for array in arrays)
    return json.dumps(head).encode() + b"\n" + body


def _from_bytes(content: bytes | bytearray) -> DominatingPair | float | None:
    """The pair or epsilon; None if these bytes are none."""
    try:
        head, _, body = bytes(content).partition(b"\n")
        known = json.loads(head)
        if "epsilon" in known:
            epsilon = float.fromhex(known["epsilon"])
            return epsilon if epsilon >= 0.0 else None
        losses, masses = np.frombuffer(body, "<f8").reshape(2, known["losses"]).copy()
        infinite, grid = float.fromhex(known["infinite"]), float.fromhex(known["grid"])
    except (ValueError, KeyError, TypeError):
        return None
    # What a pair is, whoever wrote it: a law on increasing losses that are symmetric about zero.
    total = float(masses.sum()) + infinite
    right = (
        bool(np.all(np.diff(losses) > 0.0))
        and bool(np.array_equal(losses, -losses[::-1]))
        and bool(np.all(masses >= 0.0))
        and 0.0 <= infinite <= 1.0
        and abs(total - 1.0) < 1e-6
    )
    return DominatingPair(losses, masses, infinite, grid) if right else None

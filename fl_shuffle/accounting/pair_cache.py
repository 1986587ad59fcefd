"""Certified pairs and epsilons of rounds kept on disk: a run's report, and the next run of the same
federation, read them.

They lie in `pairs` of the user's cache folder (`private_cache`). The name of a file is a digest of
everything on which the last digit of a pair depends: the round, bit for bit; the version of the
accounting that certifies it; Python, NumPy, SciPy, and the machine. So a file that is read holds
what would be computed. Nothing in it is private: a round is described by the public plan and by how
many reports arrived.

Pairs of the quickstart and of a new app come with the package, under a digest of the round and the
version alone. The same code certified them on another machine (`scripts/generate`), so they are
upper bounds too, and differ from this machine's in the last digits at most.
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

from fl_shuffle._internal.private_cache import PrivateCache, cache_folder
from fl_shuffle.accounting.numerics.dominating_pairs import DominatingPair
from fl_shuffle.version import __version__

KEPT: Final = PrivateCache("certified pairs", ".pair", 256 << 20)
SHIPPED: Final = Path(__file__).with_name("shipped_pairs.json")


Kind = TypeVar("Kind")
Certified = TypeVar("Certified", DominatingPair, float)


def kept(
    version: int,
) -> Callable[[Callable[[Kind], Certified]], Callable[[Kind], Certified]]:
    """Return a decorator that reads the answers of a function from the disk where they are there.

    The function takes a round (a dataclass) and depends on nothing else. `version` names the code
    behind it: answers that another version wrote are not read.
    """

    def keeping(certify: Callable[[Kind], Certified]) -> Callable[[Kind], Certified]:
        @wraps(certify)
        def certified(kind: Kind) -> Certified:
            folder = _folder()
            # Without a cache folder nothing is read, the shipped pairs included: so every pair
            # can be certified anew (the environment variable of `cache_folder`).
            name = None if folder is None else key(kind, version, anywhere=True)
            shipped = None if name is None else _shipped().get(name)
            found: Any = None if shipped is None else _from_bytes(b64decode(shipped))
            if found is not None:
                return cast(Certified, found)
            if folder is None or not KEPT.made(folder / "pairs"):
                return certify(kind)
            path = folder / "pairs" / (key(kind, version) + KEPT.suffix)
            body = KEPT.read(path)
            found = None if body is None else _from_bytes(body)
            if found is None:
                # A damaged file reads as None, and its pair is certified again.
                found = certify(kind)
                KEPT.write(path, _to_bytes(found))
            return cast(Certified, found)

        return certified

    return keeping


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


def key(kind: Any, version: int, *, anywhere: bool = False) -> str:
    """Return the name of a round's file; `anywhere`: for all machines and libraries alike."""
    digest = hashlib.blake2b(digest_size=32)
    round_ = {"kind": type(kind).__name__, **asdict(kind)}
    libraries = [__version__, sys.version, np.__version__, scipy.__version__]
    # Last digits depend on the compiled libraries and on the processor: another machine's file
    # has another name.
    machine = [libraries, [platform.node(), platform.machine()]]
    for part in (round_, version, *([] if anywhere else machine)):
        # Floats are written with as many digits as tell them apart.
        digest.update(json.dumps(part, sort_keys=True, default=str).encode() + b"\0")
    return digest.hexdigest()


def _to_bytes(pair: DominatingPair | float) -> bytes:
    if isinstance(pair, float):
        return json.dumps({"epsilon": pair.hex()}).encode()
    head: dict[str, Any] = {"losses": len(pair.losses), "infinite": float(pair.infinite).hex()}
    # Hexadecimal digits and little-endian doubles: what is read is bit for bit what was written.
    head["grid"] = float(pair.grid).hex()
    arrays = (pair.losses, pair.masses)
    body = b"".join(np.ascontiguousarray(array, "<f8").tobytes() for array in arrays)
    return json.dumps(head).encode() + b"\n" + body


def _from_bytes(content: bytes | bytearray) -> DominatingPair | float | None:
    """Return the pair or epsilon; None if these bytes are none."""
    try:
        head, _, body = bytes(content).partition(b"\n")
        known = json.loads(head)
        if "epsilon" in known:
            epsilon = float.fromhex(known["epsilon"])
            # Also refuses NaN.
            return epsilon if epsilon >= 0.0 else None
        losses, masses = np.frombuffer(body, "<f8").reshape(2, known["losses"]).copy()
        infinite, grid = float.fromhex(known["infinite"]), float.fromhex(known["grid"])
    except (ValueError, KeyError, TypeError):
        return None
    # Any writer's pair must be this: a distribution on increasing losses, symmetric about zero.
    total = float(masses.sum()) + infinite
    right = (
        bool(np.all(np.diff(losses) > 0.0))
        and bool(np.array_equal(losses, -losses[::-1]))
        and bool(np.all(masses >= 0.0))
        and 0.0 <= infinite <= 1.0
        and abs(total - 1.0) < 1e-6
    )
    return DominatingPair(losses, masses, infinite, grid) if right else None

"""One seed tree: run -> round -> client -> purpose.

Every random draw of a run comes from a key derived here, so results depend on the seed and on
names alone: never on arrival order, packing, threads, process or platform.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np

from fl_shuffle.errors import InvalidValueError, require_integer

KEY_BYTES = 32
"""256 bits: the digest of BLAKE2b, and more than anybody can guess of a root."""
_SEED_LIMIT = 2**128
"""A seed is hashed as 16 bytes."""
# Personalisation strings (16 bytes at most) keep the uses of one path apart.
_ROOT = b"fl-shuffle root"
_NODE = b"fl-shuffle node"
_CHILD = b"fl-shuffle child"
_NUMPY = b"fl-shuffle numpy"


class SeedTree:
    """Keys derived from one seed by keyed BLAKE2b, one per path.

    `seed` is a whole number in [0, 2^128): the run is reproducible, and anybody who knows the seed
    can remove the noise, so a seed belongs in simulation only. `seed=None` draws a 256-bit root
    from the operating system, which is never shown; it travels with the object when it is pickled
    to a worker process.

    A path is any sequence of non-negative integers and strings, by custom
    (round, purpose) or (round, client, purpose). Distinct paths give independent keys (BLAKE2b as a
    pseudo-random function); `(1, "a")`, `("1", "a")` and `("1a",)` are distinct.

    >>> SeedTree(7).key(3, "noise") == SeedTree(7).key(3, "noise")
    True
    >>> SeedTree(7).key(3, "noise") == SeedTree(7).key(4, "noise")
    False
    """

    __slots__ = ("_root", "seed")

    def __init__(self, seed: int | None) -> None:
        self.seed = (
            None
            if seed is None
            else require_integer("seed", seed, minimum=0, maximum=_SEED_LIMIT - 1)
        )
        self._root = (
            os.urandom(KEY_BYTES)
            if self.seed is None
            else _blake2b(self.seed.to_bytes(16, "big"), person=_ROOT)
        )

    def __repr__(self) -> str:
        return f"SeedTree(seed={self.seed})"

    def key(self, *path: int | str) -> bytes:
        """Return the 256-bit key of `path`. Raises `InvalidValueError` on an empty or ill-typed
        path."""
        return self._derive(_NODE, path)

    def _derive(self, use: bytes, path: tuple[int | str, ...]) -> bytes:
        if not path:
            raise InvalidValueError("path", path, "must name at least one step")
        return _blake2b(b"".join(map(_encode, path)), key=self._root, person=use)

    def child(self, *path: int | str) -> SeedTree:
        """Return the subtree below `path`; its keys are independent of this tree's own."""
        tree = SeedTree.__new__(SeedTree)
        tree.seed = self.seed
        tree._root = self._derive(_CHILD, path)
        return tree

    def numpy_generator(self, *path: int | str) -> np.random.Generator:
        """Return a fresh PCG64 generator seeded by the 256-bit key of `path`."""
        entropy = int.from_bytes(self._derive(_NUMPY, path), "big")
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def _blake2b(data: bytes, *, person: bytes, key: bytes = b"") -> bytes:
    return hashlib.blake2b(data, digest_size=KEY_BYTES, key=key, person=person).digest()


def _encode(step: int | str) -> bytes:
    """Return prefix-free bytes of one step: a type tag, a length, the value."""
    if isinstance(step, str):
        body = step.encode()
        return b"s" + len(body).to_bytes(8, "big") + body
    number = require_integer("path", step, minimum=0)
    body = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return b"i" + len(body).to_bytes(8, "big") + body

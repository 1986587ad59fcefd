"""The seed tree: deterministic, one key per name, secret when the system seeds it."""

from __future__ import annotations

import hashlib
import pickle

import pytest

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.seeds import SeedTree


def test_key_follows_its_written_derivation() -> None:
    root = hashlib.blake2b((7).to_bytes(16, "big"), digest_size=32, person=b"fl-shuffle root")
    path = b"i" + (1).to_bytes(8, "big") + b"\x03" + b"s" + (5).to_bytes(8, "big") + b"noise"
    node = hashlib.blake2b(path, digest_size=32, key=root.digest(), person=b"fl-shuffle node")
    assert SeedTree(7).key(3, "noise") == node.digest()


def test_paths_that_concatenate_alike_differ() -> None:
    tree = SeedTree(0)
    keys = {
        tree.key("ab"), tree.key("a", "b"), tree.key(1, 2), tree.key(12), tree.key("1", "2"),
        tree.key(0), tree.key(""), tree.key(0, 0), tree.child("a").key("b"),
    }  # fmt: skip
    assert len(keys) == 9


def test_operating_system_entropy_is_fresh_hidden_and_picklable() -> None:
    first, second = SeedTree(None), SeedTree(None)
    assert first.key(0) != second.key(0)
    assert repr(first) == "SeedTree(seed=None)"
    assert pickle.loads(pickle.dumps(first)).key(4, "a") == first.key(4, "a")


def test_bad_seeds_and_paths() -> None:
    for seed in (-1, 2**128, 1.0, float("nan"), "7", True):
        with pytest.raises(InvalidValueError, match="seed"):
            SeedTree(seed)  # type: ignore[arg-type]
    for path in ((), (-1,), (1.5,), (None,), (True,)):
        with pytest.raises(InvalidValueError, match="path"):
            SeedTree(0).key(*path)

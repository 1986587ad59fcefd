"""The seed tree: deterministic, one key per name, secret when the system seeds it."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.randomizers.seeds import SeedTree


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


def test_a_key_tells_nothing_of_the_tree_below_its_path() -> None:
    """Nor of the generator at that path: each use has keys of its own."""
    tree, path = SeedTree(3), b"s" + (1).to_bytes(8, "big") + b"b"
    for person in (b"fl-shuffle node", b"fl-shuffle child", b"fl-shuffle numpy"):
        known = hashlib.blake2b(path, digest_size=32, key=tree.key("a"), person=person).digest()
        assert known not in (tree.child("a").key("b"), tree.key("a", "b"), tree.key("b"))
    draws = np.random.SeedSequence(int.from_bytes(tree.key("a"), "big"))
    mine = np.random.Generator(np.random.PCG64(draws)).random(4)
    assert not np.array_equal(mine, tree.numpy_generator("a").random(4))


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

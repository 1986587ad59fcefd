"""Certified pairs on disk: the same to the last digit, private, and never trusted blindly."""

from __future__ import annotations

import json
import os
import shutil
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ship_pairs import certified
from fl_shuffle._internal import private_cache
from fl_shuffle._internal.private_cache import CACHE_VARIABLE, cache_folder
from fl_shuffle.accounting import pair_cache
from fl_shuffle.accounting.bounds import VERSION
from fl_shuffle.accounting.client_classes import DeclaredRound, ShuffledRound
from fl_shuffle.accounting.numerics.dominating_pairs import DominatingPair
from fl_shuffle.accounting.rounds import round_library
from fl_shuffle.accounting.rounds.round_library import RoundLibrary

KIND = ShuffledRound("gaussian", 6.0, 1.0, 2.0, ((1.0, 59),))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(private_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "pairs"


def ask(
    kind: object = KIND, times: int = 1, delta: float = 0.25, version: int = VERSION
) -> DominatingPair:
    """Return the pair of a round, a small one; it must be certified `times` times."""
    asked = []

    def certified(kind: object) -> DominatingPair:
        asked.append(kind)
        return DominatingPair.from_curve([0.0, 0.1], [delta, 0.1], grid=0.1)

    pair = pair_cache.kept(version)(certified)(kind)
    assert len(asked) == times
    return pair


def same(first: DominatingPair | None, second: DominatingPair | None) -> bool:
    assert first is not None and second is not None
    return pair_cache._to_bytes(first) == pair_cache._to_bytes(second)


def test_a_run_reads_what_the_last_one_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    first = RoundLibrary().epsilon({KIND: 3}, 1e-6)
    pair = RoundLibrary().pair(KIND)
    again = RoundLibrary()
    with monkeypatch.context() as patch:
        patch.setattr(round_library, "shuffled_pair", lambda *_, **__: 1 / 0)
        assert same(pair, again.pair(KIND))
        assert again.epsilon({KIND: 3}, 1e-6) == first
    monkeypatch.setenv(private_cache.CACHE_VARIABLE, "off")
    assert same(pair, RoundLibrary().pair(KIND))


def test_another_round_or_version_has_another_file() -> None:
    others = [replace(KIND, scale=float(np.nextafter(6.0, 7.0))), replace(KIND, noise="laplace")]
    declared = [DeclaredRound(1.0, delta0, 59) for delta0 in (0.0, 1e-9)]
    keys = [pair_cache.key(kind, VERSION) for kind in (KIND, *others, *declared)]
    keys.append(pair_cache.key(KIND, VERSION + 1))
    keys += [pair_cache.key(KIND, version, anywhere=True) for version in (VERSION, VERSION + 1)]
    assert len(set(keys)) == len(keys)


def test_pair_of_another_version_is_not_read(folder: Path) -> None:
    ask()
    ask(times=0)
    ask(times=1, version=VERSION + 1)
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    "damage",
    ["cut", "bit", "empty", "group writes", "others write", "link", "another's", "pipe", "folder"],
)
def test_a_damaged_or_foreign_file_is_not_trusted(damage: str, folder: Path) -> None:
    right = ask()
    [file] = folder.iterdir()
    content = bytearray(file.read_bytes())
    if damage.endswith(("writes", "write")):
        file.chmod(0o620 if damage == "group writes" else 0o602)
    elif damage == "link":
        file.rename(folder / "elsewhere")
        file.symlink_to(folder / "elsewhere")
    elif damage == "another's":
        # The whole file of another round, under this one's name.
        other = DeclaredRound(1.0, 0.0, 59)
        ask(other, delta=0.125)
        (folder / (pair_cache.key(other, VERSION) + ".pair")).replace(file)
    elif damage in ("pipe", "folder"):
        file.unlink()
        (os.mkfifo if damage == "pipe" else os.mkdir)(file)
    else:
        changed = {"cut": content[:-8], "empty": b""}.get(damage, content)
        if damage == "bit":
            content[-1] ^= 1
        file.write_bytes(changed)
    assert same(ask(times=1), right)
    if damage != "folder":
        assert same(ask(times=0), right)


def test_a_shipped_pair_is_read_for_this_version_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, name = ask(delta=0.125), pair_cache.key(KIND, VERSION, anywhere=True)
    shutil.rmtree(folder)
    shipped = tmp_path / "shipped.json"
    monkeypatch.setattr(pair_cache, "SHIPPED", shipped)
    whole = b64encode(pair_cache._to_bytes(pair)).decode()
    for text, times in ((whole, 0), (whole[:-64], 1), ("", 1)):
        shipped.write_text(json.dumps({name: text}))
        assert same(ask(times=times), pair) == (times == 0)
        assert folder.exists() == (times == 1)
        shutil.rmtree(folder, ignore_errors=True)
    shipped.write_text(json.dumps({name: whole}))
    ask(times=1, version=VERSION + 1)
    monkeypatch.setenv(private_cache.CACHE_VARIABLE, "off")
    ask(times=1)


@pytest.mark.slow
def test_the_shipped_pairs_are_what_is_certified() -> None:
    shipped, here = pair_cache._shipped(), certified()
    assert shipped.keys() == here.keys(), "the accounting has changed: run scripts/generate"
    for name, pair in here.items():
        read = pair_cache._from_bytes(b64decode(shipped[name]))
        if isinstance(pair, float):
            assert read == pytest.approx(pair, rel=1e-9)
            continue
        assert isinstance(read, DominatingPair) and read.grid == pair.grid
        assert np.allclose(read.losses, pair.losses, rtol=1e-12, atol=0.0)
        assert np.allclose(read.masses, pair.masses, rtol=1e-9, atol=1e-15)
        assert read.infinite == pytest.approx(pair.infinite, rel=1e-9, abs=1e-15)


def test_where_things_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative XDG folder counts as unset, as its specification says."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    at_home = tmp_path / "home" / ".cache" / "fl-shuffle"
    for named, xdg, wanted in (
        (None, None, at_home),
        ("", "", at_home),
        (None, "here", at_home),
        (None, "./here", at_home),
        (None, str(tmp_path / "x"), tmp_path / "x" / "fl-shuffle"),
        (str(tmp_path / "own"), str(tmp_path / "x"), tmp_path / "own"),
        ("off", str(tmp_path / "x"), None),
    ):
        for name, value in ((CACHE_VARIABLE, named), ("XDG_CACHE_HOME", xdg)):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        assert cache_folder() == wanted

"""Everything that is written outside of a ledger: whole or not at all, its owner's alone, read back
as it was, and with nothing left beside it."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from pytest import MonkeyPatch, approx

from fl_shuffle._internal.durable_files import UNFINISHED, replace_text
from fl_shuffle.accounting import pair_cache
from fl_shuffle.accounting.client_classes import ClientClass, LocalMechanism
from fl_shuffle.accounting.numerics.dominating_pairs import DominatingPair
from fl_shuffle.data.features import cache as features
from fl_shuffle.flower.client_record import ClientRecord
from fl_shuffle.ledger import state_file
from fl_shuffle.report.draw import write_picture
from fl_shuffle.report.figures import Figure, PlotLine
from fl_shuffle.report.formats import make_folder, write_table, write_text
from fl_shuffle.runs import resume
from fl_shuffle.runs.directory import RunDirectory
from fl_shuffle.shuffler.remote.agreement import Agreement
from fl_shuffle.shuffler.remote.credentials import Pass, Settings, read_key, write_key
from fl_shuffle.shuffler.remote.store import Store

VALUES = (1.25, -7.5)
RUN = "5a" * 16


class Kind(NamedTuple):
    """How a file of one kind is written, for a number, and how that number is read again."""

    write: Callable[[Path, float], object]
    read: Callable[[Path], float]
    whole: bool = True
    """Whether a write that fails leaves what was there."""


def only(folder: Path) -> Path:
    (found,) = (path for path in folder.rglob("*") if path.is_file())
    return found


def table(number: float) -> dict[str, Any]:
    return {"x": np.array([0.5, np.nan, number]), "of": np.array(["a", "b", "c, d"])}


def read_csv(folder: Path) -> float:
    text = only(folder).read_text()
    assert text.endswith("\n") and not text.endswith("\n\n")
    *_, last = csv.DictReader(text.splitlines())
    assert last["of"] == "c, d"
    return float(last["x"])


def read_json(folder: Path) -> float:
    first, second, last = json.loads(only(folder).read_text())
    assert (first["x"], second["x"], last["of"]) == (0.5, None, "c, d")
    return float(last["x"])


def read_parquet(folder: Path) -> float:
    parquet = pytest.importorskip("pyarrow.parquet")
    found = parquet.read_table(only(folder)).to_pydict()
    assert found["of"] == ["a", "b", "c, d"]
    return float(found["x"][-1])


def settings(number: float) -> Settings:
    return Settings("here:9443", 7, 3, 1 << 20, certificate=f"{number}", sites=("a", "b"))


def read_settings(folder: Path) -> float:
    found = Settings.read(only(folder), "settings")
    assert (found.clients, found.min_reports, found.largest_report) == (7, 3, 1 << 20)
    assert (found.address, list(found.sites)) == ("here:9443", ["a", "b"])
    return float(found.certificate)


def site_pass(number: float) -> Pass:
    return Pass("here:9443", f"{number}", "ab" * 32, "cd" * 32)


def read_pass(folder: Path) -> float:
    found = Pass.read(only(folder), "site")
    assert (found.token, found.key) == ("ab" * 32, "cd" * 32)
    return float(found.certificate)


def write_key_of(folder: Path, number: float) -> None:
    write_key(folder / "key", np.full(4, number).tobytes())


def write_state(folder: Path, number: float) -> None:
    """A state that is too large for the ledger (all its parts together are), and the digest by
    which that names it."""
    tensors = {"theta": torch.full((12,), number), "moments": (torch.zeros(3), torch.ones(3))}
    with MonkeyPatch.context() as patch:
        patch.setattr(state_file, "MOST_IN_LEDGER", 16)
        named = state_file.store_state(folder, {**tensors, "steps": torch.tensor(3.0)})
    for path in folder.iterdir():
        if not path.name.endswith(str(named)):
            path.unlink()


def read_state(folder: Path) -> float:
    path = only(folder)
    found = state_file.load_state(folder, path.name[-64:])
    assert found["moments"][1].tolist() == [1.0] * 3 and float(found["steps"]) == 3.0
    assert found["theta"].unique().numel() == 1
    return float(found["theta"][-1])


def write_features(folder: Path, number: float) -> None:
    assert features.KEPT.made(folder)
    vectors = np.array([[0.0, 1.0], [2.0, number]], np.float32)
    features.KEPT.write(folder / "x.features", vectors.tobytes())


def read_features(folder: Path) -> float:
    path = folder / "x.features"
    assert features._read(path, (2, 3)) is None and features._read(path, (1, 2)) is None
    found = features._read(path, (2, 2))
    assert found is not None and found[:, 0].tolist() == [0.0, 2.0]
    return float(found[-1, -1])


def pair(number: float) -> DominatingPair:
    loss = abs(number)
    return DominatingPair(np.array([-loss, loss]), np.array([0.25, 0.5]), 0.25, loss)


def write_pair(folder: Path, number: float) -> None:
    """As the next run of the same federation finds it: certified once, whatever is asked."""
    certify = pair_cache.kept(1)(lambda law: pair(law.exposure))
    with MonkeyPatch.context() as patch:
        patch.setenv("FL_SHUFFLE_CACHE", str(folder))
        patch.setattr(pair_cache, "key", lambda kind, version, anywhere=False: "name")
        if (folder / "pairs").exists():
            patch.setattr(pair_cache.KEPT, "read", lambda path: None)
        certify(LocalMechanism("gaussian", number, 0.0))


def read_pair(folder: Path) -> float:
    body = pair_cache.KEPT.read(only(folder))
    found = None if body is None else pair_cache._from_bytes(body)
    assert isinstance(found, DominatingPair) and found.infinite == 0.25
    assert found.masses.tolist() == [0.25, 0.5] and found.losses[0] == -found.losses[1]
    return next(value for value in VALUES if abs(value) == found.losses[-1] == found.grid)


def write_fingerprint(folder: Path, number: float) -> None:
    with MonkeyPatch.context() as patch:
        patch.setenv(resume.STATE_VARIABLE, str(folder))
        resume.remember_data(RUN, f"{number}")


def read_fingerprint(folder: Path) -> float:
    with MonkeyPatch.context() as patch:
        patch.setenv(resume.STATE_VARIABLE, str(folder))
        return float(resume.recall_data(RUN) or "nan")


def write_run_file(folder: Path, number: float) -> None:
    there = (folder / "config.json").exists()
    with closing(RunDirectory(folder) if there else RunDirectory.claim(folder)) as run:
        run.write("config.json", json.dumps({"x": number}))


def read_run_file(folder: Path) -> float:
    return float(json.loads((folder / "config.json").read_text())["x"])


def write_record(folder: Path, number: float) -> None:
    """A site's record of what its clients have sent: rounds add up."""
    kind = ClientClass("laplace", 1.0 / abs(number), 1.0, 1.0, 9.0, 0.0, 1)
    sent = ClientRecord(folder / "r.sqlite", 100.0, 1e-5).debit(
        f"{number}", 1, np.array([4]), [kind]
    )
    assert sent.all()


def read_record(folder: Path) -> float:
    with closing(sqlite3.connect(folder / "r.sqlite")) as database:
        rows = database.execute("SELECT run, round, client, epsilon FROM sent").fetchall()
    assert [(int(number), client) for _, number, client, _ in rows] == [(1, 4)] * len(rows)
    assert {float(run) for run, *_ in rows} == set(VALUES[: len(rows)])
    assert all(epsilon == approx(abs(float(run))) for run, *_, epsilon in rows)
    return VALUES[len(rows) - 1]


def write_store(folder: Path, number: float) -> None:
    facts = Agreement(RUN, "reports", 6, 4, 2, -10, 1 << 20)
    with closing(Store.open(folder)) as store:
        store.begin(facts, 1 + VALUES.index(number), np.ones(6, dtype=bool))


def read_store(folder: Path) -> float:
    facts = Agreement(RUN, "reports", 6, 4, 2, -10, 1 << 20)
    with closing(Store.open(folder)) as store:
        begun = [store.state_of(facts, number)[0] is not None for number in (1, 2, 3)]
    assert any(begun) and not begun[2]
    return VALUES[begun[1]]


def picture(form: str) -> Kind:
    def write(folder: Path, number: float) -> None:
        points = np.array([1.0, 2.0]), np.array([0.5, number])
        lines = [PlotLine.of("shuffled", "a line", *points)]
        write_picture(Figure("x", "round", "epsilon", lines), folder / f"x.{form}")

    def read(folder: Path) -> float:
        head = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[form]
        end = {"png": b"IEND\xaeB`\x82", "svg": b"</svg>\n", "pdf": b"%%EOF\n"}[form]
        content = only(folder).read_bytes()
        assert content.startswith(head) and content.endswith(end)
        return float("nan")

    return Kind(write, read, whole=False)


KINDS = {
    "text": Kind(
        lambda folder, number: replace_text(folder / "x", f"é\n{number}"),
        lambda folder: float(only(folder).read_text(encoding="utf-8").splitlines()[1]),
    ),
    "page": Kind(
        lambda folder, number: write_text(f"é\r\n{number}", folder / "x.html"),
        lambda folder: float(only(folder).read_bytes().decode().split("\r\n")[1]),
        whole=False,
    ),
    "csv": Kind(
        lambda at, number: write_table(table(number), at / "x.csv", "csv"), read_csv, False
    ),
    "json": Kind(
        lambda at, number: write_table(table(number), at / "x.json", "json"), read_json, False
    ),
    "parquet": Kind(
        lambda at, number: write_table(table(number), at / "x.parquet", "parquet"), read_parquet
    ),
    "settings": Kind(lambda at, own: settings(own).write(at / "x", "settings"), read_settings),
    "pass": Kind(lambda at, number: site_pass(number).write(at / "x", "site"), read_pass),
    "key": Kind(
        write_key_of,
        lambda folder: float(np.frombuffer(read_key(only(folder), private=True), float)[-1]),
    ),
    "state": Kind(write_state, read_state),
    "features": Kind(write_features, read_features),
    "pair": Kind(write_pair, read_pair),
    "fingerprint": Kind(write_fingerprint, read_fingerprint),
    "run": Kind(write_run_file, read_run_file),
    "record": Kind(write_record, read_record, whole=False),
    "store": Kind(write_store, read_store, whole=False),
    **{form: picture(form) for form in ("png", "svg")},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _anybody_may_read() -> Iterator[None]:
    """Files are private because they are made so, not because of the user's umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def require_private(folder: Path) -> None:
    for path in folder.rglob("*"):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
        assert UNFINISHED not in path.name and ".new-" not in path.name, path
        assert not path.name.endswith(("-wal", "-shm")), path


@pytest.mark.parametrize("name", KINDS)
def test_what_is_written_is_private_and_reads_back(name: str, tmp_path: Path) -> None:
    kind, folder = KINDS[name], tmp_path / "a" / "b"
    make_folder(folder)
    for number in VALUES:
        kind.write(folder, number)
        require_private(tmp_path / "a" / "b")
        assert kind.read(folder) == number or name in ("png", "svg")


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.whole])
@pytest.mark.parametrize("place", ["replace", "fsync", "write"])
def test_a_write_that_fails_leaves_what_was_there(
    name: str, place: str, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """Wherever it fails: while bytes are written, made durable, or put in place."""
    kind, folder = KINDS[name], tmp_path / "x"
    make_folder(folder)
    kind.write(folder, VALUES[0])
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    failed = []

    def fail(*_: object, **__: object) -> None:
        failed.append(place)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if place == "write":
            patch.setattr(Path, "write_text", fail)
            patch.setattr(torch, "save", fail)
            patch.setattr("fl_shuffle._internal.private_cache._digest", fail)
            if name == "parquet":
                patch.setattr("pyarrow.parquet.write_table", fail)
        else:
            patch.setattr(os, place, fail)
        try:
            kind.write(folder, VALUES[1])
        except Exception as error:
            assert "No space left" in str(error)
    kept = name in ("features", "pair")
    assert failed or (kept and place == "fsync")
    if failed:
        after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert after == before and kind.read(folder) == VALUES[0]
        require_private(folder)

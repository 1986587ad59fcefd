"""What a run directory says beside the model: the same for neighbouring data sets, to the byte."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clients.app
from fl_shuffle.cli import main
from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data import Records
from fl_shuffle.data.sources import load_records
from fl_shuffle.data.task import forget_data
from fl_shuffle.errors import DataError
from fl_shuffle.flower.messages import Layout, TrainRequest
from fl_shuffle.ledger import writer
from fl_shuffle.report.record import read_run
from tests.one_node import nodes
from tests.small_federation import Launch, summary

CLIENTS, EACH, CLASSES = 6, 5, 4
RANDOM = {"run", "started", "finished"}
FROM_THE_MODEL = {"accuracy", "loss"}
OWN = (
    f"data.source={__name__}:source", f"data.clients={CLIENTS}", "data.features=none",
    "privacy.unit=record",
)  # fmt: skip

held: dict[str, Any] = {}


def records() -> tuple[np.ndarray, np.ndarray]:
    images = np.random.Generator(np.random.Philox(3)).standard_normal((CLIENTS * EACH, 7))
    return images.astype(np.float32), np.arange(len(images)) % (CLASSES - 1)


def source(section: DataSection) -> Records:
    """No record of the last class; the first record as the test wants it."""
    images, labels = records()
    images[0] = held.get("image", images[0])
    labels[0] = held.get("label", labels[0])
    return Records(images, labels, images[5:9].copy(), labels[5:9].copy(), CLASSES)


def published(run: Path, *, seeded: bool = True) -> dict[str, Any]:
    """Every file but the model; what is computed from the model, times and the random identifier
    left out, and in the ledger the checkpoint, which is a model."""
    found: dict[str, Any] = {}
    for path in sorted(run.iterdir()):
        text = path.name
        if path.name == "ledger.sqlite":
            with sqlite3.connect(path) as db:
                dump = [line for line in db.iterdump() if '"checkpoint"' not in line]
            found["ledger"] = [_without_the_model(line, seeded) for line in dump]
        elif path.name == "metrics.csv":
            rows = list(csv.DictReader(io.StringIO(path.read_text())))
            found[text] = [
                {k: v for k, v in row.items() if k not in FROM_THE_MODEL
                 and not (seeded and k == "seconds")}
                for row in rows
            ]  # fmt: skip
        elif path.name == "summary.json":
            values = summary(run)
            for key in (*FROM_THE_MODEL, "run_directory"):
                values.pop(key)
            if seeded:
                values.pop("seconds"), values.pop("accounting_seconds")
            found[text] = values
        elif path.name == "run.log" and seeded:
            found[text] = re.sub(r"(?m)^[-0-9]+ [0-9:,]+ ", "", path.read_text())
        elif path.name != "model.safetensors":
            found[text] = path.read_bytes()
    return found


def _without_the_model(line: str, seeded: bool) -> str:
    """A line of the ledger: no number of a metric, no random identifier, and no time of a seeded
    run."""
    if re.search(f"VALUES\\('({'|'.join(RANDOM)})',", line):
        return ""
    if any(f",'{name}'," in line for name in FROM_THE_MODEL) and 'INTO "metrics"' in line:
        return re.sub(r",[^,]+\);$", ");", line)
    if seeded and "VALUES('outcome'," in line:
        return re.sub(r'"(accounting_)?seconds": ?[0-9.e+-]+', "", line)
    if seeded and 'INTO "rounds"' in line:
        return re.sub(r",[0-9.e+-]+\)(;?)$", r")\1", line)
    return line


def play(launch: Launch, name: str, *settings: str, **first: object) -> None:
    """Run with the first record so changed."""
    held.clear()
    held.update(first)
    forget_data()
    assert launch(name, *OWN, *settings) == 0


class Talking(torch.nn.Linear):
    """Tells of records in every way it can, and raises on one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in ("fl_shuffle", "fl_shuffle.client", "fl_shuffle.gradients.general", "mine"):
            logging.getLogger(name).error("record 17 is odd")
        print("record 17 is odd")
        if bool((x == 99.0).any()):
            raise ValueError("record 17 is odd")
        return super().forward(x)


def talking(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return Talking(shape[0], classes)


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ((), {"image": np.nan}),
        ((), {"label": CLASSES - 1}),
        (("run.entropy=system",), {"image": 1e30, "label": -1}),
        ((f"model.kind={__name__}:talking", "run.jobs=1"), {"image": 99.0}),
        ((f"model.kind={__name__}:talking", "run.jobs=1", "privacy.unit=client"), {"image": 99.0}),
    ],
    ids=["nan", "the class nobody has", "huge, and no class", "raises", "raises, in an update"],
)
def test_a_record_changes_nothing_but_the_model(
    settings: tuple[str, ...], first: dict[str, object], launch: Launch, tmp_path: Path
) -> None:
    """What clients say is not published, nor a digest of the records; of them sizes and shapes."""
    for name, values in (("a", {}), ("b", first)):
        play(launch, name, *settings, **values)
    seeded = "run.entropy=system" not in settings
    ours, theirs = (published(tmp_path / name, seeded=seeded) for name in "ab")
    assert set(ours) == {"config.json", "ledger", "lock", "metrics.csv", "run.log", "summary.json"}
    assert ours == theirs
    rows = csv.DictReader((tmp_path / "b" / "metrics.csv").open())
    assert {row["n_reports"] for row in rows} == {str(CLIENTS)}
    digest = source(DataSection()).fingerprint().encode()
    for path in (tmp_path / "b").iterdir():
        assert b"is odd" not in path.read_bytes() and digest not in path.read_bytes()
    with sqlite3.connect(tmp_path / "b" / "ledger.sqlite") as db:
        [(facts,)] = db.execute("SELECT value FROM meta WHERE key = 'data'")
    assert json.loads(facts) == {
        "source": f"{__name__}:source", "records": CLIENTS * EACH, "shape": [7],
        "classes": CLASSES, "test_records": 4, "held_out": 0,
    }  # fmt: skip


def test_a_real_run_writes_no_times(launch: Launch, tmp_path: Path) -> None:
    assert launch("run", "run.entropy=system") == 0
    run = tmp_path / "run"
    with sqlite3.connect(run / "ledger.sqlite") as db:
        assert db.execute("SELECT seconds FROM rounds").fetchall() == [(None,)] * 3
        meta = {key: json.loads(value) for key, value in db.execute("SELECT * FROM meta")}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", meta["started"]) and meta["finished"] is None
    assert {row["seconds"] for row in csv.DictReader((run / "metrics.csv").open())} == {""}
    final = summary(run)
    assert final["seconds"] is None and final["accounting_seconds"] is None
    assert not re.search(r"\d\d:\d\d", (run / "run.log").read_text())
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert f"started on {meta['started']}, finished<" in page


def test_the_ledger_does_not_tell_when_checkpoints_were_written(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow run writes more of them than a fast one."""
    pages = []
    for seconds in (0.0, 1e9):
        monkeypatch.setattr(writer, "CHECKPOINT_SECONDS", seconds)
        name = f"every {seconds:g} s"
        assert launch(name) == 0
        with sqlite3.connect(tmp_path / name / "ledger.sqlite") as db:
            [(free,)] = db.execute("PRAGMA freelist_count")
            pages += db.execute("PRAGMA page_count").fetchall()
        assert free == 0
    assert pages[0] == pages[1]


@pytest.mark.parametrize(("partition", "by_label"), [("iid", False), ("dirichlet", True)])
def test_the_relation_says_when_labels_deal_the_records(
    partition: str, by_label: bool, launch: Launch, tmp_path: Path
) -> None:
    assert launch("run", f"data.partition={partition}") == 0
    relation = "replace-one" + " after the partition by label" * by_label
    final = summary(tmp_path / "run")
    assert final["relation"] == relation
    assert read_run(tmp_path / "run").ledger.meta["relation"] == relation
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    for said in (page, "".join(final["warnings"])):  # type: ignore[arg-type]
        assert ("by their labels" in said) == by_label
    assert f"replaced by anything else ({relation})" in page


def test_held_out_records_are_said_not_to_be_covered(
    launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("run", "data.validation=0.1", quiet=False) == 0
    run, said = tmp_path / "run", "NOT COVERED: 144 private records"
    final = summary(run)
    assert read_run(run).ledger.meta["data"]["held_out"] == final["records_not_covered"] == 144
    assert final["test_data"] == "held out of the private records"
    with sqlite3.connect(run / "ledger.sqlite") as db:
        notes = [text for (text,) in db.execute("SELECT text FROM notes WHERE kind = 'warning'")]
    for warned in (final["warnings"], notes):
        assert any("NOT COVERED" in text and "144" in text for text in warned)  # type: ignore[attr-defined]
    assert said in capsys.readouterr().out
    assert main(["report", str(run)]) == 0
    assert said in (run / "report.html").read_text()
    assert launch("fitted", "data.features=pca", "data.validation=0.1") == 0
    assert summary(tmp_path / "fitted")["records_not_covered"] == 12 * 107 + 144


def test_classes_must_be_declared_and_hold_the_public_test_labels() -> None:
    images, labels = records()
    with pytest.raises(DataError, match=r"Records\.classes is missing: .*classes=10"):
        Records(images, labels, images, labels)
    with pytest.raises(DataError, match="test label 2 is not in 0 .. 1"):
        load_records(DataSection(source=f"{__name__}:two_classes"))


def two_classes(section: DataSection) -> Records:
    images, labels = records()
    return Records(images, labels, images, labels, classes=2)


def pixels(section: DataSection) -> Records:
    images = np.full((CLIENTS * EACH, 8, 8), 16, np.uint8)
    images[held.get("bad", slice(0))] = 200
    labels = np.arange(len(images)) % CLASSES
    test = np.full((4, 8, 8), held.get("test", 16), np.uint8)
    return Records(images, labels, test, labels[:4], CLASSES)


def test_a_pixel_out_of_range_ends_nobodys_run(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = (f"data.source={__name__}:pixels", f"data.clients={CLIENTS}", "data.features=raw")
    play(launch, "bad", *own, bad=0)
    with pytest.raises(AssertionError):
        play(launch, "test", *own, test=17)
    assert "largest pixel 17" in capsys.readouterr().err
    held.clear()


@pytest.mark.parametrize("error", [DataError, RuntimeError])
def test_a_client_tells_nobody_what_is_wrong_with_its_records(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(context: object) -> None:
        raise error("record 17 is odd")

    monkeypatch.setattr(clients.app.Federation, "of", refuses)
    model = Layout.flat(3).record(np.zeros(3, np.float32))
    with nodes(clients.app.app, tables={"data": {"clients": 4}}) as grid:
        reply = next(iter(grid.send_and_receive([TrainRequest(1, 0, 4).message(model, 2)])))
    assert reply.has_error() and not reply.error.reason
    assert "record 17 is odd" in caplog.text

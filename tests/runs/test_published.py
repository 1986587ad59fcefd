"""What a run directory says beside the model: the same for neighboring data sets, to the byte."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytest import LogCaptureFixture, MonkeyPatch

import clients.app
from fl_shuffle.auditing.published import fields_of
from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data import Records
from fl_shuffle.data.run_cache import run_cache
from fl_shuffle.data.sources import load_records
from fl_shuffle.errors import DataError
from fl_shuffle.flower.messages import TrainRequest, array_record
from fl_shuffle.report.record import read_run
from fl_shuffle.runs import run as running
from fl_shuffle.runs.console_messages import footer
from tests.one_node import nodes
from tests.small_federation import Play, notes, page, rows, stored, summary

CLIENTS, EACH, CLASSES = 6, 5, 4
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
    test = images[5:9].copy(), labels[5:9].copy()
    return Records(images, labels, *test, held.get("classes", CLASSES))


def published(run: Path) -> dict[str, str]:
    """All but times, the random identifier, the model and what is computed from it."""
    measured = re.compile(r'("(?:accuracy|loss)": |"name": "(?:accuracy|loss)", "value": )[^,}]+')
    return {
        where: measured.sub(r"\1", text)
        for where, text in fields_of(run).items()
        if "checkpoint of" not in where and "run_directory" not in text
        and where != "model.safetensors: content"
    }  # fmt: skip


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
    settings: tuple[str, ...], first: dict[str, object], play: Play, monkeypatch: MonkeyPatch
) -> None:
    """What clients say is not published, nor a digest of the records; of them sizes and shapes."""
    run_cache.forget()
    ours = published(play("a", *OWN, *settings))
    for name, value in first.items():
        monkeypatch.setitem(held, name, value)
    run_cache.forget()
    run = play("b", *OWN, *settings)
    assert ours == published(run)
    files = {"config.json", "ledger.sqlite", "lock", "metrics.csv", "run.log", "summary.json"}
    assert {where.partition(":")[0] for where in ours} == {*files, "model.safetensors"}
    assert {row["num_reports"] for row in rows(run)} == {str(CLIENTS)}
    digest = source(DataSection()).fingerprint().encode()
    for path in run.iterdir():
        assert b"is odd" not in path.read_bytes() and digest not in path.read_bytes()
    [(facts,)] = stored(run, "SELECT value FROM meta WHERE key = 'data'")
    assert json.loads(facts) == {
        "source": f"{__name__}:source", "records": CLIENTS * EACH, "shape": [7],
        "classes": CLASSES, "test_records": 4, "held_out": 0,
    }  # fmt: skip


def test_a_real_run_writes_no_times(play: Play) -> None:
    run = play("run", "run.entropy=system")
    assert stored(run, "SELECT seconds FROM rounds") == [(None,)] * 3
    meta = {key: json.loads(value) for key, value in stored(run, "SELECT * FROM meta")}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", meta["started"]) and meta["finished"] is None
    assert {row["seconds"] for row in rows(run)} == {""}
    final = summary(run)
    assert final["seconds"] is None and final["accounting_seconds"] is None
    assert not re.search(r"\d\d:\d\d", (run / "run.log").read_text())
    assert f"started on {meta['started']}, finished<" in page(run)


def test_the_ledger_does_not_tell_when_checkpoints_were_written(
    play: Play, monkeypatch: MonkeyPatch
) -> None:
    """A slow run writes more of them than a fast one."""
    pages = []
    for seconds in (0.0, 1e9):
        monkeypatch.setattr(running, "CHECKPOINT_SECONDS", seconds)
        run = play(f"every {seconds:g} s")
        assert stored(run, "PRAGMA freelist_count") == [(0,)]
        pages += stored(run, "PRAGMA page_count")
    assert pages[0] == pages[1]


@pytest.mark.parametrize(("partition", "by_label"), [("iid", False), ("dirichlet", True)])
def test_the_relation_says_when_labels_deal_the_records(
    partition: str, by_label: bool, play: Play
) -> None:
    run = play("run", f"data.partition={partition}", "run.rounds=1")
    relation = "replace-one" + " after the partition by label" * by_label
    assert summary(run)["relation"] == relation
    shown = page(run)
    assert ("by their labels" in shown) == by_label
    assert f"replaced by anything else ({relation})" in shown


def test_held_out_records_are_said_not_to_be_covered(play: Play) -> None:
    run = play("run", "data.validation_fraction=0.1", "run.rounds=1")
    final = summary(run)
    assert read_run(run).meta["data"]["held_out"] == final["records_not_covered"] == 144
    assert final["test_data"] == "held out of the private records"
    # How many they are may be private; the final line then leaves the number out.
    assert final["test_records"] is None and " on held out of the" in "\n".join(footer(final))
    for warned in (final["warnings"], notes(run, "warning")):
        assert any("NOT COVERED" in text and "144" in text for text in warned)
    assert "Not covered: 144 private records" in page(run)
    fitted = play("fitted", "data.features=pca", "data.validation_fraction=0.1", "run.rounds=1")
    assert summary(fitted)["records_not_covered"] == 12 * 107 + 144


def test_classes_must_be_declared_and_hold_the_public_test_labels(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setitem(held, "classes", 2)
    with pytest.raises(DataError, match=r"Records\.classes is missing: .*classes=10"):
        Records(*records(), *records())
    with pytest.raises(DataError, match="test label 2 is not in 0 .. 1"):
        load_records(DataSection(source=f"{__name__}:source"))


@pytest.mark.parametrize("error", [DataError, RuntimeError])
def test_a_client_tells_nobody_what_is_wrong_with_its_records(
    error: type[Exception], monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
) -> None:
    def refuses(context: object) -> None:
        raise error("record 17 is odd")

    monkeypatch.setattr(clients.app.Federation, "of", refuses)
    model = array_record({"p": np.zeros(3, np.float32)}, shared=True)
    with nodes(clients.app.app, tables={"data": {"clients": 4}}) as grid:
        reply = next(iter(grid.send_and_receive([TrainRequest(1, np.arange(4)).message(model, 2)])))
    assert reply.has_error() and not reply.error.reason
    assert "record 17 is odd" in caplog.text

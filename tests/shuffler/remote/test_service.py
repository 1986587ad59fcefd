"""The shuffler's service: who may, what is refused, and what happens when it is killed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_shuffle.cli import main
from fl_shuffle.errors import FlShuffleError, PrivacyBudgetError, RunError
from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.agreement import opened_report
from fl_shuffle.shuffler.remote.credentials import Settings
from fl_shuffle.shuffler.remote.handler import RequestHandler
from fl_shuffle.shuffler.remote.link import Link
from fl_shuffle.shuffler.remote.service import opened
from fl_shuffle.shuffler.remote.store import Store
from tests.shuffler.remote.small_shuffler import CLIENTS, EVERYBODY, FACTS, Lab

REPORTS = np.arange(CLIENTS * 4, dtype=np.float32).reshape(CLIENTS, 4)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, min_reports=4)


@pytest.fixture
def served(lab: Lab) -> Iterator[Lab]:
    with lab.serving():
        yield lab


def refused(why: str) -> Any:
    return pytest.raises(wire.ShufflerError, match=why)


def send(lab: Lab, clients: range, **changed: Any) -> None:
    for client in clients:
        lab.sender(client // 2, **changed).send(FACTS, 1, client, REPORTS[client][None])


def test_a_round_from_begin_to_end(
    served: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_shuffle.shuffler.remote.handler.PAGE_BYTES", 1)
    caplog.set_level(logging.INFO)
    analyzer = served.analyzer()
    batch = analyzer.open(1, EVERYBODY)
    assert batch.collecting
    send(served, range(3))
    with refused("not closed"):
        list(batch.fetch())
    # The shuffler's own minimum stands above the server's.
    with pytest.raises(PrivacyBudgetError, match="or than the shuffler's own minimum"):
        batch.close()
    send(served, range(3, 4))
    assert batch.close().tolist() == [True] * 4 + [False] * 2
    pieces = list(batch.fetch())
    # What the analyzer gets: so many sealed reports of one size, and not a byte beside them.
    assert [len(piece) for piece in pieces] == [FACTS.sealed_bytes] * 4
    rows = [opened_report(piece, served.private, FACTS, 1) for piece in pieces]
    assert sorted(row.tolist() for row in rows if row is not None) == REPORTS[:4].tolist()
    assert list(batch.fetch()) == pieces
    assert not analyzer.open(1, EVERYBODY).collecting
    with refused("not open"):
        send(served, range(4, 5))
    analyzer.forget(1)
    with refused("handed over"):
        list(batch.fetch())
    said = "\n".join(caplog.messages)
    assert "round 1: closed with 4 reports" in said and "client " not in said


def test_who_may_do_what(served: Lab, tmp_path: Path) -> None:
    analyzer, token = served.held_by("analyzer"), served.held_by("site-0").token
    served.analyzer().open(1, EVERYBODY)
    for none in (analyzer.token, "00" * 32):
        with refused("was not handed out"):
            send(served, range(1), token=none)
    for client in (2, CLIENTS, 1 << 60):
        with refused("does not speak for that client"):
            served.sender(0).send(FACTS, 1, client, REPORTS[:1])
    posing = Link(replace(analyzer, token=token), 5.0)
    for method in (wire.BEGIN, wire.CLOSE, wire.FETCH, wire.FINISH):
        with refused("not the analyzer's token"):
            posing.ask(method, wire.Call(FACTS, 1), wire.bitmap_of(EVERYBODY))
    served.patience = 0.0
    (tmp_path / "other").mkdir()
    with refused("is this its certificate"):
        send(served, range(1), certificate=Lab(tmp_path / "other").held_by("site-0").certificate)
    with pytest.raises(RunError, match="in use by another shuffler"):
        opened(served.store).__enter__()


def test_what_no_honest_party_asks_is_refused(served: Lab) -> None:
    with refused("no such run"):
        send(served, range(1))
    for changed, why in (
        ({"clients": 7}, "data.clients = 7: this shuffler enrolled 6"),
        ({"dimension": 1 << 20}, "--largest-report"),
    ):
        with refused(why):
            served.analyzer(replace(FACTS, **changed)).open(1, EVERYBODY)
    served.analyzer().open(1, EVERYBODY)
    for changed in (
        {"release": "sum"}, {"min_reports": 3}, {"exponent": -9}, {"largest": 7}, {"dimension": 5},
        {"batches": 2},
    ):  # fmt: skip
        other: Any = replace(FACTS, **changed)
        with refused("bound to other facts"):
            served.sender(1).send(other, 1, 2, np.zeros((other.batches, other.dimension), "f4"))
        with refused("bound to other facts"):
            served.analyzer(other).open(1, EVERYBODY)
    call, link = wire.Call(FACTS, 1, 2), Link(served.held_by("site-1"), 0.0)
    for size in (0, 1, 48, FACTS.sealed_bytes - 1, FACTS.sealed_bytes + 1, 60_000):
        with refused(f"has {FACTS.sealed_bytes} bytes, no other"):
            link.ask(wire.DELIVER, call, bytes(size))
    with refused("arger"):
        link.ask(wire.DELIVER, call, bytes(1 << 20))


@given(data=st.binary(max_size=200), known=st.booleans())
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_nonsense_is_refused_in_one_line(lab: Lab, data: bytes, known: bool) -> None:
    call = wire.Call(replace(FACTS, clients=7), 1)  # of another federation
    head = call.encoded(lab.held_by("analyzer").token) if known else b""
    with closing(Store.open(lab.store)) as store:
        handler = RequestHandler(Settings.read(lab.store / "settings.json", "settings"), store, b"")
        for method in (wire.DELIVER, wire.BEGIN, wire.CLOSE, wire.FETCH):
            with pytest.raises(FlShuffleError) as refused:
                handler.answer(method, head + data)
            assert str(refused.value) and "\n" not in str(refused.value)


def test_every_mistake_is_one_line(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def says(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["shuffler", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    store, held = str(lab.store), lab.store / "settings.json"
    new = ["--passes", str(tmp_path / "new"), "--clients", "4", "--sites", "2"]
    new += ["--min-reports", "2", "--address", "localhost:1"]
    for arguments, said in (
        (("init", store, *new), "is not empty"),
        (("init", "here", *new, "--address", "localhost"), "must be HOST:PORT"),
        (("init", "here", *new, "--address", "localhost:99999"), "must be HOST:PORT"),
        (("init", "here", *new, "--address", "l\xf6calhost:1"), "must be HOST:PORT"),
        (("init", "here", *new, "--sites", "5"), "--sites = 5"),
        (("init", "here", *new, "--min-reports", "1"), "--min-reports = 1"),
        (("init", "here", *new, "--min-reports", "5"), "--min-reports = 5"),
        (("key", str(tmp_path / "analyzer.key")), "exists already"),
        (("serve", str(tmp_path / "nowhere")), "cannot be read"),
        (("serve", store, "--listen", "203.0.113.1:1"), "cannot be listened at"),
    ):
        assert said in says(*arguments)
    for path, mode, right in ((held, 0o644, "600"), (lab.store, 0o755, "700")):
        path.chmod(mode)
        assert f"chmod {right}" in says("serve", store)
        path.chmod(int(right, 8))
    for text, said in (
        ("[" * 100_000, "is damaged"), ('{"fl-shuffle": "settings 2"}', "is damaged"),
        ('{"fl-shuffle": "settings 1"}', "no settings"), ("{}", "no settings"),
        ("[1]", "is damaged"), ("nonsense", "is damaged"),
        (held.read_text().replace('"key": "', '"key": "x'), "is damaged"),
    ):  # fmt: skip
        held.write_text(text)
        assert said in says("serve", store) and "settings.json" in says("serve", store)

"""The shuffler's service: who may, what is refused, and what happens when it is killed."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_shuffle.cli import main
from fl_shuffle.errors import FlShuffleError, RunError
from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.agreement import opened_report
from fl_shuffle.shuffler.remote.credentials import Pass, Settings
from fl_shuffle.shuffler.remote.handler import RequestHandler
from fl_shuffle.shuffler.remote.link import Link
from fl_shuffle.shuffler.remote.service import opened
from fl_shuffle.shuffler.remote.store import Store
from tests.shuffler.remote.small_shuffler import CLIENTS, EVERYBODY, FACTS, Lab, make_lab, serving

REPORTS = np.arange(CLIENTS * 4, dtype=np.float32).reshape(CLIENTS, 4)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


def send(lab: Lab, clients: range, round_number: int = 1) -> None:
    for client in clients:
        lab.sender(client // 2).send(FACTS, round_number, client, REPORTS[client][None])


def test_a_round_from_begin_to_end(
    lab: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_shuffle.shuffler.remote.handler.PAGE_BYTES", 1)
    caplog.set_level(logging.INFO)
    with serving(lab):
        analyzer = lab.analyzer()
        assert analyzer.open(1, EVERYBODY).collecting
        send(lab, range(4))
        with pytest.raises(wire.ShufflerError, match="not closed"):
            list(analyzer.fetch(1))
        present = analyzer.close(1)
        assert present is not None and present.tolist() == [True] * 4 + [False] * 2
        batch = list(analyzer.fetch(1))
        # What the analyzer gets: so many sealed reports of one size, and not a byte beside them.
        assert [len(piece) for piece in batch] == [FACTS.sealed_bytes] * 4
        rows = [opened_report(piece, lab.private, FACTS, 1) for piece in batch]
        assert sorted(row.tolist() for row in rows if row is not None) == REPORTS[:4].tolist()
        assert list(analyzer.fetch(1)) == batch
        assert not analyzer.open(1, EVERYBODY).collecting
        with pytest.raises(wire.ShufflerError, match="not open"):
            send(lab, range(4, 5))
        analyzer.forget(1)
        with pytest.raises(wire.ShufflerError, match="handed over"):
            list(analyzer.fetch(1))
    said = "\n".join(caplog.messages)
    assert "round 1: closed with 4 reports" in said
    assert "client " not in said and said.count("127.0.0.1:") == 1


def test_who_may_do_what(lab: Lab, tmp_path: Path) -> None:
    site = Pass.read(lab.given("site-0"), "site")
    analyzer = Pass.read(lab.given("analyzer"), "analyzer")
    (tmp_path / "other").mkdir()
    other = Pass.read(make_lab(tmp_path / "other").given("site-0"), "site")
    posing = Link(replace(analyzer, token=site.token), 5.0)
    with serving(lab):
        lab.analyzer().open(1, EVERYBODY)
        for token in (analyzer.token, bytes(32)):
            with pytest.raises(wire.ShufflerError, match="was not handed out"):
                lab.sender(0, token=token).send(FACTS, 1, 0, REPORTS[:1])
        for client in (2, CLIENTS, 1 << 60):
            with pytest.raises(wire.ShufflerError, match="does not speak for that client"):
                lab.sender(0).send(FACTS, 1, client, REPORTS[:1])
        for method in (wire.BEGIN, wire.CLOSE, wire.FETCH, wire.FINISH):
            with pytest.raises(wire.ShufflerError, match="not the analyzer's token"):
                posing.ask(method, wire.Call(FACTS.run, 1, FACTS), wire.bitmap_of(EVERYBODY))
        send(lab, range(6))
        lab.patience = 0.0
        with pytest.raises(wire.ShufflerError, match="is this its certificate"):
            lab.sender(0, certificate=other.certificate).send(FACTS, 1, 0, REPORTS[:1])
        with pytest.raises(RunError, match="in use by another shuffler"):
            opened(lab.store).__enter__()


def test_the_shufflers_own_minimum_stands_above_the_servers(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, min_reports=5)
    with serving(lab):
        analyzer = lab.analyzer()
        analyzer.open(1, EVERYBODY)
        send(lab, range(4))
        assert analyzer.close(1) is None
        send(lab, range(4, 5))
        assert analyzer.close(1) is not None


def test_what_a_run_must_not_be(lab: Lab) -> None:
    with serving(lab):
        more = lab.analyzer(replace(FACTS, clients=7))
        with pytest.raises(wire.ShufflerError, match=r"data.clients = 7: this shuffler enrolled 6"):
            more.open(1, np.ones(7, dtype=bool))
        with pytest.raises(wire.ShufflerError, match="--largest-report"):
            lab.analyzer(replace(FACTS, dimension=1 << 20)).open(1, EVERYBODY)
        with pytest.raises(wire.ShufflerError, match="no such run"):
            send(lab, range(1))
        lab.analyzer().open(1, EVERYBODY)
        with pytest.raises(wire.ShufflerError, match="other facts"):
            lab.analyzer(replace(FACTS, min_reports=3)).open(1, EVERYBODY)


def test_what_no_honest_site_sends_is_refused(lab: Lab) -> None:
    own = Pass.read(lab.given("site-1"), "site")
    call, link = wire.Call(FACTS.run, 1, FACTS, 2), Link(own, 0.0)
    with serving(lab):
        analyzer = lab.analyzer()
        analyzer.open(1, EVERYBODY)
        send(lab, range(2))
        for changed in (
            {"release": "sum"}, {"min_reports": 3}, {"exponent": -9}, {"largest": 7},
            {"dimension": 5}, {"batches": 2},
        ):  # fmt: skip
            other: Any = replace(FACTS, **changed)
            report = np.zeros((other.batches, other.dimension), np.float32)
            with pytest.raises(wire.ShufflerError, match="bound to other facts"):
                lab.sender(1).send(other, 1, 2, report)
        for size in (0, 1, 48, FACTS.sealed_bytes - 1, FACTS.sealed_bytes + 1, 60_000):
            with pytest.raises(
                wire.ShufflerError, match=f"has {FACTS.sealed_bytes} bytes, no other"
            ):
                link.ask(wire.DELIVER, call, bytes(size))
        with pytest.raises(wire.ShufflerError, match="arger"):
            link.ask(wire.DELIVER, call, bytes(1 << 20))
        present = analyzer.close(1)
        assert present is not None and np.flatnonzero(present).tolist() == [0, 1]


@given(data=st.binary(max_size=200), known=st.booleans())
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_nonsense_is_refused_in_one_line(lab: Lab, data: bytes, known: bool) -> None:
    analyzer = Pass.read(lab.given("analyzer"), "analyzer")
    head = wire.Call(FACTS.run, 1).encoded(analyzer.token) if known else b""
    facts = Settings.read(lab.store / "settings.json")
    with closing(Store.open(lab.store)) as store:
        handler = RequestHandler(facts, store, bytes(32))
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

    store, settings = str(lab.store), lab.store / "settings.json"
    new = ["--passes", str(tmp_path / "new"), "--clients", "4", "--sites", "2"]
    new += ["--min-reports", "2", "--address", "localhost:1"]
    for arguments, said in (
        (("init", store, *new), "is not empty"),
        (("init", "here", *new, "--address", "localhost"), "must be HOST:PORT"),
        (("init", "here", *new, "--address", "localhost:99999"), "must be HOST:PORT"),
        (("init", "here", *new, "--sites", "5"), "--sites = 5"),
        (("init", "here", *new, "--min-reports", "1"), "--min-reports = 1"),
        (("init", "here", *new, "--min-reports", "5"), "--min-reports = 5"),
        (("key", str(tmp_path / "analyzer.key")), "exists already"),
        (("serve", str(tmp_path / "nowhere")), "cannot be read"),
        (("serve", store, "--listen", "203.0.113.1:1"), "cannot be listened at"),
    ):
        assert said in says(*arguments)
    for path, mode, right in ((settings, 0o644, "600"), (lab.store, 0o755, "700")):
        path.chmod(mode)
        assert f"chmod {right}" in says("serve", store)
        path.chmod(int(right, 8))
    known = '{"fl-shuffle": "settings", "version": 1}'
    for text, said in (("[" * 100_000, "is damaged"), (known, "is damaged"), ("{}", "no settings"),
                       ("[1]", "no settings"), ("nonsense", "is damaged")):  # fmt: skip
        settings.write_text(text)
        assert said in says("serve", store) and "settings.json" in says("serve", store)

"""The shuffler's service: who may, what is refused, and what happens when it is killed."""

from __future__ import annotations

import logging
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
from fl_shuffle.shuffler.remote.agreement import report_of_bytes
from fl_shuffle.shuffler.remote.credentials import Pass, Settings, read_key
from fl_shuffle.shuffler.remote.handler import RequestHandler
from fl_shuffle.shuffler.remote.link import Link, ShufflerError
from fl_shuffle.shuffler.remote.sealing import open_sealed
from fl_shuffle.shuffler.remote.service import opened
from fl_shuffle.shuffler.remote.store import Store
from tests.shuffler.remote.small_shuffler import CLIENTS, EVERYBODY, FACTS, Lab, make_lab, serving

REPORTS = np.arange(CLIENTS * 4, dtype=np.float32).reshape(CLIENTS, 4)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


def send(lab: Lab, clients: range, round_number: int = 1) -> None:
    for client in clients:
        sender = lab.sender(client // 2)
        sender.send(FACTS, round_number, client, REPORTS[client][None])
        sender.close()


def test_a_round_from_begin_to_end(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with serving(lab):
        receiver = lab.receiver()
        assert receiver.begin(1, EVERYBODY) == wire.OPEN
        send(lab, range(4))
        present = receiver.close_round(1)
        assert present is not None
        assert present.tolist() == [True] * 4 + [False] * 2
        batch = list(receiver.batch(1))
        # What the analyzer gets: so many sealed reports of one size, and not a byte beside them.
        assert [len(piece) for piece in batch] == [FACTS.sealed_bytes] * 4
        opened_ones = [open_sealed(piece, lab.private, FACTS.info(1)) for piece in batch]
        rows = np.stack([report_of_bytes(piece, FACTS) for piece in opened_ones])
        assert np.array_equal(np.sort(rows, axis=0), REPORTS[:4])
        assert list(receiver.batch(1)) == batch
        with pytest.raises(ShufflerError, match="not open"):
            send(lab, range(4, 5))
        receiver.finish(1)
        with pytest.raises(ShufflerError, match="handed over"):
            list(receiver.batch(1))
        assert receiver.begin(1, EVERYBODY) == wire.HANDED_OVER
    said = "\n".join(caplog.messages)
    assert "round 1: closed with 4 reports" in said
    assert "client " not in said
    assert "127.0.0.1:" not in said.replace(lab.receiver()._link._own.address, "")


def test_who_may_do_what(lab: Lab) -> None:
    site, analyzer = (
        Pass.read(lab.given(name), kind)
        for name, kind in (("site-0", "site"), ("analyzer", "analyzer"))
    )
    with serving(lab):
        receiver = lab.receiver()
        receiver.begin(1, EVERYBODY)
        for token in (analyzer.token, bytes(32)):
            with pytest.raises(ShufflerError, match="was not handed out"):
                lab.sender(0, token=token).send(FACTS, 1, 0, REPORTS[:1])
        for client in (2, CLIENTS, 1 << 60):
            with pytest.raises(ShufflerError, match="does not speak for that client"):
                lab.sender(0).send(FACTS, 1, client, REPORTS[:1])
        send(lab, range(6))
        for method in (wire.BEGIN, wire.CLOSE, wire.FINISH):
            call = wire.Call(site.token, FACTS.run, 1)
            beginning = replace(call, agreement=FACTS).encoded(wire.bitmap_of(EVERYBODY))
            data = beginning if method == wire.BEGIN else call.encoded()
            with pytest.raises(ShufflerError, match="not the analyzer's token"):
                Link(analyzer, 5.0).ask(method, data)
        with pytest.raises(ShufflerError, match="not the analyzer's token"):
            list(Link(analyzer, 5.0).stream(wire.FETCH, call.encoded()))
        with pytest.raises(ShufflerError, match="not closed"):
            list(receiver.batch(1))


def test_the_right_certificate_or_nothing(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Pass.read(make_lab(tmp_path / "other").given("site-0"), "site")
    lab.patience = 0.0
    with serving(lab), pytest.raises(ShufflerError, match="is this its certificate"):
        lab.sender(0, certificate=other.certificate).send(FACTS, 1, 0, REPORTS[:1])


def test_the_shufflers_own_minimum_stands_above_the_servers(tmp_path: Path) -> None:
    lab = make_lab(tmp_path, min_reports=5)
    with serving(lab):
        receiver = lab.receiver()
        receiver.begin(1, EVERYBODY)
        send(lab, range(4))
        assert receiver.close_round(1) is None
        send(lab, range(4, 5))
        assert receiver.close_round(1) is not None


def test_what_a_run_must_not_be(lab: Lab) -> None:
    with serving(lab):
        more = replace(FACTS, clients=7)
        with pytest.raises(ShufflerError, match=r"data.clients = 7: this shuffler enrolled 6"):
            lab.receiver(more).begin(1, np.ones(7, dtype=bool))
        with pytest.raises(ShufflerError, match="--largest-report"):
            lab.receiver(replace(FACTS, dimension=1 << 20)).begin(1, EVERYBODY)
        with pytest.raises(ShufflerError, match="no such run"):
            send(lab, range(1))
        receiver = lab.receiver()
        receiver.begin(1, EVERYBODY)
        with pytest.raises(ShufflerError, match="other facts"):
            lab.receiver(replace(FACTS, min_reports=3)).begin(1, EVERYBODY)


@pytest.mark.parametrize(
    "changed",
    [
        {"release": "sum"},
        {"min_reports": 3},
        {"exponent": -9},
        {"largest": 7},
        {"dimension": 5},
        {"batches": 2},
    ],
)
def test_a_report_that_is_bound_to_other_facts_is_refused(
    lab: Lab, changed: dict[str, Any]
) -> None:
    other = replace(FACTS, **changed)
    with serving(lab):
        receiver = lab.receiver()
        receiver.begin(1, EVERYBODY)
        send(lab, range(2))
        report = np.zeros((other.batches, other.dimension), np.float32)
        with pytest.raises(ShufflerError, match="bound to other facts"):
            lab.sender(1).send(other, 1, 2, report)
        present = receiver.close_round(1)
        assert present is not None
        assert np.flatnonzero(present).tolist() == [0, 1]


@pytest.mark.parametrize("size", [0, 1, 48, FACTS.sealed_bytes - 1, FACTS.sealed_bytes + 1, 60_000])
def test_a_report_of_another_size_is_refused(lab: Lab, size: int) -> None:
    own = Pass.read(lab.given("site-0"), "site")
    with serving(lab):
        lab.receiver().begin(1, EVERYBODY)
        call = wire.Call(own.token, FACTS.run, 1, FACTS, 0)
        with pytest.raises(ShufflerError, match=f"has {FACTS.sealed_bytes} bytes, no other"):
            Link(own, 5.0).ask(wire.DELIVER, call.encoded(bytes(size)))
        send(lab, range(6))


def test_a_message_beyond_all_limits_does_not_harm(lab: Lab) -> None:
    own = Pass.read(lab.given("site-0"), "site")
    with serving(lab):
        lab.receiver().begin(1, EVERYBODY)
        with pytest.raises(ShufflerError, match="arger"):
            Link(own, 0.0).ask(wire.DELIVER, bytes(1 << 20))
        send(lab, range(6))


@given(data=st.binary(max_size=200), known=st.booleans())
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_nonsense_is_refused_in_one_line(lab: Lab, data: bytes, known: bool) -> None:
    analyzer = Pass.read(lab.given("analyzer"), "analyzer")
    head = wire.Call(analyzer.token, FACTS.run, 1).encoded() if known else b""
    store = Store.open(lab.store)
    facts = Settings.read(lab.store / "settings.json")
    handler = RequestHandler(facts, store, read_key(lab.store / "seal.key", private=True))
    try:
        for answer in (
            handler.deliver,
            handler.begin,
            handler.close,
            lambda d: list(handler.fetch(d)),
        ):
            with pytest.raises(FlShuffleError) as refused:
                answer(head + data)
            assert "\n" not in str(refused.value)
            assert str(refused.value)
    finally:
        store.close()


def test_two_processes_cannot_have_one_store(lab: Lab) -> None:
    with serving(lab):
        second = opened(lab.store)
        with pytest.raises(RunError, match="in use by another shuffler"):
            second.__enter__()


def test_every_mistake_is_one_line(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def says(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["shuffler", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    new = ["--passes", str(tmp_path / "new"), "--clients", "4", "--sites", "2"]
    with pytest.raises(SystemExit):
        main(["shuffler", "init", str(tmp_path / "here"), *new, "--address", "localhost:1"])
    assert "required: --min-reports" in capsys.readouterr().err
    new += ["--min-reports", "2"]
    here = str(tmp_path / "here")
    assert "is not empty" in says("init", str(lab.store), *new, "--address", "localhost:1")
    assert "must be HOST:PORT" in says("init", here, *new, "--address", "localhost")
    assert "must be HOST:PORT" in says("init", here, *new, "--address", "localhost:99999")
    few = [*new, "--sites", "5", "--address", "localhost:1"]
    assert "--sites = 5" in says("init", here, *few)
    least = [*new, "--address", "localhost:1", "--min-reports"]
    assert "--min-reports = 1" in says("init", here, *least, "1")
    assert "--min-reports = 5" in says("init", here, *least, "5")
    assert "exists already" in says("key", str(tmp_path / "analyzer.key"))
    assert "cannot be read" in says("serve", str(tmp_path / "nowhere"))
    assert "cannot be listened at" in says("serve", str(lab.store), "--listen", "203.0.113.1:1")
    (lab.store / "settings.json").chmod(0o644)
    assert "chmod 600" in says("serve", str(lab.store))
    (lab.store / "settings.json").chmod(0o600)
    lab.store.chmod(0o755)
    assert "chmod 700" in says("serve", str(lab.store))
    lab.store.chmod(0o700)
    (lab.store / "settings.json").write_text("[" * 100_000)
    assert "is damaged" in says("serve", str(lab.store))
    for text in ("{}", '{"fl-shuffle": "settings", "version": 1}', "nonsense", "[1]"):
        (lab.store / "settings.json").write_text(text)
        assert "settings.json" in says("serve", str(lab.store))

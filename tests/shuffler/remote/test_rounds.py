"""A separate shuffler: who may do what, what the server gets in a round, and how what was killed
goes on."""

from __future__ import annotations

import logging
import random
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from html import unescape
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, MessageType, RecordDict
from pytest import CaptureFixture, LogCaptureFixture, MonkeyPatch
from safetensors.torch import load_file

from clients.app import app as client_app
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.threat_model import attackers
from fl_shuffle.api import simulate
from fl_shuffle.budgets import make_budgets
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.data.task import load_task
from fl_shuffle.errors import ConfigError, FlShuffleError, PrivacyBudgetError, RunError
from fl_shuffle.flower import remote_shuffler as parties
from fl_shuffle.flower.node_registry import held_clients
from fl_shuffle.flower.settings import RESOLVED
from fl_shuffle.randomizers.calibration import make_plan
from fl_shuffle.report.page import render
from fl_shuffle.report.record import read_run
from fl_shuffle.runs.console_messages import footer
from fl_shuffle.runs.run import Run
from fl_shuffle.shuffler.local import UnusableBatchError
from fl_shuffle.shuffler.remote import link, wire
from fl_shuffle.shuffler.remote.agreement import Agreement, opened_report
from fl_shuffle.shuffler.remote.client import RemoteBatch, RemoteShuffler
from fl_shuffle.shuffler.remote.credentials import Pass, Settings, read_key
from fl_shuffle.shuffler.remote.handler import RequestHandler
from fl_shuffle.shuffler.remote.link import Link, Sender
from fl_shuffle.shuffler.remote.sealing import public_key, seal
from fl_shuffle.shuffler.remote.service import opened
from fl_shuffle.shuffler.remote.store import Store
from fl_shuffle.verify.ledger import ledger_facts
from server.app import app as server_app
from tests.apps import test_own_federation as own_federation
from tests.one_node import nodes
from tests.processes import free_port
from tests.small_federation import summary

CLIENTS = 6
EVERYBODY = np.ones(CLIENTS, dtype=bool)
FACTS = Agreement("5a" * 16, "reports", CLIENTS, 4, 2, -10, 1 << 20)
REPORTS = np.arange(CLIENTS * 4, dtype=np.float32).reshape(CLIENTS, 4)
OWN = ["app.client=own:client", "app.server=own:server"]
CONFIG = {
    "run": {"rounds": 3, "entropy": "system", "timeout": 60.0},
    "data": {"clients": CLIENTS},
    "privacy": {"unit": "client", "clip_norm": 0.5, "shuffler": "separate", "min_reports": 3},
    "budgets": {"distribution": "constant", "epsilon": 2.0},
}


class Stop(RuntimeError):
    """The process dies here."""


class Lab:
    """A shuffler's folder, what it handed out, and the analyzer's key."""

    def __init__(self, home: Path, sites: int = 1) -> None:
        self.home, self.store, self.key = home, home / "store", home / "analyzer.key"
        address = f"127.0.0.1:{free_port()}"
        init = [
            "init",
            str(self.store),
            "--credentials",
            str(home / "passes"),
            "--address",
            address,
        ]
        init += ["--clients", "6", "--min-reports", "4", "--sites", str(sites)]
        for made in (["key", str(self.key)], [*init, "--max-report-bytes", str(1 << 16)]):
            assert main(["shuffler", *made]) == 0
        self.private, self.patience = read_key(self.key, private=True), 20.0

    def given(self, name: str) -> Path:
        return self.home / "passes" / f"{name}.json"

    def held_by(self, name: str) -> Pass:
        return Pass.read(self.given(name), name.partition("-")[0])

    def sender(self, **changed: object) -> Sender:
        own = replace(self.held_by("site-0"), **changed)
        return Sender(own, public_key(self.private), self.patience)

    def analyzer(self, facts: Agreement = FACTS, honest: int = 1) -> RemoteShuffler:
        link = Link(self.held_by("analyzer"), self.patience)
        return RemoteShuffler(link, facts, self.private, honest, keep=True, counted=None)

    @contextmanager
    def serving(self) -> Iterator[None]:
        with opened(self.store):
            yield


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture
def served(lab: Lab) -> Iterator[Lab]:
    with lab.serving():
        yield lab


def refused(why: str) -> Any:
    return pytest.raises(wire.ShufflerError, match=why)


def send(lab: Lab, clients: range, **changed: Any) -> None:
    for client in clients:
        lab.sender(**changed).send(FACTS, 1, client, REPORTS[client][None])


def test_a_round_from_begin_to_end(
    served: Lab, caplog: LogCaptureFixture, monkeypatch: MonkeyPatch
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


def test_who_may_do_what(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    lab, other = Lab(tmp_path, sites=2), Lab(tmp_path / "other").held_by("site-0")
    analyzer, token = lab.held_by("analyzer"), lab.held_by("site-0").token
    posing = Link(replace(analyzer, token=token), 5.0)
    with lab.serving():
        lab.analyzer().open(1, EVERYBODY)
        for none, why in (
            (analyzer.token, "the analyzer's token delivers no reports"),
            (other.token, "was not handed out"),
        ):
            with refused(why):
                send(lab, range(1), token=none)
        for client in (3, CLIENTS, 1 << 60):
            with refused("does not speak for that client"):
                lab.sender().send(FACTS, 1, client, REPORTS[:1])
        for method in (wire.BEGIN, wire.CLOSE, wire.FETCH, wire.FINISH):
            with refused("not the analyzer's token"):
                posing.ask(method, wire.Call(FACTS, 1), wire.bitmap_of(EVERYBODY))
        lab.patience = 0.0
        with refused("is this its certificate"):
            send(lab, range(1), certificate=other.certificate)
        with pytest.raises(RunError, match="in use by another shuffler"):
            opened(lab.store).__enter__()


@pytest.mark.parametrize("sites", [1, 2, 4, 6])
def test_a_site_speaks_for_its_own_clients_alone(tmp_path: Path, sites: int) -> None:
    """Which are those that a SuperNode with its partition plays, whichever client is tried."""
    lab = Lab(tmp_path, sites=sites)
    with closing(Store.open(lab.store)) as store:
        settings = Settings.read(lab.store / "settings.json", "settings")
        handler = RequestHandler(settings, store, b"")
        for site, client in product(range(sites), range(CLIENTS)):
            call = wire.Call(FACTS, 1, client)
            line = call.announced(
                wire.DELIVER, lab.held_by(f"site-{site}").token, FACTS.delivery_bytes
            )
            peer, facts = handler.authenticated(line)
            plays = held_clients({"partition-id": site, "num-partitions": sites}, CLIENTS)
            if client in plays:
                handler.permit(peer, wire.Announced.of(facts))
            else:
                with refused("does not speak for that client"):
                    handler.permit(peer, wire.Announced.of(facts))


def test_what_no_honest_party_asks_is_refused(served: Lab) -> None:
    with refused("does not know the run"):
        send(served, range(1))
    for changed, why in (
        ({"clients": 7}, "data.clients = 7: this shuffler was set up for 6"),
        ({"dimension": 1 << 20}, "--max-report-bytes"),
    ):
        with refused(why):
            served.analyzer(replace(FACTS, **changed)).open(1, EVERYBODY)
    served.analyzer().open(1, EVERYBODY)
    for changed in ({"release": "sum"}, {"min_reports": 3}, {"dimension": 5}, {"batches": 2}):
        other: Any = replace(FACTS, **changed)
        with refused("another configuration"):
            served.sender().send(other, 1, 2, np.zeros((other.batches, other.dimension), "f4"))
        with refused("another configuration"):
            served.analyzer(other).open(1, EVERYBODY)
    call, site = wire.Call(FACTS, 1, 2), Link(served.held_by("site-0"), 0.0)
    for size in (0, FACTS.sealed_bytes - 1, FACTS.sealed_bytes + 1, 60_000):
        with refused(f"has {FACTS.sealed_bytes} bytes, no other"):
            site.ask(wire.DELIVER, call, bytes(size))
    with refused("arger"):
        site.ask(wire.DELIVER, call, bytes(1 << 20))


def test_nonsense_is_refused_in_one_line(lab: Lab) -> None:
    draw = random.Random(1)
    token = lab.held_by("analyzer").token
    head = wire.Call(FACTS, 1).announced("Begin", token, 1)
    lines = [draw.randbytes(draw.randrange(200)) for _ in range(50)]
    lines += [b"[]\n", b"{}\n", b"[" * 4000, b'{"token": 1, "agreement": [6]}\n']
    lines.append(f'{{"token": "{token}", "agreement": [6]}}\n'.encode())
    for old, new in (
        ("5a" * 16, "5A" * 16), ('"reports"', '"all"'), ('"clients": 6', '"clients": 0'),
        ('"dimension": 4', '"dimension": 1099511627776'), ('"min_reports": 2', '"min_reports": 7'),
        ('"exponent": -10', '"exponent": -200'), ('"largest": 1048576', '"largest": 0'),
        ('"round_number": 1', '"round_number": 1.5'), ('"batches": 1', '"batches": 0'),
        ('"method": "Begin"', '"method": "Stop"'), ('"bytes": 1', '"bytes": -1'),
        ('"bytes": 1', '"bytes": 1e3'), ('"bytes": 1', '"bytes": 7'),
        ('"bytes": 1', f'"bytes": {10**15}'), ('"client": 0', '"client": 0, "more": 0'),
    ):  # fmt: skip
        assert old.encode() in head
        lines.append(head.replace(old.encode(), new.encode()))
    with closing(Store.open(lab.store)) as store:
        handler = RequestHandler(Settings.read(lab.store / "settings.json", "settings"), store, b"")

        def taken(line: bytes) -> bytes:
            peer, facts = handler.authenticated(line)
            announced = wire.Announced.of(facts)
            handler.permit(peer, announced)
            return handler.answer(announced, draw.randbytes(announced.size))

        for line in lines:
            with pytest.raises(FlShuffleError) as refused:
                taken(line)
            assert str(refused.value) and "\n" not in str(refused.value)
        assert taken(head) == bytes([wire.OPEN])


def test_every_mistake_is_one_line(lab: Lab, tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    def says(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["shuffler", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    store, held = str(lab.store), lab.store / "settings.json"
    new = ["--credentials", str(tmp_path / "new"), "--clients", "4", "--sites", "2"]
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
        (("serve", store, "--listen", "203.0.113.1:1"), "is not available"),
    ):
        assert said in says(*arguments)
    for path, mode, right in ((held, 0o644, "600"), (lab.store, 0o755, "700")):
        path.chmod(mode)
        assert f"chmod {right}" in says("serve", store)
        path.chmod(int(right, 8))
    right = held.read_text()
    for text, said in (
        ("[" * 100_000, "is damaged"), ("[1]", "is damaged"), ("{}", "not the settings"),
        (right.replace("settings 2", "settings 1"), "not the settings"),
        (right.replace('"key": "', '"key": "x'), "is damaged"),
    ):  # fmt: skip
        held.write_text(text)
        assert said in says("serve", store) and "settings.json" in says("serve", store)


def test_folders_of_secrets_are_the_owners_even_if_there_before(tmp_path: Path) -> None:
    store, passes = tmp_path / "store", tmp_path / "passes"
    new = ["init", str(store), "--passes", str(passes), "--address", "127.0.0.1:1", "--sites", "2"]
    new += ["--clients", "6", "--min-reports", "4"]
    for folder in (store, passes):
        folder.mkdir()
        folder.chmod(0o777)
    assert main(["shuffler", *new]) == 0
    assert [folder.stat().st_mode & 0o777 for folder in (store, passes)] == [0o700, 0o700]
    files = [path for folder in (store, passes) for path in folder.iterdir()]
    assert len(files) >= 4 and {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_a_secret_that_anybody_else_may_read_is_refused(lab: Lab) -> None:
    """Whoever that is: of a file its group's and others' bits, of the folder also to enter it."""
    for path, right in ((lab.store / "settings.json", 0o600), (lab.store, 0o700)):
        for bit in (1 << place for place in range(6)):
            path.chmod(right | bit)
            with pytest.raises(ConfigError, match=f"chmod {right:o}"), opened(lab.store):
                pass
        path.chmod(right)
    lab.key.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_key(lab.key, private=True)


def play(lab: Lab, name: str, *settings: str, resume: str = "no") -> Path:
    """Run the reference apps, or a user's own, in this process, with a shuffler that listens; the
    run's folder. No node's reply holds anything."""
    config, key = resolve_config(CONFIG, settings), str(lab.home / "analyzer.key")
    own = OWN[0] in settings
    apps = (own_federation.client, own_federation.server) if own else (client_app, server_app)
    given = {RESOLVED: config.to_json(), "run-directory": str(lab.home / name), "resume": resume}
    given[parties.SHUFFLER] = str(lab.given("analyzer"))
    given[parties.ANALYZER_KEY] = key if config.privacy.release == "reports" else ""
    site = {parties.SHUFFLER: str(lab.given("site-0")), parties.ANALYZER_KEY: f"{key}.pub"}
    replies = list[Message]()

    def noted(message: Message, context: Context) -> Message:
        reply = apps[0](message, context)
        replies.append(reply)
        return reply

    with nodes(noted, 2, node_config=site, **given) as grid:
        apps[1](grid, Context(grid.run.run_id, 1, {}, RecordDict(), given))
    trained = [each for each in replies if each.metadata.message_type == MessageType.TRAIN]
    assert trained and not any(list(reply.content) for reply in trained)
    return lab.home / name


def attempts(run: Path) -> list[tuple[int, int]]:
    with sqlite3.connect(run / "ledger.sqlite") as database:
        return database.execute("SELECT round, released FROM reservations").fetchall()


def noting(monkeypatch: MonkeyPatch) -> list[tuple[Agreement, np.ndarray]]:
    """What nodes seal from now on: facts, and a client's reports of a round."""
    sent, send = list[tuple[Agreement, np.ndarray]](), Sender.send

    def noted(self: Sender, facts: Agreement, number: int, who: int, reports: np.ndarray) -> None:
        sent.append((facts, reports.copy()))
        send(self, facts, number, who, reports)

    monkeypatch.setattr(Sender, "send", noted)
    return sent


def before_second(patch: MonkeyPatch, owner: type, name: str, first: Callable[[], None]) -> None:
    """Call `first` before the method is called for the second round."""
    whole, calls = getattr(owner, name), list[None]()

    def called(*given: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) == 2:
            first()
        return whole(*given, **named)

    patch.setattr(owner, name, called)


def die() -> None:
    raise Stop


@pytest.mark.parametrize(
    "settings",
    [
        ["privacy.reports_per_round=3"],
        ["privacy.release=sum"],
        OWN,
        ["privacy.reports_per_round=2", "privacy.report_bits=5"],
    ],
)
def test_the_server_steps_along_the_mean_of_what_was_handed_over(
    served: Lab, monkeypatch: MonkeyPatch, settings: list[str]
) -> None:
    noted = noting(monkeypatch)
    settings = [*settings, "run.rounds=1", "server.learning_rate=1.0"]
    config, run = resolve_config(CONFIG, settings), play(served, "run", *settings)
    batches, release = config.privacy.reports_per_round, config.privacy.release
    sent = [reports for _, reports in noted]
    assert len(sent) == CLIENTS and {len(reports) for reports in sent} == {batches}
    assert len({row.tobytes() for reports in sent for row in reports}) == CLIENTS * batches
    # A report points uphill; the own app's first model is zero.
    last, own = load_file(run / "model.safetensors"), OWN[0] in settings
    first = {"weight": torch.zeros(6)} if own else load_task(config).model(config).state_dict()
    step = [(values - last[name]).double().reshape(-1) for name, values in first.items()]
    mean = torch.from_numpy(np.concatenate(sent)).double().mean(dim=0)
    torch.testing.assert_close(torch.cat(step), mean, rtol=0.0, atol=1e-6)
    found = summary(run)
    assert found["headline"] == ("sum" if release == "sum" else "shuffled")
    assert any("the shuffler is a party of its own" in text for text in found["assumptions"])
    texts = ["\n".join(footer(found))]
    if release == "sum":  # the other page takes twenty seconds to draw
        texts.append(unescape(render([read_run(run)])))
    for text in texts:
        assert attackers(release, "separate", found["headline"])[0].who in text
        assert "which also shuffles" not in text
    with pytest.raises(RunError, match="already released round 1"):
        served.analyzer(noted[0][0]).open(1, EVERYBODY)


@pytest.mark.parametrize(
    ("owner", "name", "lost"),
    [
        (RemoteShuffler, "open", True),
        (RemoteBatch, "close", True),
        (Run, "commit", True),
        (RemoteBatch, "fetch", False),
        (Run, "record", False),
    ],
)
def test_a_run_that_dies_anywhere_in_a_round_goes_on_with_that_round(
    served: Lab, monkeypatch: MonkeyPatch, owner: type, name: str, lost: bool
) -> None:
    batches: dict[int, list[list[bytes]]] = {}
    fetch = RemoteBatch.fetch

    def noted(self: RemoteBatch) -> Iterator[bytes]:
        batches.setdefault(self.number, []).append(list(fetch(self)))
        return iter(batches[self.number][-1])

    monkeypatch.setattr(RemoteBatch, "fetch", noted)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        before_second(patch, owner, name, die)
        play(served, "run")
    run = play(served, "run", resume="yes")
    assert attempts(run) == [(1, 1), *[(2, 0)] * lost, (2, 1), (3, 1)]
    assert summary(run)["rounds"] == 3
    # Whatever was fetched more than once was the same, byte for byte.
    assert all(pieces == fetched[0] for fetched in batches.values() for pieces in fetched)
    with sqlite3.connect(run / "ledger.sqlite") as database:
        assert database.execute("SELECT DISTINCT rounds FROM client_spend").fetchall() == [(3,)]


def unopenable(monkeypatch: MonkeyPatch, *which: int) -> None:
    """From now on the seals with these places among a round's are garbage of the right size."""
    calls, seal = list[bytes](), link.seal

    def some_are_garbage(message: bytes, public: bytes, info: bytes) -> bytes:
        calls.append(seal(message, public, info))
        garbage = (len(calls) - 1) % CLIENTS in which
        return secrets.token_bytes(len(calls[-1])) if garbage else calls[-1]

    monkeypatch.setattr(link, "seal", some_are_garbage)


@pytest.mark.parametrize("median", [False, True])
def test_unopenable_report_is_a_report_that_is_not_there(
    served: Lab, monkeypatch: MonkeyPatch, median: bool
) -> None:
    """The run goes on, and each round costs what it does where one of six clients colludes."""
    unopenable(monkeypatch, 0)
    # An analyzer gets single reports.
    settings = ["server.analyzer=coordinate-median"] * median
    run = play(served, "run", *settings)
    found, record = summary(run), read_run(run)
    assert not found["failed"] and found["rounds"] == 3
    assert "1 of 6 reports cannot be used" in (run / "run.log").read_text()
    assert [unusable for *_, unusable in record.attempts] == [1, 1, 1]
    assert [kind for _, kind, _ in record.notes if kind == "unusable"] == ["unusable"] * 3
    assert record.agrees and not len(record.differing)

    tables = resolve_config(CONFIG, [*settings, "privacy.assumed_honest=5"]).to_dict()
    rounds = [(number, EVERYBODY) for number in (1, 2, 3)]
    five, six = (
        Accountant.of(each, record.classes, record.class_of, record.meta["dimension"])
        for each in (tables, resolve_config(CONFIG, settings).to_dict())
    )
    wanted, less = five.count(rounds), six.count(rounds)
    assert wanted is not None and less is not None
    for name in ("shuffled", "local") if median else ("shuffled", "sum", "local"):
        assert record.spent(name) == wanted.columns[name].worst
    assert median or wanted.columns["sum"].worst > less.columns["sum"].worst


def with_a_worse_batch(lab: Lab, lacking: int, honest: int = 1) -> RemoteBatch:
    """A closed round of two batches: one lacks one usable report, the other `lacking`."""
    facts, site = replace(FACTS, batches=2), Link(lab.held_by("site-0"), 5.0)
    remote = lab.analyzer(facts, honest)
    batch, key = remote.open(1, EVERYBODY), public_key(lab.private)
    for client in range(CLIENTS):
        one, other = (seal(REPORTS[client].tobytes(), key, facts.info(1)) for _ in range(2))
        one = secrets.token_bytes(len(one)) if client == CLIENTS - 1 else one
        other = secrets.token_bytes(len(other)) if client < lacking else other
        site.ask(wire.DELIVER, wire.Call(facts, 1, client), one + other)
    assert batch.close().all()
    return batch


def test_unusable_reports_are_those_of_the_worst_batch(served: Lab) -> None:
    """The second batch lacks two reports, the first one: the round lacks two to the ledger."""
    shuffled = with_a_worse_batch(served, 2).release()
    assert (shuffled.count, shuffled.unusable) == (2 * CLIENTS - 3, 2)


@pytest.mark.parametrize(("lacking", "honest"), [(CLIENTS - 1, 1), (3, 4)])
def test_every_batch_needs_enough_usable_reports(served: Lab, lacking: int, honest: int) -> None:
    """A better first batch does not make up for a second one below `min_reports`, or below the
    number of honest clients."""
    batch = with_a_worse_batch(served, lacking, honest)
    with pytest.raises(UnusableBatchError, match="a batch has only") as refusal:
        batch.release()
    assert refusal.value.unusable == lacking


@pytest.mark.parametrize(
    ("garbage", "settings", "said"),
    [
        (range(4), [], "only 2 others; privacy.min_reports and privacy.assumed_honest need 3"),
        (range(2), ["privacy.assumed_honest=5"], "need 5"),
    ],
)
def test_too_few_usable_reports_end_the_run(
    served: Lab, monkeypatch: MonkeyPatch, garbage: range, settings: list[str], said: str
) -> None:
    unopenable(monkeypatch, *garbage)
    run = play(served, "run", *settings)
    found = summary(run)
    assert found["failed"] and found["rounds"] == 1 and said in found["stopped_early"]
    # The server has them all the same: their whole cost is on record.
    assert [unusable for *_, unusable in read_run(run).attempts] == [len(garbage)]


@pytest.mark.parametrize(("owner", "name"), [(Run, "amend"), (Run, "record")])
def test_unusable_report_is_counted_after_a_crash(
    served: Lab, monkeypatch: MonkeyPatch, owner: type, name: str
) -> None:
    """The run dies before the ledger knows of the report, or after."""
    unopenable(monkeypatch, 0)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        before_second(patch, owner, name, die)
        play(served, "run")
    record = read_run(play(served, "run", resume="yes"))
    assert [unusable for *_, unusable in record.attempts] == [1, 1, 1]
    assert [kind for _, kind, _ in record.notes if kind == "unusable"] == ["unusable"] * 3
    assert record.agrees and not len(record.differing) and record.finished
    # The verifier, which shares no code with the accountant, reads the same.
    (rounds,) = ledger_facts(record.path, "local", 0).facts["rounds"]
    assert (rounds["times"], rounds["colluders"]) == ("3", "1")


def test_what_is_older_than_the_run_or_counted_others_is_refused(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    lab, sent, close = Lab(tmp_path), noting(monkeypatch), RemoteBatch.close

    def others(self: RemoteBatch) -> Any:
        present = close(self)
        present[0] ^= self.number == 2
        return present

    before, right = tmp_path / "before", tmp_path / "right"  # in the first, round 2 is open
    with lab.serving(), monkeypatch.context() as patch, pytest.raises(Stop):
        before_second(patch, RemoteBatch, "close", lambda: shutil.copytree(lab.store, before))
        before_second(patch, RemoteBatch, "fetch", die)  # round 2 is counted, and not yet fetched
        play(lab, "run")
    shutil.copytree(lab.home / "run", lab.home / "older")
    lab.store.rename(right)
    before.rename(lab.store)
    with lab.serving():
        for _ in range(2):
            with pytest.raises(RunError, match="store is older than the run"):
                play(lab, "run", resume="yes")
        assert len(sent) == 2 * CLIENTS  # nobody is asked again
        # What that store had of the round is gone, and nobody can add to it.
        batch = lab.analyzer(sent[0][0]).open(2, ~EVERYBODY)
        with pytest.raises(PrivacyBudgetError, match="fewer usable reports"):
            batch.close()
    lab.store.rename(before)
    right.rename(lab.store)
    with lab.serving():
        with monkeypatch.context() as patch:
            patch.setattr(RemoteBatch, "close", others)
            with pytest.raises(RunError, match="holds other clients' reports"):
                play(lab, "run", resume="yes")
        assert attempts(play(lab, "run", resume="yes")) == [(1, 1), (2, 1), (3, 1)]
        with pytest.raises(RunError, match="already released round 2"):
            play(lab, "older", resume="data-unchanged")


def test_an_agreement_takes_the_reports_of_everybody() -> None:
    """Of the widest noise, up to the last grid point, and of the finest grid."""
    settings = ["budgets.distribution=uniform", "budgets.low=0.05", "budgets.high=6.0"]
    config = resolve_config(CONFIG, settings)
    clients = config.data.clients
    plan = make_plan(config, make_budgets(config.budgets, clients), np.ones(clients, np.int64))
    assert plan.largest.max() > 3.0 * plan.largest.min() and np.ptp(plan.step) > 0.0
    found = parties.agreement_of("5a" * 16, config, plan, 4)
    assert found.step == plan.step.min() and not np.mod(plan.step, found.step).any()
    assert found.largest * found.step == plan.largest.max()


def test_levels_of_all_clients_are_one_or_the_run_is_refused() -> None:
    """Who opens a sealed report does not know whose it is."""
    few, clients = ["privacy.report_bits=4"], resolve_config(CONFIG).data.clients
    records = np.ones(clients, np.int64)
    config = resolve_config(CONFIG, few)
    plan = make_plan(config, make_budgets(config.budgets, clients), records)
    found = parties.agreement_of("5a" * 16, config, plan, 5)
    assert found.levels is not None and found.report_bytes == 3
    assert found.levels.half[0] == plan.few_bits.half[0] and found.largest == 15 * found.half
    assert found.info(1) != replace(found, half=found.half - 1).info(1)
    settings = [*few, "budgets.distribution=uniform", "budgets.low=0.5", "budgets.high=6.0"]
    config = resolve_config(CONFIG, settings)
    plan = make_plan(config, make_budgets(config.budgets, clients), records)
    with pytest.raises(ConfigError, match="all clients need the same noise; set privacy.person"):
        parties.agreement_of("5a" * 16, config, plan, 5)
    config = resolve_config(CONFIG, [*settings, "privacy.personalization=clipping"])
    plan = make_plan(config, make_budgets(config.budgets, clients), records)
    assert parties.agreement_of("5a" * 16, config, plan, 5).bits == 4


def test_an_agreement_without_levels_is_bound_as_before_there_were_any() -> None:
    """A shuffler's stored run goes on."""
    assert b"bits" not in FACTS.encoded() and b"half" not in FACTS.encoded()
    assert b'"bits": 4' in replace(FACTS, bits=4, half=40).encoded()


def test_what_does_not_go_together_is_said_in_one_line(lab: Lab) -> None:
    config = resolve_config(CONFIG)
    inside = resolve_config(CONFIG, ["privacy.shuffler=server"])
    with pytest.raises(ConfigError, match="a simulation runs all parties in one process"):
        simulate(config)
    site, analyzer = str(lab.given("site-0")), {parties.SHUFFLER: str(lab.given("analyzer"))}
    both = {parties.SHUFFLER: site, parties.ANALYZER_KEY: str(lab.home / "analyzer.key.pub")}
    for read, wanted, configured, message in (
        (parties.sender_of, config, {}, "this node knows no shuffler"),
        (parties.sender_of, inside, both, "to its own shuffler and to nobody else"),
        (parties.sender_of, config, {parties.SHUFFLER: site}, "and no analyzer-key"),
        (parties.sender_of, config, {**both, parties.SHUFFLER: "s.json"}, "must be an absolute"),
        (parties.sender_of, config, {**both, **analyzer}, "is not the site file"),
        (parties.sender_of, config, {**both, parties.ANALYZER_KEY: site}, "holds no key"),
        (parties.link_of, config, {}, "names no shuffler"),
        (parties.link_of, config, analyzer, "names no analyzer-key"),
        (parties.link_of, inside, {parties.SHUFFLER: site}, "uses none"),
    ):
        with pytest.raises(ConfigError, match=message):
            read(wanted, configured)
    assert parties.link_of(inside, {}) is None

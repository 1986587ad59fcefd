"""Rounds with a shuffler apart: what the server gets, and how a run that was stopped goes on."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from safetensors.torch import load_file

from clients.app import app as client_app
from fl_shuffle.accounting.rounds.trust import towards
from fl_shuffle.api import simulate
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.data.task import load_task
from fl_shuffle.errors import ConfigError, InvalidValueError, RunError
from fl_shuffle.flower import remote_shuffler as parties
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.settings import RESOLVED
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.ledger.writer import LedgerWriter
from fl_shuffle.report.page import render
from fl_shuffle.report.record import read_run
from fl_shuffle.run_words import footer
from fl_shuffle.shuffler.remote import link, wire
from fl_shuffle.shuffler.remote.client import RemoteShuffler
from fl_shuffle.shuffler.remote.link import Sender
from server.app import app as server_app
from tests.apps.test_own_federation import client as own_client
from tests.apps.test_own_federation import server as own_server
from tests.shuffler.remote.small_shuffler import CLIENTS, FACTS, Lab, make_lab, serving
from tests.small_federation import summary

TABLES: dict[str, dict[str, Any]] = {
    "run": {"rounds": 3, "entropy": "system", "timeout": 60.0},
    "data": {"clients": CLIENTS},
    "privacy": {"unit": "client", "clip_norm": 0.5, "shuffler": "apart", "min_reports": 3},
    "budgets": {"distribution": "constant", "epsilon": 2.0},
}


class Stop(RuntimeError):
    """The process dies here."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = make_lab(tmp_path, sites=1)
    with serving(lab):
        yield lab


def tables(**changes: Any) -> dict[str, dict[str, Any]]:
    found = {name: dict(table) for name, table in TABLES.items()}
    for key, value in changes.items():
        section, _, name = key.partition("_")
        found.setdefault(section, {})[name] = value
    return found


def play(
    lab: Lab, name: str, *, resume: str = "no", replies: list[Message] | None = None,
    own: bool = False, **changes: Any,
) -> Path:  # fmt: skip
    """Run the reference apps, or a user's own, in this process, with a shuffler that listens; the
    run's folder."""
    config, out = parse_config(tables(**changes)), lab.home / name
    node_app, play_server = (own_client, own_server) if own else (client_app, server_app)
    node: dict[str, Any] = {
        parties.SHUFFLER: str(lab.given("site-0")),
        parties.ANALYZER_KEY: str(lab.home / "analyzer.key.pub"),
    }

    def noded(message: Message, context: Context) -> Message:
        mine = Context(context.run_id, context.node_id, node, RecordDict(), context.run_config)
        reply = node_app(message, mine)
        if replies is not None:
            replies.append(reply)
        return reply

    settings: dict[str, Any] = {
        RESOLVED: config.to_json(),
        "run-directory": str(out),
        "resume": resume,
        parties.SHUFFLER: str(lab.given("analyzer")),
        parties.ANALYZER_KEY: str(lab.home / "analyzer.key")
        if config.privacy.release == "reports"
        else "",
    }
    grid = InProcessGrid(noded, settings, nodes=2)  # type: ignore[arg-type]
    with closing(grid):
        play_server(grid, Context(grid.run.run_id, 1, {}, RecordDict(), settings))
    return out


def attempts(run: Path) -> list[tuple[int, int]]:
    with sqlite3.connect(run / "ledger.sqlite") as database:
        return database.execute("SELECT round, released FROM reservations").fetchall()


@pytest.mark.parametrize(
    ("release", "batches", "own"),
    [("reports", 3, False), ("sum", 1, False), ("reports", 1, True)],
)
def test_the_server_steps_along_the_mean_of_what_was_handed_over(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, release: str, batches: int, own: bool
) -> None:
    sent, send = [], Sender.send

    def noted(self: Sender, facts: Any, number: int, who: int, reports: Any) -> None:
        sent.append(reports.copy())
        send(self, facts, number, who, reports)

    monkeypatch.setattr(Sender, "send", noted)
    replies: list[Message] = []
    changes = {"run_rounds": 1, "privacy_release": release, "server_learning_rate": 1.0}
    changes["privacy_reports_per_round"] = batches
    if own:
        changes["app_client"] = changes["app_server"] = "tests.apps.test_own_federation:client"
    run = play(lab, "run", replies=replies, own=own, **changes)
    assert len(sent) == CLIENTS and {len(reports) for reports in sent} == {batches}
    assert len({row.tobytes() for reports in sent for row in reports}) == CLIENTS * batches
    assert replies and not any(list(reply.content) for reply in replies)
    # A report points uphill; the own app's first model is zero.
    config, last = parse_config(tables(**changes)), load_file(run / "model.safetensors")
    first = {"weight": torch.zeros(6)} if own else load_task(config).model(config).state_dict()
    step = [(values - last[name]).double().reshape(-1) for name, values in first.items()]
    mean = torch.from_numpy(np.concatenate(sent)).double().mean(dim=0)
    torch.testing.assert_close(torch.cat(step), mean, rtol=0.0, atol=1e-6)
    found = summary(run)
    assert found["headline"] == ("sum" if release == "sum" else "proven")
    assert any("the shuffler is a party of its own" in text for text in found["assumptions"])
    for text in (unescape(render([read_run(run)])), "\n".join(footer(found))):
        assert towards(release, "apart") in text
        assert "which shuffles, too" not in text
    with pytest.raises(wire.ShufflerError, match="handed over"):
        list(lab.analyzer(replace(FACTS, run=run_id(run))).fetch(1))


def run_id(run: Path) -> str:
    return str(LedgerRecord(run / "ledger.sqlite").meta["run"])


def dying(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, number: int) -> None:
    """The process dies when the method is called for this round, the first time."""
    whole, left = getattr(owner, name), [1]

    def once(self: Any, round_number: int, *rest: Any) -> Any:
        if round_number == number and left:
            left.clear()
            raise Stop
        return whole(self, round_number, *rest)

    monkeypatch.setattr(owner, name, once)


@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [
        (RemoteShuffler, "open", [(1, 1), (2, 0), (2, 1), (3, 1)]),
        (RemoteShuffler, "close", [(1, 1), (2, 0), (2, 1), (3, 1)]),
        (LedgerWriter, "commit", [(1, 1), (2, 0), (2, 1), (3, 1)]),
        (RemoteShuffler, "fetch", [(1, 1), (2, 1), (3, 1)]),
        (LedgerWriter, "checkpoint", [(1, 1), (2, 1), (3, 1)]),
    ],
)
def test_a_run_that_dies_anywhere_in_a_round_goes_on_with_that_round(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    expected: list[tuple[int, int]],
) -> None:
    batches: dict[int, list[list[bytes]]] = {}
    fetch = RemoteShuffler.fetch

    def noted(self: RemoteShuffler, number: int) -> Iterator[bytes]:
        pieces = list(fetch(self, number))
        batches.setdefault(number, []).append(pieces)
        return iter(pieces)

    monkeypatch.setattr(RemoteShuffler, "fetch", noted)
    dying(monkeypatch, owner, name, 2)
    with pytest.raises(Stop):
        play(lab, "run")
    run = play(lab, "run", resume="yes")
    assert attempts(run) == expected
    assert summary(run)["rounds"] == 3
    # Whatever was fetched more than once was the same, byte for byte.
    assert all(pieces == fetched[0] for fetched in batches.values() for pieces in fetched)
    with sqlite3.connect(run / "ledger.sqlite") as database:
        assert database.execute("SELECT DISTINCT rounds FROM client_spend").fetchall() == [(3,)]


def garbage_from(monkeypatch: pytest.MonkeyPatch, culprits: int) -> None:
    calls, seal = [0], link.seal

    def sealed(message: bytes, public: bytes, info: bytes) -> bytes:
        calls[0] += 1
        right = seal(message, public, info)
        return bytes(len(right)) if calls[0] <= culprits else right

    monkeypatch.setattr(link, "seal", sealed)


def test_reports_that_cannot_be_used_end_the_run_unless_some_may_be_hostile(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    garbage_from(monkeypatch, 1)
    found = summary(play(lab, "run"))
    assert found["failed"] and found["rounds"] == 1
    assert "1 of 6 reports cannot be used" in found["stopped_early"]
    garbage_from(monkeypatch, 1)
    # An analyzer gets single reports.
    median = {"server_analyzer": "coordinate-median"}
    run = play(lab, "other", privacy_assumed_honest=4, **median)
    assert summary(run)["rounds"] == 3
    assert "1 of 6 reports cannot be used" in (run / "run.log").read_text()


@pytest.fixture
def stopped(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Whose run has died with a round that is counted, and not yet fetched."""
    dying(monkeypatch, RemoteShuffler, "fetch", 2)
    with pytest.raises(Stop):
        play(lab, "run")
    return lab


def test_a_run_directory_that_is_older_than_the_run_is_refused(stopped: Lab) -> None:
    shutil.copytree(stopped.home / "run", stopped.home / "older")
    assert summary(play(stopped, "run", resume="yes"))["rounds"] == 3
    with pytest.raises(RunError, match="handed round 2 over already"):
        play(stopped, "older", resume="data-unchanged")


def test_a_ledger_that_counted_others_is_refused(
    stopped: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = RemoteShuffler.close

    def others(self: RemoteShuffler, number: int) -> Any:
        present = whole(self, number)
        if present is not None and number == 2:
            present[0] = not present[0]
        return present

    with monkeypatch.context() as patch:
        patch.setattr(RemoteShuffler, "close", others)
        with pytest.raises(RunError, match="holds other clients' reports"):
            play(stopped, "run", resume="yes")
    assert attempts(play(stopped, "run", resume="yes")) == [(1, 1), (2, 1), (3, 1)]


def test_a_shufflers_store_that_is_older_than_the_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(tmp_path, sites=1)
    whole = RemoteShuffler.close

    def copied(self: RemoteShuffler, number: int) -> Any:
        if number == 2:
            shutil.copytree(lab.store, tmp_path / "before")  # round 2 is open there
        return whole(self, number)

    dying(monkeypatch, RemoteShuffler, "fetch", 2)
    monkeypatch.setattr(RemoteShuffler, "close", copied)
    with serving(lab), pytest.raises(Stop):
        play(lab, "run")
    monkeypatch.setattr(RemoteShuffler, "close", whole)
    lab.store.rename(tmp_path / "right")
    (tmp_path / "before").rename(lab.store)
    asked: list[Message] = []
    with serving(lab):
        for _ in range(2):
            with pytest.raises(RunError, match="store is older than the run"):
                play(lab, "run", resume="yes", replies=asked)
        assert not asked
        # What that store had of the round is gone, and nobody can add to it.
        facts = replace(FACTS, run=run_id(lab.home / "run"))
        assert lab.analyzer(facts).close(2) is None


def test_what_does_not_go_together_is_said_in_one_line(lab: Lab) -> None:
    for wrong in (
        {"run_entropy": "seeded"},
        {"training_schedule": "sequential"},
        {"privacy_release": "sum", "privacy_randomizer": "some:randomizer"},
    ):
        with pytest.raises(InvalidValueError, match="privacy.shuffler = 'apart'"):
            parse_config(tables(**wrong))
    config, inside = parse_config(tables()), parse_config(tables(privacy_shuffler="in-server"))
    with pytest.raises(ConfigError, match="in a simulation one process plays all parties"):
        simulate(config)
    site, key = str(lab.given("site-0")), str(lab.home / "analyzer.key.pub")
    both = {parties.SHUFFLER: site, parties.ANALYZER_KEY: key}
    for wanted, node, message in (
        (config, {}, "this node knows no shuffler"),
        (inside, both, "this node hands reports to its own shuffler and to nobody else"),
        (config, {parties.SHUFFLER: site}, "and no analyzer-key"),
        (config, {**both, parties.SHUFFLER: "site-0.json"}, "must be an absolute file name"),
        (config, {**both, parties.SHUFFLER: str(lab.given("analyzer"))}, "is no site file"),
        (config, {**both, parties.ANALYZER_KEY: site}, "holds no key"),
    ):
        with pytest.raises(ConfigError, match=message):
            parties.sender_of(wanted, node)
    for wanted, settings, message in (
        (config, {}, "names no shuffler"),
        (config, {parties.SHUFFLER: str(lab.given("analyzer"))}, "names no analyzer-key"),
        (inside, {parties.SHUFFLER: site}, "uses none"),
    ):
        with pytest.raises(ConfigError, match=message):
            parties.link_of(wanted, settings)
    assert parties.link_of(inside, {}) is None

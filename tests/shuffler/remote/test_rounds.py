"""Rounds with a shuffler apart: what the server gets, and how a run that was stopped goes on."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from pytest import MonkeyPatch
from safetensors.torch import load_file

from clients.app import app as client_app
from fl_shuffle.accounting.rounds.trust import towards
from fl_shuffle.api import simulate
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.data.task import load_task
from fl_shuffle.errors import ConfigError, InvalidValueError, PrivacyBudgetError, RunError
from fl_shuffle.flower import remote_shuffler as parties
from fl_shuffle.flower.settings import RESOLVED
from fl_shuffle.report.page import render
from fl_shuffle.report.record import read_run
from fl_shuffle.run_words import footer
from fl_shuffle.runs.run import Run
from fl_shuffle.shuffler.remote import link
from fl_shuffle.shuffler.remote.agreement import Agreement
from fl_shuffle.shuffler.remote.client import RemoteBatch, RemoteShuffler
from fl_shuffle.shuffler.remote.link import Sender
from server.app import app as server_app
from tests.apps import test_own_federation as own_federation
from tests.one_node import nodes
from tests.shuffler.remote.small_shuffler import CLIENTS, EVERYBODY, Lab
from tests.small_federation import summary

Apps = tuple[Callable[..., Message], Callable[..., None]]
CONFIG = {
    "run": {"rounds": 3, "entropy": "system", "timeout": 60.0},
    "data": {"clients": CLIENTS},
    "privacy": {"unit": "client", "clip_norm": 0.5, "shuffler": "apart", "min_reports": 3},
    "budgets": {"distribution": "constant", "epsilon": 2.0},
}


class Stop(RuntimeError):
    """The process dies here."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, sites=1)
    with lab.serving():
        yield lab


def play(
    lab: Lab, name: str, *settings: str, apps: Apps = (client_app, server_app), resume: str = "no"
) -> Path:
    """Run these apps in this process, with a shuffler that listens; the run's folder. No node's
    reply holds anything."""
    config, key = resolve_config(CONFIG, settings), str(lab.home / "analyzer.key")
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
    assert not any(list(reply.content) for reply in replies)
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


def before_second(
    monkeypatch: MonkeyPatch, owner: type, name: str, first: Callable[[], None]
) -> None:
    """Call `first` before the method is called for the second round."""
    whole, calls = getattr(owner, name), list[None]()

    def called(*given: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) == 2:
            first()
        return whole(*given, **named)

    monkeypatch.setattr(owner, name, called)


def die() -> None:
    raise Stop


@pytest.mark.parametrize(
    ("release", "batches", "apps"),
    [
        ("reports", 3, (client_app, server_app)),
        ("sum", 1, (client_app, server_app)),
        ("reports", 1, (own_federation.client, own_federation.server)),
    ],
)
def test_the_server_steps_along_the_mean_of_what_was_handed_over(
    lab: Lab, monkeypatch: MonkeyPatch, release: str, batches: int, apps: Apps
) -> None:
    noted, own = noting(monkeypatch), apps[0] is own_federation.client
    settings = [f"privacy.release={release}", f"privacy.reports_per_round={batches}"]
    settings += ["run.rounds=1", "server.learning_rate=1.0"]
    if own:
        settings += ["app.client=own:client", "app.server=own:server"]
    run = play(lab, "run", *settings, apps=apps)
    sent = [reports for _, reports in noted]
    assert len(sent) == CLIENTS and {len(reports) for reports in sent} == {batches}
    assert len({row.tobytes() for reports in sent for row in reports}) == CLIENTS * batches
    # A report points uphill; the own app's first model is zero.
    config, last = resolve_config(CONFIG, settings), load_file(run / "model.safetensors")
    first = {"weight": torch.zeros(6)} if own else load_task(config).model(config).state_dict()
    step = [(values - last[name]).double().reshape(-1) for name, values in first.items()]
    mean = torch.from_numpy(np.concatenate(sent)).double().mean(dim=0)
    torch.testing.assert_close(torch.cat(step), mean, rtol=0.0, atol=1e-6)
    found = summary(run)
    assert found["headline"] == ("sum" if release == "sum" else "proven")
    assert any("the shuffler is a party of its own" in text for text in found["assumptions"])
    texts = ["\n".join(footer(found))]
    if release == "sum":  # the other page takes twenty seconds to draw
        texts.append(unescape(render([read_run(run)])))
    for text in texts:
        assert towards(release, "apart") in text and "which shuffles, too" not in text
    with pytest.raises(RunError, match="handed round 1 over"):
        lab.analyzer(noted[0][0]).open(1, EVERYBODY)


@pytest.mark.parametrize(
    ("owner", "name", "lost"),
    [
        (RemoteShuffler, "open", True),
        (RemoteBatch, "close", True),
        (Run, "commit", True),
        (RemoteBatch, "fetch", False),
        (Run, "checkpoint", False),
    ],
)
def test_a_run_that_dies_anywhere_in_a_round_goes_on_with_that_round(
    lab: Lab, monkeypatch: MonkeyPatch, owner: type, name: str, lost: bool
) -> None:
    batches: dict[int, list[list[bytes]]] = {}
    fetch = RemoteBatch.fetch

    def noted(self: RemoteBatch) -> Iterator[bytes]:
        batches.setdefault(self.number, []).append(list(fetch(self)))
        return iter(batches[self.number][-1])

    monkeypatch.setattr(RemoteBatch, "fetch", noted)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        before_second(patch, owner, name, die)
        play(lab, "run")
    run = play(lab, "run", resume="yes")
    assert attempts(run) == [(1, 1), *[(2, 0)] * lost, (2, 1), (3, 1)]
    assert summary(run)["rounds"] == 3
    # Whatever was fetched more than once was the same, byte for byte.
    assert all(pieces == fetched[0] for fetched in batches.values() for pieces in fetched)
    with sqlite3.connect(run / "ledger.sqlite") as database:
        assert database.execute("SELECT DISTINCT rounds FROM client_spend").fetchall() == [(3,)]


def test_reports_that_cannot_be_used_end_the_run_unless_some_may_be_hostile(
    lab: Lab, monkeypatch: MonkeyPatch
) -> None:
    calls, seal = list[bytes](), link.seal

    def first_is_garbage(message: bytes, public: bytes, info: bytes) -> bytes:
        calls.append(seal(message, public, info))
        return calls[-1] if len(calls) > 1 else bytes(len(calls[-1]))

    monkeypatch.setattr(link, "seal", first_is_garbage)
    found = summary(play(lab, "run"))
    assert found["failed"] and found["rounds"] == 1
    assert "1 of 6 reports cannot be used" in found["stopped_early"]
    calls.clear()
    # An analyzer gets single reports.
    median = "server.analyzer=coordinate-median"
    run = play(lab, "other", "privacy.assumed_honest=4", median)
    assert summary(run)["rounds"] == 3
    assert "1 of 6 reports cannot be used" in (run / "run.log").read_text()


def test_ledgers_that_are_older_than_the_run_or_counted_others_are_refused(
    lab: Lab, monkeypatch: MonkeyPatch
) -> None:
    close = RemoteBatch.close

    def others(self: RemoteBatch) -> Any:
        present = close(self)
        present[0] ^= self.number == 2
        return present

    with monkeypatch.context() as patch, pytest.raises(Stop):
        before_second(patch, RemoteBatch, "fetch", die)  # round 2 is counted, and not yet fetched
        play(lab, "run")
    shutil.copytree(lab.home / "run", lab.home / "older")
    with monkeypatch.context() as patch:
        patch.setattr(RemoteBatch, "close", others)
        with pytest.raises(RunError, match="holds other clients' reports"):
            play(lab, "run", resume="yes")
    assert attempts(play(lab, "run", resume="yes")) == [(1, 1), (2, 1), (3, 1)]
    with pytest.raises(RunError, match="handed round 2 over already"):
        play(lab, "older", resume="data-unchanged")


def test_a_shufflers_store_that_is_older_than_the_run_is_refused(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    lab, sent = Lab(tmp_path, sites=1), noting(monkeypatch)
    before = tmp_path / "before"  # round 2 is open there
    with lab.serving(), monkeypatch.context() as patch, pytest.raises(Stop):
        before_second(patch, RemoteBatch, "close", lambda: shutil.copytree(lab.store, before))
        before_second(patch, RemoteBatch, "fetch", die)
        play(lab, "run")
    lab.store.rename(tmp_path / "right")
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


def test_what_does_not_go_together_is_said_in_one_line(lab: Lab) -> None:
    for wrong in (
        ["run.entropy=seeded"],
        ["training.schedule=sequential"],
        ["privacy.release=sum", "privacy.randomizer=some:randomizer"],
    ):
        with pytest.raises(InvalidValueError, match="privacy.shuffler = 'apart'"):
            resolve_config(CONFIG, wrong)
    config = resolve_config(CONFIG)
    inside = resolve_config(CONFIG, ["privacy.shuffler=in-server"])
    with pytest.raises(ConfigError, match="in a simulation one process plays all parties"):
        simulate(config)
    site, analyzer = str(lab.given("site-0")), {parties.SHUFFLER: str(lab.given("analyzer"))}
    both = {parties.SHUFFLER: site, parties.ANALYZER_KEY: str(lab.home / "analyzer.key.pub")}
    for read, wanted, given, message in (
        (parties.sender_of, config, {}, "this node knows no shuffler"),
        (parties.sender_of, inside, both, "to its own shuffler and to nobody else"),
        (parties.sender_of, config, {parties.SHUFFLER: site}, "and no analyzer-key"),
        (parties.sender_of, config, {**both, parties.SHUFFLER: "s.json"}, "must be an absolute"),
        (parties.sender_of, config, {**both, **analyzer}, "is no site file"),
        (parties.sender_of, config, {**both, parties.ANALYZER_KEY: site}, "holds no key"),
        (parties.link_of, config, {}, "names no shuffler"),
        (parties.link_of, config, analyzer, "names no analyzer-key"),
        (parties.link_of, inside, {parties.SHUFFLER: site}, "uses none"),
    ):
        with pytest.raises(ConfigError, match=message):
            read(wanted, given)
    assert parties.link_of(inside, {}) is None

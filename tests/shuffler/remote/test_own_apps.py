"""A user's own apps with a shuffler apart: it gets the reports, the server what it releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from safetensors.numpy import load_file

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import ConfigError
from fl_shuffle.flower import remote_shuffler as parties
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.settings import RESOLVED
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.shuffler.remote.link import Sender
from tests.apps.test_own_federation import client, server, settings
from tests.shuffler.remote.small_shuffler import CLIENTS, Lab, make_lab, serving


def play(lab: Lab, replies: list[Message], **privacy: Any) -> Path:
    """Run the apps in this process, with a shuffler that listens; the run's folder."""
    tables = settings(rounds=1, entropy="system", timeout=60.0)
    tables["data"] = {"clients": CLIENTS}
    tables["privacy"] |= {"shuffler": "apart", "min_reports": 3, **privacy}
    tables["server"] = {"learning_rate": 1.0}
    config = parse_config(tables)
    key = lab.home / "analyzer.key"
    node: dict[str, Any] = {
        parties.SHUFFLER: str(lab.given("site-0")),
        parties.ANALYZER_KEY: f"{key}.pub",
    }

    def noded(message: Message, context: Context) -> Message:
        own = Context(context.run_id, context.node_id, node, RecordDict(), context.run_config)
        replies.append(client(message, own))
        return replies[-1]

    run_config: dict[str, Any] = {
        RESOLVED: config.to_json(),
        "run-directory": str(lab.home / "run"),
    }
    if config.privacy.shuffler == "apart":
        run_config[parties.SHUFFLER] = str(lab.given("analyzer"))
    if config.privacy.shuffler == "apart" and config.privacy.release == "reports":
        run_config[parties.ANALYZER_KEY] = str(key)
    grid = InProcessGrid(noded, run_config, nodes=2)  # type: ignore[arg-type]
    try:
        server(grid, Context(grid.run.run_id, 1, {}, RecordDict(), run_config))
    finally:
        grid.close()
    return lab.home / "run"


@pytest.mark.parametrize("release", ["reports", "sum"])
def test_the_server_gets_what_the_shuffler_releases_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    sent, send = {}, Sender.send

    def noted(self: Sender, facts: Any, number: int, who: int, reports: Any) -> None:
        sent[who] = reports[0].copy()
        send(self, facts, number, who, reports)

    monkeypatch.setattr(Sender, "send", noted)
    lab, replies = make_lab(tmp_path, sites=1), []  # type: tuple[Lab, list[Message]]
    with serving(lab):
        run = play(lab, replies, release=release)
    assert sorted(sent) == list(range(CLIENTS))
    assert replies and not any(list(reply.content) for reply in replies)
    # The first model is zero, and an update is what was received minus what was trained.
    mean = np.stack(list(sent.values())).astype(np.float64).mean(axis=0)
    weight = load_file(run / "model.safetensors")["weight"][0]
    np.testing.assert_allclose(weight, -mean, rtol=0.0, atol=1e-6)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["headline"] == ("sum" if release == "sum" else "proven")
    assert LedgerRecord(run / "ledger.sqlite").reports.tolist() == [CLIENTS]


def test_a_node_with_a_shuffler_gives_the_server_nothing(tmp_path: Path) -> None:
    lab, replies = make_lab(tmp_path, sites=1), []  # type: tuple[Lab, list[Message]]
    with serving(lab), pytest.raises(ConfigError, match="to nobody else; use 'apart'"):
        play(lab, replies, shuffler="in-server")
    assert not replies

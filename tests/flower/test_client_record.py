"""A client's own record: durable, per client, and never above the limit."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.app import app
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.reports import ClientClass
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.flower import answers
from fl_shuffle.flower.client_record import ClientRecord
from fl_shuffle.flower.messages import TrainRequest, array_record
from fl_shuffle.refusal_log import RefusalLog
from tests.one_node import nodes, replies, reports_of

ONE, DELTA = np.array([4]), 1e-5
KINDS = st.sampled_from(["gaussian", "laplace", "user"])


def kind(noise: str, exposure: float) -> ClientClass:
    return ClientClass(noise, 1.0 / exposure, 10.0, 1.0, exposure, 1e-7, 10)


@settings(max_examples=20, deadline=None)
@given(
    asked=st.lists(st.tuples(KINDS, st.floats(0.05, 1.0), st.integers(1, 3)), max_size=8),
    limit=st.floats(0.2, 6.0),
)
def test_what_is_within_the_limit_is_sent_and_no_further(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[str, float, int]], limit: float
) -> None:
    """Rounds of several reports each."""
    record = ClientRecord(tmp_path_factory.mktemp("record") / "r.sqlite", limit, DELTA)
    spent = np.zeros(3)  # squares of mu, epsilons, deltas
    for number, (noise, exposure, times) in enumerate(asked):
        squares = exposure**2 if noise == "gaussian" else 0.0
        epsilons = 0.0 if noise == "gaussian" else exposure
        after = spent + times * np.array([squares, epsilons, 1e-7 * (noise == "user")])
        epsilon = gaussian_epsilon(DELTA - after[2], after[0] ** 0.5) + after[1]
        sent = record.debit("run", number, ONE, [kind(noise, exposure)], times)[0]
        if abs(epsilon - limit) > 1e-9:
            assert sent == (epsilon < limit)
        spent = after if sent else spent


def test_clients_are_counted_apart_and_a_restart_forgets_nothing(tmp_path: Path) -> None:
    what, both, path = kind("laplace", 1.0), np.array([4, 9]), tmp_path / "r.sqlite"
    assert ClientRecord(path, 2.5, DELTA).debit("a", 1, both, [what, what]).tolist() == [True] * 2
    again = ClientRecord(path, 2.5, DELTA)
    assert not again.debit("a", 1, ONE, [what])[0]  # a second report on the same round
    assert again.debit("a", 2, ONE, [what])[0]
    assert again.debit("b", 1, both, [what, what]).tolist() == [False, True]
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT client, run, round FROM reports").fetchall()
    assert rows == [(4, "a", 1), (4, "a", 2), (9, "a", 1), (9, "b", 1)]


def test_half_a_record_or_one_that_cannot_be_written_stops_everything(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"not a database" * 100)
    for path in (tmp_path / "no" / "folder", tmp_path / "junk"):
        with pytest.raises(ConfigError, match="record"):
            ClientRecord(path, 1.0, DELTA).debit("a", 1, ONE, [kind("user", 0.1)])
    whole = {"record": "/tmp/r", "lifetime-epsilon": 1.0}
    for bad in ({"record": None}, {"lifetime-epsilon": None}, {"record": "relative"},
                {"record": 5}, {"lifetime-epsilon": 0.0}, {"lifetime-epsilon": "8"},
                {"lifetime-delta": 1.0}):  # fmt: skip
        with pytest.raises((ConfigError, InvalidValueError)):
            ClientRecord.of({**whole, **bad})
    assert ClientRecord.of({"partition-id": 0}) is None


def test_the_client_app_sends_nothing_beyond_the_record(tmp_path: Path) -> None:
    config = {"record": str(tmp_path / "r.sqlite"), "lifetime-epsilon": 1.2}
    tables = {"data": {"clients": 10}, "budgets": {"epsilon": 1.0}}
    model, both = array_record({"p": np.zeros(650, np.float32)}, shared=True), np.arange(2)
    with nodes(app, tables={**tables, "run": {"entropy": "system"}}, node_config=config) as grid:
        asked = [TrainRequest(number, both).message(model, 2) for number in (1, 1, 2, 3)]
        first, *later = [reports_of(reply) for reply in grid.send_and_receive(asked)]
    assert np.isfinite(first).all() and np.isnan(later).all()
    seeded = nodes(app, tables=tables, node_config=config)
    with seeded as grid, pytest.raises(ConfigError, match="entropy"):
        grid.send_and_receive([TrainRequest(4, both).message(model, 2)])


def test_refused_requests_leave_one_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a server asks in vain: beyond the record, on others' clients, with seeded noise."""
    monkeypatch.setattr(answers, "refusals", RefusalLog(logging.getLogger("fl_shuffle.client")))
    own = {"record": str(tmp_path / "r.sqlite"), "lifetime-epsilon": 1.2}
    parts = {"partition-id": 0, "num-partitions": 5}
    tables = {"data": {"clients": 10}, "budgets": {"epsilon": 1.0}}
    model, two = array_record({"p": np.zeros(650, np.float32)}, shared=True), np.arange(2)
    system = {**tables, "run": {"entropy": "system"}}
    rounds = [TrainRequest(number, two) for number in (1, 2, 2)]
    for asked, configured, node in (
        (rounds, system, {**own, **parts}),
        ([TrainRequest(3, np.array([7]))] * 5, system, parts),
        ([TrainRequest(4, two)] * 5, tables, {**own, **parts}),
    ):
        for request in asked:
            with suppress(ConfigError, InvalidValueError):
                replies(app, model, request, tables=configured, node_config=node)
    said = [line for line in caplog.messages if line.startswith("refused")]
    assert len(said) == 3, said
    assert "2 of 2 clients' reports on round 2: this node's record forbids them" in said[0]
    assert "requested clients" in said[1] and "run.entropy = 'seeded'" in said[2]

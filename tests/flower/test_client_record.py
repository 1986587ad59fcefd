"""A client's own record: durable, per client, and never above the limit."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.app import app
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.reports import ClientClass
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.flower.client_record import ClientRecord
from fl_shuffle.flower.messages import Layout, TrainRequest
from tests.one_node import nodes, reports_of

ONE = np.array([4])
DELTA = 1e-5


def kind(noise: str, exposure: float) -> ClientClass:
    return ClientClass(noise, 1.0 / exposure, 10.0, 1.0, exposure, 1e-7, 10)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("noise", ["gaussian", "laplace", "user"])
def test_the_last_round_within_the_limit_is_sent_and_no_further(
    noise: str, times: int, tmp_path: Path
) -> None:
    """Rounds of several reports each."""
    exposure = 0.25
    limit = 3 * times * exposure
    if noise == "gaussian":
        limit = gaussian_epsilon(DELTA, exposure * (3 * times) ** 0.5)
    for share, expected in ((1 + 1e-9, 3), (0.999, 2)):
        record = ClientRecord(tmp_path / str(share), limit * share, DELTA)
        what = [kind(noise, exposure)]
        sent = [record.debit("run", n, ONE, what, times)[0] for n in range(1, 7)]
        assert sum(sent) == expected


@settings(max_examples=20, deadline=None)
@given(
    asked=st.lists(
        st.tuples(st.sampled_from(["gaussian", "laplace", "user"]), st.floats(0.05, 1.0)),
        min_size=1,
        max_size=8,
    ),
    limit=st.floats(0.2, 6.0),
)
def test_what_was_sent_never_exceeds_the_limit(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[str, float]], limit: float
) -> None:
    record = ClientRecord(tmp_path_factory.mktemp("record") / "r.sqlite", limit, DELTA)
    squares = sums = deltas = 0.0
    for number, (noise, exposure) in enumerate(asked):
        what = kind(noise, exposure)
        if record.debit("run", number, ONE, [what])[0]:
            squares += what.exposure**2 if noise == "gaussian" else 0.0
            sums += what.exposure if noise != "gaussian" else 0.0
            deltas += what.delta0 if noise == "user" else 0.0
    assert gaussian_epsilon(DELTA - deltas, squares**0.5) + sums <= limit * (1 + 1e-9)


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


def test_a_record_that_cannot_be_written_stops_everything(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="record"):
        ClientRecord(tmp_path / "no" / "folder", 1.0, DELTA).debit("a", 1, ONE, [kind("user", 0.1)])
    (tmp_path / "junk").write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigError, match="record"):
        ClientRecord(tmp_path / "junk", 1.0, DELTA).debit("a", 1, ONE, [kind("user", 0.1)])


@pytest.mark.parametrize(
    "config",
    [{"record": "/tmp/r.sqlite"}, {"lifetime-epsilon": 1.0},
     {"record": "relative", "lifetime-epsilon": 1.0}, {"record": 5, "lifetime-epsilon": 1.0},
     {"record": "/tmp/r", "lifetime-epsilon": 0.0}, {"record": "/tmp/r", "lifetime-epsilon": "8"},
     {"record": "/tmp/r", "lifetime-epsilon": 1.0, "lifetime-delta": 1.0}],
)  # fmt: skip
def test_half_a_record_is_refused(config: dict[str, object]) -> None:
    with pytest.raises((ConfigError, InvalidValueError)):
        ClientRecord.of(config)
    assert ClientRecord.of({"partition-id": 0}) is None


def test_the_client_app_sends_nothing_beyond_the_record(tmp_path: Path) -> None:
    config = {"record": str(tmp_path / "r.sqlite"), "lifetime-epsilon": 1.2}
    tables = {"data": {"clients": 10}, "budgets": {"epsilon": 1.0}}
    model = Layout.flat(650).record(np.zeros(650, np.float32))
    system = {**tables, "run": {"entropy": "system"}}
    with nodes(app, tables=system, node_config=config) as grid:
        asked = [TrainRequest(number, np.arange(2)).message(model, 2) for number in (1, 1, 2, 3)]
        first, *later = [reports_of(reply) for reply in grid.send_and_receive(asked)]
    assert np.isfinite(first).all() and np.isnan(later).all()
    seeded = nodes(app, tables=tables, node_config=config)
    with seeded as grid, pytest.raises(ConfigError, match="entropy"):
        grid.send_and_receive([TrainRequest(4, np.arange(2)).message(model, 2)])

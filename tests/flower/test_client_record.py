"""A site's own record: durable, by the site's own accounts, and never above the limit."""

from __future__ import annotations

import dataclasses
import json
import logging
import sqlite3
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.app import app
from fl_shuffle._internal.refusal_log import RefusalLog
from fl_shuffle.accounting.client_classes import ClientClass
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config, DataSection
from fl_shuffle.data.partitions import make_partition
from fl_shuffle.data.sources import load_records
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.flower import LocalRandomizerMod, answers
from fl_shuffle.flower.client_record import ANY_PARTITION, Accounts, ClientRecord
from fl_shuffle.flower.messages import TrainRequest, array_record
from tests.one_node import nodes, replies, reports_of

ONE, DELTA = np.array([4]), 1e-5
SYSTEM = {"run": {"entropy": "system"}}
BY_NUMBER = Accounts("client", {"source": "digits"})
KINDS = st.sampled_from([("gaussian",), ("laplace", "user")])
REPORTS = st.tuples(st.integers(0, 1), st.floats(0.05, 1.0), st.integers(1, 3))


def kind(noise: str, exposure: float) -> ClientClass:
    return ClientClass(noise, 1.0 / exposure, 10.0, 1.0, exposure, 1e-7, 10)


@settings(max_examples=20, deadline=None)
@given(kinds=KINDS, asked=st.lists(REPORTS, max_size=8), limit=st.floats(0.2, 6.0))
def test_what_is_within_the_limit_is_sent_and_no_further(
    tmp_path_factory: pytest.TempPathFactory,
    kinds: tuple[str, ...],
    asked: list[tuple[int, float, int]],
    limit: float,
) -> None:
    """Rounds of several reports each."""
    record = ClientRecord(tmp_path_factory.mktemp("record") / "r.sqlite", limit, DELTA)
    spent = np.zeros(3)  # squares of mu, epsilons, deltas
    for number, (which, exposure, times) in enumerate(asked):
        noise = kinds[which % len(kinds)]
        squares = exposure**2 if noise == "gaussian" else 0.0
        epsilons = 0.0 if noise == "gaussian" else exposure
        after = spent + times * np.array([squares, epsilons, 1e-7 * (noise == "user")])
        epsilon = gaussian_epsilon(DELTA - after[2], after[0] ** 0.5) + after[1]
        sent = record.debit("run", number, ONE, [kind(noise, exposure)], times)[0]
        if abs(epsilon - limit) > 1e-7:
            assert sent == (epsilon < limit)
        spent = after if sent else spent


class _Sent(list[tuple[int, int, list[list[float]]]]):
    """What was handed to a shuffler: round, client, and its reports of all batches."""

    def send(self, _: object, round_number: int, client: int, reports: np.ndarray) -> None:
        self.append((round_number, client, reports.tolist()))


@pytest.mark.parametrize("batches", [1, 2])
def test_of_clients_whose_limit_is_reached_no_shuffler_gets_a_report(
    batches: int, tmp_path: Path
) -> None:
    """Of the others all reports of the round, together; nor does a server get any."""
    record = ClientRecord(tmp_path / "r.sqlite", 1.0, DELTA, BY_NUMBER)
    clients, often, seldom = np.array([2, 5, 6]), kind("laplace", 0.8), kind("laplace", 0.1)
    assert record.debit("run", 1, clients[[1]], [often], 1).all()
    plan: Any = SimpleNamespace(
        reports_per_round=batches, classes_of_each=lambda _: [seldom, often, seldom]
    )
    request: Any = SimpleNamespace(
        round=2, clients=clients, context=SimpleNamespace(run_id="run"), message=None
    )
    sent, rows = _Sent(), torch.arange(6.0 * batches).reshape(3 * batches, 2)
    node: Any = answers.Node(range(9), record, sent)  # type: ignore[arg-type]
    facts: Any = SimpleNamespace(batches=batches)
    answers.SealedAnswer(request, plan, node, facts).add(rows, clients)
    of_each = rows.reshape(batches, 3, 2)
    assert sent == [(2, 2, of_each[:, 0].tolist()), (2, 6, of_each[:, 2].tolist())]
    request.round = 3
    answer = answers.ReportsAnswer(request, plan, node)
    answer.add(rows.clone(), clients)
    left_out = np.isnan(answer._rows).all(axis=1)
    assert left_out.tolist() == [False, True, False] * batches
    assert np.array_equal(answer._rows[~left_out], rows.numpy()[~left_out])


@pytest.mark.parametrize(("first", "then"), [("gaussian", "user"), ("laplace", "gaussian")])
def test_record_refuses_noise_that_shares_no_limit(first: str, then: str, tmp_path: Path) -> None:
    """Whoever chooses between two kinds in view of the reports gets more than either may cost."""
    path = tmp_path / "r.sqlite"
    # What is not sent decides nothing.
    assert not ClientRecord(path, 9.0, DELTA).debit("a", 1, ONE, [kind(then, 99.0)])[0]
    assert ClientRecord(path, 9.0, DELTA).debit("a", 1, ONE, [kind(first, 0.1)])[0]
    for number in (2, 3):
        with pytest.raises(ConfigError, match=r"privacy\.randomizer.* proven for one kind alone"):
            ClientRecord(path, 9.0, DELTA).debit("b", number, ONE, [kind(then, 0.1)])
    assert ClientRecord(path, 9.0, DELTA).debit("a", 2, ONE, [kind(first, 0.1)])[0]
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM sent").fetchone() == (2,)


def test_record_after_restart_keeps_each_account(tmp_path: Path) -> None:
    what, both, path = kind("laplace", 1.0), np.array([4, 9]), tmp_path / "r.sqlite"
    first = ClientRecord(path, 2.5, DELTA, BY_NUMBER)
    assert first.debit("a", 1, both, [what, what]).tolist() == [True] * 2
    again = ClientRecord(path, 2.5, DELTA, BY_NUMBER)
    assert not again.debit("a", 1, ONE, [what])[0]  # a second report on the same round
    assert again.debit("a", 2, ONE, [what])[0]
    assert again.debit("b", 1, both, [what, what]).tolist() == [False, True]
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT account, client, run, round FROM sent").fetchall()
    assert sorted(rows) == [("4", 4, "a", 1), ("4", 4, "a", 2), ("9", 9, "a", 1), ("9", 9, "b", 1)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_record_without_config_counts_the_whole_site(tmp_path: Path) -> None:
    """Whatever numbers its clients have, in one request and from run to run."""
    record, what = ClientRecord(tmp_path / "r.sqlite", 2.5, DELTA), kind("laplace", 1.0)
    sent = record.debit("a", 1, np.arange(5), [what] * 5)
    assert sent.tolist() == [True, True, False, False, False]
    for number in range(5):
        assert not record.debit(f"run {number}", 1, np.array([number]), [what])[0]


def test_record_by_names_survives_moved_numbers(tmp_path: Path) -> None:
    """Others come and go at the site, and move everybody's place among the names."""
    path, what = tmp_path / "r.sqlite", [kind("laplace", 1.0)]
    whose = {"source": "files", "partition": "natural"}

    def sent(run: str, names: list[str], name: str) -> bool:
        record = ClientRecord(path, 2.5, DELTA, Accounts("client", whose, names))
        return bool(record.debit(run, 1, np.array([names.index(name)]), what)[0])

    assert sent("a", ["bo", "cy"], "bo") and sent("b", ["al", "bo", "cy"], "bo")
    assert not sent("c", ["al", "an", "bo", "cy"], "bo")
    assert sent("d", ["an", "bo", "cy"], "cy") and sent("e", ["cy"], "cy")
    assert not sent("f", ["bo", "cy"], "cy")
    # Two clients that have one name are one person.
    record = ClientRecord(path, 2.5, DELTA, Accounts("client", whose, ["di", "di", "di"]))
    assert record.debit("g", 1, np.arange(3), what * 3).tolist() == [True, True, False]


def test_record_of_runs_dealt_anew_keeps_the_limit(tmp_path: Path) -> None:
    """A person's number moves with `data.seed`: each run asks for the number that has the person,
    and no number is ever asked for twice."""
    config = {"budget-store": str(tmp_path / "r.sqlite"), "lifetime-epsilon": 1.2}
    model, sent, asked = array_record({"p": np.zeros(650, np.float32)}, shared=True), 0, set()
    labels = load_records(DataSection()).train_labels
    for seed in range(3):
        data = {"clients": 40, "seed": seed}
        partition = make_partition(parse_config({"data": data}).data, labels, 10)
        place = int(np.flatnonzero(partition.order == 0)[0])
        number = int(np.searchsorted(partition.offsets, place, side="right")) - 1
        if number in asked:
            continue
        asked.add(number)
        tables = {"data": data, "privacy": {"unit": "client"}, "budgets": {"epsilon": 1.0}}
        with nodes(app, tables={**tables, **SYSTEM}, node_config=config) as grid:
            request = TrainRequest(1, np.array([number])).message(model, 2)
            (reply,) = grid.send_and_receive([request])
        sent += bool(np.isfinite(reports_of(reply)).all())
    # Two Gaussian reports of local epsilon 1 cost 1.47.
    assert len(asked) > 1 and sent == 1


def written(folder: Path, **tables: dict[str, Any]) -> str:
    """A site's own configuration."""
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(each)}" for key, each in table.items())]
    (folder / "site.toml").write_text("\n".join(lines), encoding="utf-8")
    return str(folder / "site.toml")


OTHER = {
    "source": "mnist", "source_options": {"hub": "x"}, "root": "/elsewhere", "clients": 49,
    "records_per_client": 3, "partition": "ordered", "dirichlet_alpha": 0.25,
    "shards_per_client": 3,
    "sizes": "unequal", "validation_fraction": 0.25, "seed": 1, "classes_per_client": 3,
    "sizes_alpha": 2.0,
}  # fmt: skip


@pytest.mark.parametrize("key", [each.name for each in dataclasses.fields(DataSection)])
def test_record_refuses_run_dealt_otherwise_than_the_site(key: str, tmp_path: Path) -> None:
    """Every setting of [data], also one that is not thought of yet, but for two."""
    config = Config()
    node = {
        "budget-store": str(tmp_path / "r.sqlite"), "lifetime-epsilon": 1.0,
        "budget-store-config": written(tmp_path, data={"source": "digits"},
        privacy={"unit": "record"}),
    }  # fmt: skip

    def of(section: DataSection) -> ClientRecord | None:
        run = dataclasses.replace(config.run, entropy="system")
        return ClientRecord.of(node, dataclasses.replace(config, run=run, data=section))

    assert of(config.data) is not None
    if key in ANY_PARTITION:
        other: Any = {"features": "hog", "feature_options": {"cell": 4}}[key]
        assert of(dataclasses.replace(config.data, **{key: other})) is not None
        return
    with pytest.raises(ConfigError, match=rf"^data\.{key} = .*this site's own") as raised:
        of(dataclasses.replace(config.data, **{key: OTHER[key]}))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("tables", "own", "told"),
    [
        ({"privacy": {"unit": "record"}}, False, r"privacy\.unit = 'record'.*for 'client'"),
        ({"privacy": {"unit": "client"}}, True, r"privacy\.unit = 'client'.*for 'record'"),
        ({"run": {"entropy": "seeded"}}, False, r"run\.entropy = 'seeded'"),
        ({"app": {"client": "own:app"}, "privacy": {
            "unit": "record", "randomizer": "declared", "declared_sigma": 1e9}}, True,
         r"privacy\.randomizer = 'declared'"),
    ],
)  # fmt: skip
def test_record_refuses_reports_that_it_cannot_count(
    tables: dict[str, Any], own: bool, told: str, tmp_path: Path
) -> None:
    node = {"budget-store": str(tmp_path / "r.sqlite"), "lifetime-epsilon": 1.0}
    if own:
        node["budget-store-config"] = written(tmp_path, privacy={"unit": "record"})
    config = parse_config({**SYSTEM, "privacy": {"unit": "client"}, **tables})
    for dealt in (True, False):
        with pytest.raises(ConfigError, match=told):
            ClientRecord.of(node, config, dealt=dealt)
    with pytest.raises(ConfigError, match="depend on other clients' records"):
        client = parse_config({**SYSTEM, "privacy": {"unit": "client"}})
        ClientRecord.of(node, client, features_use_data=True)


def test_record_by_names_accepts_any_number_of_clients(tmp_path: Path) -> None:
    """Of natural clients the first ones take part; their names stay. An own app's code deals."""
    data = {"source": "gapminder", "partition": "natural", "clients": 12}
    config = parse_config({**SYSTEM, "data": {**data, "clients": 9},
                           "privacy": {"unit": "client"}})  # fmt: skip
    node = {"budget-store": str(tmp_path / "r.sqlite"), "lifetime-epsilon": 5.0,
            "budget-store-config": written(tmp_path, data=data, privacy={"unit": "client"}),
            }  # fmt: skip
    names = [f"name {number}" for number in range(9)]
    natural = ClientRecord.of(node, config, names=names)
    assert natural is not None
    natural.debit("a", 1, ONE, [kind("laplace", 1.0)])
    with sqlite3.connect(tmp_path / "r.sqlite") as database:
        assert database.execute("SELECT account FROM sent").fetchall() == [("name 4",)]
    apps = ClientRecord.of(node, config, dealt=False)
    assert apps is not None
    with pytest.raises(ConfigError, match="counts clients .* and this node the whole site"):
        apps.debit("a", 2, ONE, [kind("laplace", 1.0)])


def test_record_refuses_file_that_counts_something_else(tmp_path: Path) -> None:
    """In one line, and nothing is sent: an older version's, another program's, another site's."""
    what = [kind("laplace", 0.1)]
    old, other, mine = (tmp_path / name for name in ("old", "other", "mine"))
    with sqlite3.connect(old) as database:
        database.execute("CREATE TABLE reports (client INTEGER)")
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE sent (client INTEGER)")
    ClientRecord(mine, 1.0, DELTA).debit("a", 1, ONE, what)
    for path, accounts, told in (
        (old, Accounts(), "an older version counted by client number, .*lower lifetime-epsilon"),
        (other, Accounts(), "is not a budget store of version 2"),
        (mine, Accounts("record"), r"counts the whole site \(privacy.unit = 'client'\), and this"),
        (mine, BY_NUMBER, "and this node clients .*source = 'digits'"),
    ):
        with pytest.raises(ConfigError, match=told) as raised:
            ClientRecord(path, 1.0, DELTA, accounts).debit("a", 2, ONE, what)
        assert "\n" not in str(raised.value) and str(path) in str(raised.value)
    assert ClientRecord(mine, 1.0, DELTA).debit("a", 2, ONE, what)[0]


def test_half_a_record_or_one_that_cannot_be_written_stops_everything(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"not a database" * 100)
    for path in (tmp_path / "no" / "folder", tmp_path / "junk"):
        with pytest.raises(ConfigError, match="node-config budget-store"):
            ClientRecord(path, 1.0, DELTA).debit("a", 1, ONE, [kind("user", 0.1)])
    whole = {"budget-store": "/tmp/r", "lifetime-epsilon": 1.0}
    config = parse_config({**SYSTEM, "privacy": {"unit": "client"}})
    for bad in ({"budget-store": None}, {"lifetime-epsilon": None}, {"budget-store": "relative"},
                {"budget-store": 5}, {"lifetime-epsilon": 0.0}, {"lifetime-epsilon": "8"},
                {"lifetime-delta": 1.0}, {"budget-store-config": "site.toml"},
                {"budget-store-config": 5},
                {"budget-store-config": str(tmp_path / "missing.toml")},
                {"budget-store": None, "lifetime-epsilon": None,
                "budget-store-config": "/tmp/site.toml"},
                ):  # fmt: skip
        with pytest.raises((ConfigError, InvalidValueError)):
            ClientRecord.of({**whole, **bad}, config)
    assert ClientRecord.of({"partition-id": 0}, config) is None


def test_budget_store_by_its_old_name_still_counts(tmp_path: Path) -> None:
    config = parse_config({**SYSTEM, "privacy": {"unit": "client"}})
    node = {"record": str(tmp_path / "r.sqlite"), "lifetime-epsilon": 1.0}
    with pytest.warns(DeprecationWarning, match="record is now called budget-store"):
        record = ClientRecord.of(node, config)
    assert record is not None
    sent = [record.debit("a", number, ONE, [kind("user", 0.6)])[0] for number in (1, 2)]
    assert sent == [True, False]
    with pytest.raises(ConfigError, match="names a record and a budget-store"):
        ClientRecord.of({**node, "budget-store": "/tmp/r"}, config)
    with pytest.raises(ConfigError, match="record-config, which is now called budget-store-config"):
        ClientRecord.of({"budget-store": "/tmp/r", "record-config": "/tmp/c.toml"}, config)


def test_the_client_app_sends_nothing_beyond_the_record(tmp_path: Path) -> None:
    tables = {"data": {"clients": 10}, "budgets": {"epsilon": 1.0}, "privacy": {"unit": "client"}}
    config = {
        "budget-store": str(tmp_path / "r.sqlite"), "lifetime-epsilon": 1.2,
        "budget-store-config": written(tmp_path, **tables),
    }  # fmt: skip
    model, both = array_record({"p": np.zeros(650, np.float32)}, shared=True), np.arange(2)
    with nodes(app, tables={**tables, **SYSTEM}, node_config=config) as grid:
        asked = [TrainRequest(number, both).message(model, 2) for number in (1, 1, 2, 3)]
        first, *later = [reports_of(reply) for reply in grid.send_and_receive(asked)]
    assert np.isfinite(first).all() and np.isnan(later).all()


@pytest.mark.parametrize(
    "name", ["budget-store", "record", "lifetime-epsilon", "budget-store-config"]
)
def test_local_mod_with_a_record_is_refused(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "refusals", RefusalLog(logging.getLogger("fl_shuffle.client")))
    counting = ClientApp(mods=[LocalRandomizerMod(randomizer="laplace", epsilon0=1.0)])
    counting.train()(lambda message, context: message)
    request = TrainRequest(1, ONE).message(array_record({}, shared=True), 2)
    with nodes(counting, node_config={name: "/tmp/r"}) as grid:
        (reply,) = grid.send_and_receive([request])
    assert reply.error.reason == "ConfigError"
    assert f"node-config names a {name}, and LocalRandomizerMod counts nothing" in caplog.text


def test_refused_requests_leave_one_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a server asks in vain: beyond the record, on others' clients, with seeded noise."""
    monkeypatch.setattr(answers, "refusals", RefusalLog(logging.getLogger("fl_shuffle.client")))
    own = {"budget-store": str(tmp_path / "r.sqlite"), "lifetime-epsilon": 2.0}
    parts = {"partition-id": 0, "num-partitions": 5}
    tables = {
        "data": {"clients": 10}, "budgets": {"epsilon": 1.0}, "privacy": {"unit": "client"}
    }  # fmt: skip
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
    assert "1 of 2 clients' reports on round 2: this node's record forbids them" in said[0]
    assert "requested clients" in said[1] and "run.entropy = 'seeded'" in said[2]

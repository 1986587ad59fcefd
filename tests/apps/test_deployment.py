"""Flower's Deployment Engine: a SuperLink and two SuperNodes do what one process does; three of
them, the shuffler and the analyzer are processes of their own.

Kills, and what may be seen of whom: `tests/benchmarks/chaos/test_chaos.py`.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fl_shuffle.cli import main
from tests.apps.programs import free_port, program
from tests.apps.superlink import PROGRAMS, federation
from tests.small_federation import model_bytes, summary

SMALL = """
run = { rounds = 2, seed = 11, timeout = 600 }
data = { source = "digits", clients = 9 }
model = { kind = "linear" }
privacy = { unit = "record", clip_norm = 0.1 }
budgets = { distribution = "uniform", low = 0.5, high = 2.0 }
server = { learning_rate = 5.0 }
"""
NETWORK = (
    SMALL.replace('kind = "linear"', 'kind = "mlp", hidden = [300]').replace(
        "clients = 9", 'clients = 60, sizes = "unequal"'
    )
    + "training = { participation = 0.7 }\n"
)
NODES, CLIENTS = 3, 9

APART = """
run = {{ rounds = {rounds}, entropy = "system", timeout = 300 }}
data = {{ source = "digits", clients = 9 }}
privacy = {{ clip_norm = 0.1, min_reports = 4, shuffler = "apart", release = "{release}" }}
budgets = {{ distribution = "uniform", low = 0.5, high = 2.0 }}
"""
TABLES = ("classes", "clients", "reservations", "rounds", "round_classes", "notes", "client_spend")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(shutil.which(program(name)) is None for name in PROGRAMS),
        reason="Flower's programs are not installed",
    ),
]


def ledger(run: Path) -> dict[str, list[Any]]:
    """Every row of the ledger, without the times rounds took."""
    found = {}
    with sqlite3.connect(run / "ledger.sqlite") as database:
        for table in TABLES:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            names = ", ".join(name for name in columns if name != "seconds")
            found[table] = database.execute(f"SELECT {names} FROM {table}").fetchall()
    return found


def both_ways(tmp_path: Path, text: str, node: str, hostile: str = "") -> tuple[Path, Path]:
    """The run directories of one configuration in this process and on two SuperNodes.

    `node` is a SuperNode's configuration, with its number as {index}. A SuperNode configured as
    `hostile` says is there before them, and a file says who plays which part.
    """
    config = tmp_path / "run.toml"
    config.write_text(text)
    here, there = tmp_path / "here", tmp_path / "there"
    assert main(["simulate", str(config), "--quiet", "--out", str(here)]) == 0
    with federation(tmp_path / "flower", ready=True) as flower:
        flower.start_superlink()
        names = ["hostile"] * bool(hostile) + ["node0", "node1"]
        for place, name in enumerate(names):
            settings = hostile if name == "hostile" else node.format(index=name[-1])
            flower.start_supernode(name, settings)
            flower.wait_for_supernodes(place + 1)
        overrides = ""
        if hostile:
            listed = tmp_path / "nodes.csv"
            rows = [f"{name},{index},2\n" for index, name in enumerate(flower.node_ids()[1:])]
            listed.write_text("supernode,partition-id,num-partitions\n" + "".join(rows))
            overrides = f"run.supernodes={listed}"
        status = flower.wait(flower.submit(config, there, overrides=overrides), seconds=900)
        assert status == "finished:completed", flower.log("link")[-3000:]
    return here, there


def test_supernodes_that_play_any_client_give_the_in_process_bits(tmp_path: Path) -> None:
    here, there = both_ways(tmp_path, NETWORK, "index={index}")
    assert model_bytes(here) == model_bytes(there)


def test_supernodes_that_hold_clients_give_the_in_process_values(tmp_path: Path) -> None:
    """A hostile SuperNode that claims a part first is not asked."""
    here, there = both_ways(
        tmp_path,
        SMALL,
        "partition-id={index} num-partitions=2",
        hostile="partition-id=0 num-partitions=2",
    )
    assert {path.name for path in here.iterdir()} == {path.name for path in there.iterdir()}
    assert {path.stat().st_mode & 0o777 for path in there.iterdir()} == {0o600}
    # Blocks are cut within each holder's clients: means are equal to rounding, reports to the grid.
    ours, theirs = (load_file(run / "model.safetensors") for run in (here, there))
    for name, values in ours.items():
        torch.testing.assert_close(theirs[name], values, rtol=0.0, atol=1e-4)
    assert ledger(here) == ledger(there)
    said = (there / "run.log").read_text()
    assert "clients 0 to 4" in said
    assert "clients 5 to 8" in said
    assert re.search(
        r"node \d+ \(key SHA256:\S{43}\) has no part of its own .* it plays nobody", said
    )
    assert said.count(" plays clients ") == 2


def test_the_server_gets_what_the_shuffler_releases(tmp_path: Path) -> None:
    key, store, passes = tmp_path / "analyzer.key", tmp_path / "store", tmp_path / "passes"
    address = f"127.0.0.1:{free_port()}"
    assert main(["shuffler", "key", str(key)]) == 0
    made = ["--passes", str(passes), "--address", address, "--clients", str(CLIENTS)]
    made += ["--min-reports", "4", "--sites", str(NODES)]
    assert main(["shuffler", "init", str(store), *made]) == 0
    with federation(tmp_path / "flower", ready=True) as flower:
        flower.start("shuffler", "fl-shuffle", "shuffler", "serve", str(store))
        flower.start_superlink()
        for i in range(NODES):
            flower.start_supernode(
                f"node{i}",
                f"partition-id={i} num-partitions={NODES} "
                f'shuffler="{passes / f"site-{i}.json"}" analyzer-key="{key}.pub"',
            )
        flower.wait_for_supernodes(NODES)
        for release, rounds, keys in (
            ("reports", 3, {"analyzer_key": str(key)}),
            ("sum", 1, {}),
        ):
            config = tmp_path / f"{release}.toml"
            config.write_text(APART.format(rounds=rounds, release=release))
            given = {"shuffler": str(passes / "analyzer.json"), **keys}
            run = flower.submit(config, tmp_path / release, **given)
            status = flower.wait(run, seconds=600)
            assert status == "finished:completed", flower.log("link")[-3000:]
        said = flower.log("shuffler")
    assert said.count(f"closed with {CLIENTS} reports") == 4 and "node" not in said

    with sqlite3.connect(tmp_path / "reports" / "ledger.sqlite") as database:
        attempts = database.execute("SELECT round, released FROM reservations").fetchall()
        notes = [text for (text,) in database.execute("SELECT text FROM notes")]
    assert attempts == [(1, 1), (2, 1), (3, 1)]
    assert any("`proven` holds towards the server's operator" in text for text in notes)
    assert summary(tmp_path / "reports")["headline"] == "proven"
    summed = summary(tmp_path / "sum")
    assert summed["headline"] == "sum"
    assert "the server gets the sum alone" in json.dumps(summed["assumptions"])
    # Nothing is left with the shuffler once the steps are durable.
    with sqlite3.connect(store / "shuffler.sqlite") as database:
        for table in ("reports", "batch", "seen"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    assert store.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in store.iterdir()} == {0o600}

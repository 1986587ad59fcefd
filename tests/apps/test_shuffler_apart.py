"""Three SuperNodes, the shuffler and the analyzer as processes of their own.

Kills, and what may be seen of whom: `tests/benchmarks/chaos/test_apart.py`.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from fl_shuffle.cli import main
from tests.apps.programs import free_port, program
from tests.apps.superlink import PROGRAMS, federation
from tests.small_federation import summary

NODES, CLIENTS = 3, 9

CONFIG = """
run = {{ rounds = {rounds}, entropy = "system", timeout = 300 }}
data = {{ source = "digits", clients = 9 }}
privacy = {{ clip_norm = 0.1, min_reports = 4, shuffler = "apart", release = "{release}" }}
budgets = {{ distribution = "uniform", low = 0.5, high = 2.0 }}
"""


@pytest.mark.slow
@pytest.mark.skipif(
    any(shutil.which(program(name)) is None for name in PROGRAMS),
    reason="Flower's programs are not installed",
)
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
            config.write_text(CONFIG.format(rounds=rounds, release=release))
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

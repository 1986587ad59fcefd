"""Five SuperNodes, the shuffler and the analyzer as processes of their own, killed in mid-run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.chaos.apart.memory import found_in_memory
from fl_shuffle.cli import main
from tests.apps.programs import free_port, program
from tests.apps.superlink import PROGRAMS, Federation, federation

NODES, CLIENTS = 5, 10

CONFIG = """
[run]
rounds = 3
entropy = "system"
timeout = 300
[data]
source = "digits"
clients = 10
[privacy]
clip_norm = 0.1
min_reports = 4
shuffler = "apart"
[budgets]
distribution = "uniform"
low = 0.5
high = 2.0
"""
WATCHED = CONFIG + '[server]\nanalyzer = "watching_analyzer:mean"\n'
SUMMED = CONFIG.replace("rounds = 3", "rounds = 1").replace(
    'shuffler = "apart"', 'shuffler = "apart"\nrelease = "sum"'
)

ANALYZER = """
import os
import time
from pathlib import Path

import numpy as np

FOLDER = Path({folder!r})


def mean(reports):
    if float(reports.std()) > 0.5:  # made-up ones, on which it is tried before the run
        return reports.double().mean(dim=0)
    number = len(list(FOLDER.glob("batch-*.npy"))) + 1
    np.save(FOLDER / "unfinished.npy", reports.numpy())
    os.replace(FOLDER / "unfinished.npy", FOLDER / f"batch-{{number}}.npy")
    (FOLDER / f"pid-{{number}}").write_text(str(os.getpid()))
    while not (FOLDER / f"go-on-{{number}}").exists():
        time.sleep(0.1)
    return reports.double().mean(dim=0)
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(shutil.which(program(name)) is None for name in PROGRAMS),
        reason="Flower's programs are not installed",
    ),
]


def watched(folder: Path, number: int, flower: Federation) -> tuple[np.ndarray, int]:
    """The batch that the analyzer got at its `number`-th call, and its process."""
    deadline = time.monotonic() + 600
    while not (folder / f"pid-{number}").exists():
        assert time.monotonic() < deadline, flower.log("link")[-3000:]
        time.sleep(0.2)
    time.sleep(0.5)
    return np.load(folder / f"batch-{number}.npy"), int((folder / f"pid-{number}").read_text())


def pieces(reports: np.ndarray) -> list[bytes]:
    """Bytes of each report that stand nowhere else."""
    return [report[40:48].astype("<f4").tobytes() for report in reports]


def secrets_of(passes: Path) -> list[bytes]:
    """What would tell who handed something over: each site's token, as text and as bytes."""
    tokens = [json.loads((passes / f"site-{i}.json").read_text())["token"] for i in range(NODES)]
    return [form for token in tokens for form in (token.encode(), bytes.fromhex(token))]


def in_order(reports: np.ndarray) -> np.ndarray:
    return reports[np.lexsort(reports.T)]


def test_nobody_sees_what_is_not_theirs_and_kills_lose_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watching_analyzer.py").write_text(ANALYZER.format(folder=str(tmp_path)))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    for name, text in (("watched.toml", WATCHED), ("summed.toml", SUMMED)):
        (tmp_path / name).write_text(text)
    key, store, passes = tmp_path / "analyzer.key", tmp_path / "store", tmp_path / "passes"
    address = f"127.0.0.1:{free_port()}"
    assert main(["shuffler", "key", str(key)]) == 0
    made = ["--passes", str(passes), "--address", address, "--clients", str(CLIENTS)]
    made += ["--min-reports", "4"]
    assert main(["shuffler", "init", str(store), *made, "--sites", str(NODES)]) == 0
    run, files = tmp_path / "run", {"shuffler": str(passes / "analyzer.json")}
    with federation(tmp_path / "flower", ready=True) as flower:

        def serve(name: str) -> int:
            flower.start(name, "fl-shuffle", "shuffler", "serve", str(store))
            return flower.processes[name].pid

        pid = serve("shuffler")
        flower.start_superlink()
        for i in range(NODES):
            flower.start_supernode(
                f"node{i}",
                f"partition-id={i} num-partitions={NODES} "
                f'shuffler="{passes / f"site-{i}.json"}" analyzer-key="{key}.pub"',
            )
        flower.wait_for_supernodes(NODES)
        flower.submit(tmp_path / "watched.toml", run, analyzer_key=str(key), **files)

        # While the analyzer has the first batch, and the shuffler still has it sealed.
        first, analyzer = watched(tmp_path, 1, flower)
        assert first.shape[0] == CLIENTS
        reports, senders = pieces(first), secrets_of(passes)
        assert found_in_memory(analyzer, [*reports, *senders]) == set(reports)
        assert found_in_memory(pid, [*reports, b"fl_shuffle.Shuffler"]) == {b"fl_shuffle.Shuffler"}
        (tmp_path / "go-on-1").touch()

        # After the ledger counted the second round and before its step: both are killed.
        second, analyzer = watched(tmp_path, 2, flower)
        flower.kill("shuffler")
        os.kill(analyzer, signal.SIGKILL)
        kept = [path.read_bytes() for path in store.iterdir()]
        said = flower.log("shuffler").encode()
        for piece in [*reports, *pieces(second)]:
            assert not any(piece in content for content in [*kept, said])
        again = flower.submit(
            tmp_path / "watched.toml", run, analyzer_key=str(key), resume="yes", **files
        )
        time.sleep(3.0)
        pid = serve("shuffler again")
        repeated, _ = watched(tmp_path, 3, flower)
        assert np.array_equal(in_order(repeated), in_order(second))
        (tmp_path / "go-on-3").touch()
        third, _ = watched(tmp_path, 4, flower)
        assert not np.array_equal(in_order(third), in_order(second))
        assert found_in_memory(pid, [*pieces(second), *pieces(third)]) == set()
        (tmp_path / "go-on-4").touch()
        assert flower.wait(again, seconds=600) == "finished:completed", flower.log("link")[-3000:]

        added = flower.submit(tmp_path / "summed.toml", tmp_path / "summed", **files)
        assert flower.wait(added, seconds=600) == "finished:completed", flower.log("link")[-3000:]
        logs = flower.log("shuffler") + flower.log("shuffler again")
    assert logs.count("closed with 10 reports") == 4
    assert "node" not in logs

    with sqlite3.connect(run / "ledger.sqlite") as database:
        attempts = database.execute("SELECT round, released FROM reservations").fetchall()
        notes = [text for (text,) in database.execute("SELECT text FROM notes")]
    assert attempts == [(1, 1), (2, 1), (3, 1)]
    assert any("`proven` holds towards the server's operator" in text for text in notes)
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["rounds"], summary["headline"]) == (3, "proven")
    summed = json.loads((tmp_path / "summed" / "summary.json").read_text())
    assert (summed["rounds"], summed["headline"]) == (1, "sum")
    assert any("the server gets the sum alone" in text for text in summed["assumptions"])
    # Nothing is left with the shuffler once the steps are durable.
    with sqlite3.connect(store / "shuffler.sqlite") as database:
        for table in ("reports", "batch", "seen"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    assert store.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in store.iterdir()} == {0o600}

"""A round has one batch, whatever happens; who sent which, and when, is nowhere."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
from collections import Counter
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, ncx2

from fl_shuffle.errors import RunError
from fl_shuffle.shuffler.remote.agreement import Agreement, report_as_bytes, sum_of_content
from fl_shuffle.shuffler.remote.sealing import new_key, public_key, seal
from fl_shuffle.shuffler.remote.store import FILE, Store, Taken

RUN = "ab" * 16
ROUND = (RUN, 1)
FACTS = Agreement(RUN, "reports", 8, 3, 2, -4, 1 << 20)
EVERYBODY = np.ones(8, dtype=bool)
NOBODY = np.zeros(8, dtype=bool)
ORDERS = list(permutations(range(3)))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store.open(tmp_path)
    found.begin(FACTS, 1, EVERYBODY)
    return found


def sealed(client: int) -> bytes:
    return bytes([client]) * FACTS.sealed_bytes


def fill(store: Store, clients: list[int], number: int = 1) -> None:
    for client in clients:
        assert store.add((RUN, number), client, sealed(client)) is Taken.ACCEPTED


def close(store: Store, number: int = 1, least: int = 2, key: bytes = b"") -> list[int] | None:
    present = store.close_round((RUN, number), least, key)
    return None if present is None else np.flatnonzero(present).tolist()


def test_a_round_has_one_batch_until_it_is_handed_over(store: Store, tmp_path: Path) -> None:
    assert close(store, least=0) is None
    fill(store, [5, 0, 3])
    assert close(store, least=4) is None and store.batch(ROUND) == []
    assert close(store) == [0, 3, 5]
    batch = store.batch(ROUND)
    assert sorted(batch) == [sealed(client) for client in (0, 3, 5)]
    assert store.batch(ROUND, 1, 1) == batch[1:2]
    store.close()
    again = Store.open(tmp_path)
    assert not again.begin(FACTS, 1, EVERYBODY)
    assert close(again, least=8) == [0, 3, 5] and again.batch(ROUND) == batch
    again.hand_over(ROUND)
    assert again.batch(ROUND) == [] and again.handed_over(ROUND)
    assert not again.begin(FACTS, 1, EVERYBODY)
    assert again.add(ROUND, 6, sealed(6)) is Taken.NOT_OPEN


def test_one_report_per_client_and_round_and_none_twice(store: Store) -> None:
    fill(store, [1])
    assert store.add(ROUND, 1, sealed(1)) is Taken.ACCEPTED  # the acknowledgement was lost
    assert store.add(ROUND, 1, sealed(7)) is Taken.ALREADY
    assert store.add(ROUND, 2, sealed(1)) is Taken.REPLAYED
    assert store.add((RUN, 2), 2, sealed(2)) is Taken.NOT_OPEN
    assert store.add(("cd" * 16, 1), 2, sealed(2)) is Taken.NOT_OPEN
    fill(store, [2])
    assert close(store) == [1, 2]
    assert sorted(store.batch(ROUND)) == [sealed(1), sealed(2)]
    # One round is open at a time: beginning another throws its reports away.
    store.begin(FACTS, 2, EVERYBODY)
    fill(store, [4], 2)
    store.begin(FACTS, 3, EVERYBODY)
    assert store.add((RUN, 2), 5, sealed(5)) is Taken.NOT_OPEN
    store.begin(FACTS, 2, EVERYBODY)
    assert close(store, 2, 1) is None


def delivery(client: int) -> bytes:
    """One sealed report for each of three batches."""
    return b"".join(bytes([client, batch]) * (FACTS.sealed_bytes // 2) for batch in range(3))


def test_each_batch_of_a_round_has_an_order_of_its_own(tmp_path: Path) -> None:
    """Of three clients: every order is as likely, every pair of orders in two batches, and no
    report is lost. Chi-square at level 1e-6; a shuffler that leaves an order out, or draws one
    twice as often as the others, is found with probability above 0.999."""
    store, facts, rounds = Store.open(tmp_path), replace(FACTS, batches=3), 400
    store._db.execute("PRAGMA synchronous = OFF")
    single, pairs = Counter[Any](), Counter[Any]()
    for number in range(1, rounds + 1):
        assert store.begin(facts, number, EVERYBODY)
        for client in range(3):
            assert store.add((RUN, number), client, delivery(client)) is Taken.ACCEPTED
        assert close(store, number) == [0, 1, 2]
        found = store.batch((RUN, number))
        assert [piece[1] for piece in found] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        orders = [tuple(piece[0] for piece in found[start : start + 3]) for start in (0, 3, 6)]
        single.update(orders)
        pairs.update([(orders[0], orders[1]), (orders[1], orders[2])])
    limit, expected = float(chi2.isf(1e-6, 5)), 3 * rounds / 6
    assert sum((single[order] - expected) ** 2 / expected for order in ORDERS) < limit
    for faulty in ([0.0] + [1 / 5] * 5, [2 / 7] + [1 / 7] * 5):
        distance = 3 * rounds * sum((share - 1 / 6) ** 2 * 6 for share in faulty)
        assert ncx2.sf(limit, 5, distance) > 0.999
    # The two pairs of a round share a batch, but each of them is uniform: at most twice chi-square.
    expected = 2 * rounds / 36
    squares = sum((pairs[pair] - expected) ** 2 for pair in product(ORDERS, ORDERS))
    assert squares / expected < 2.0 * chi2.isf(1e-6, 35)


def test_a_copy_of_one_of_anothers_reports_is_refused(tmp_path: Path) -> None:
    store, size = Store.open(tmp_path), FACTS.sealed_bytes
    store.begin(replace(FACTS, batches=3), 1, EVERYBODY)
    assert store.add(ROUND, 1, delivery(1)) is Taken.ACCEPTED
    assert store.add(ROUND, 2, delivery(2)[: 2 * size] + delivery(1)[:size]) is Taken.REPLAYED
    assert store.add(ROUND, 3, delivery(3)[:size] * 3) is Taken.REPLAYED


def test_the_list_of_an_open_round_grows_and_never_shrinks(store: Store) -> None:
    """Begun anew with a victim and a colluder alone, it is closed with everybody's reports."""
    fill(store, [0, 1, 2, 3, 4])
    victim = np.isin(np.arange(8), [0, 5])
    assert store.begin(FACTS, 1, victim)
    fill(store, [5, 6])  # 6 is asked still
    assert close(store) == [0, 1, 2, 3, 4, 5, 6]
    some = ~np.isin(np.arange(8), [3, 4])
    assert store.begin(FACTS, 2, some)
    for client in (3, 10**9):
        assert store.add((RUN, 2), client, sealed(3)) is Taken.NOT_ASKED
    assert store.begin(FACTS, 2, victim | ~some)
    fill(store, [1, 3, 4], 2)
    assert store.begin(FACTS, 2, NOBODY)
    assert close(store, 2, 1) is None  # all of them are gone, and nobody is asked
    assert store.add((RUN, 2), 5, sealed(5)) is Taken.NOT_ASKED


def test_the_file_is_private_and_holds_no_arrival_and_no_sender(tmp_path: Path) -> None:
    contents = []
    for name, order in (("one", [0, 3, 5, 7]), ("other", [7, 3, 0, 5])):
        (tmp_path / name).mkdir()
        store, path = Store.open(tmp_path / name), tmp_path / name / FILE
        store.begin(FACTS, 1, EVERYBODY)
        fill(store, order)
        reader = sqlite3.connect(path, timeout=0.05)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            reader.execute("SELECT count(*) FROM reports")
        reader.close()
        store.close()
        with sqlite3.connect(path) as database:
            contents.append("\n".join(database.iterdump()))
        store = Store.open(tmp_path / name)
        close(store)
        store.close()
    assert contents[0] == contents[1]  # the order in which they came is nowhere
    assert path.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(path) as database:
        tables = {
            name: [row[1].lower() for row in database.execute(f"PRAGMA table_info({name})")]
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        assert tables["batch"] == ["run", "round", "position", "content"]
        assert not any("time" in column for columns in tables.values() for column in columns)
        for table in ("reports", "seen"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    # Deleted rows are overwritten: each report is there once, in the batch.
    content = path.read_bytes()
    assert [content.count(sealed(client)[:64]) for client in (0, 3, 5, 7)].count(1) >= 3
    assert not list(path.parent.glob("*-wal"))


def test_a_round_is_not_closed_before_that_is_durable(store: Store, tmp_path: Path) -> None:
    fill(store, [5, 0, 3])
    for pragma in ("locking_mode = NORMAL", "busy_timeout = 50", "user_version"):
        store._db.execute(f"PRAGMA {pragma}").fetchall()
    reader = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM reports").fetchone()
    # The commit has to wait for the reader, and does not so for long.
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        close(store)
    assert store.attendance(ROUND) is None and store.batch(ROUND) == []
    reader.close()
    assert close(store) == [0, 3, 5]


def crash(directory: Path, left: int) -> list[str]:
    """What a process says that is killed before its `left`-th statement (0: at the end)."""
    directory.mkdir()
    said, steps = directory / "said", [0]

    def trace(statement: str) -> None:
        steps[0] += 1
        if steps[0] == left:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException), said.open("w", buffering=1) as out:
            store = Store.open(directory)
            store._db.set_trace_callback(trace)
            store.begin(FACTS, 1, EVERYBODY)
            for client in (0, 3, 5):
                print(store.add(ROUND, client, sealed(client)).name, file=out)
            close(store)
            print(*(f"{piece[0]}" for piece in store.batch(ROUND)), steps[0], sep="\n", file=out)
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    return said.read_text().splitlines()


def test_killed_before_any_statement_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    total = int(crash(tmp_path / "whole", 0)[-1])
    assert total > 30
    for left in range(1, total + 1, 4):
        accepted = crash(tmp_path / str(left), left).count("ACCEPTED")
        store = Store.open(tmp_path / str(left))
        order = [piece[0] for piece in store.batch(ROUND)]
        if store.attendance(ROUND) is not None:
            assert sorted(order) == [0, 3, 5]
            continue
        kept = store._db.execute("SELECT DISTINCT client FROM reports").fetchall()
        assert not order and len(kept) >= accepted
        # It goes on where it was: what is there already is not taken twice.
        store.begin(FACTS, 1, EVERYBODY)
        fill(store, [0, 3, 5])
        assert close(store) == [0, 3, 5] == sorted(piece[0] for piece in store.batch(ROUND))
        store.close()


def test_threads_and_closing_at_once_give_one_batch(store: Store) -> None:
    results, gate = [], threading.Barrier(9)

    def send(client: int) -> None:
        gate.wait()
        if client == 8:
            close(store)
        elif store.add(ROUND, client, sealed(client)) is Taken.ACCEPTED:
            results.append(client)

    threads = [threading.Thread(target=send, args=(client,)) for client in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert close(store) == sorted(results) == sorted(piece[0] for piece in store.batch(ROUND))


def test_a_sum_is_exact_and_leaves_out_what_cannot_be_added(tmp_path: Path) -> None:
    key, store, facts = new_key(), Store.open(tmp_path), replace(FACTS, release="sum")
    store.begin(facts, 1, EVERYBODY)
    steps = np.random.default_rng(4).integers(-(1 << 20), 1 << 20, size=(8, 3))
    reports = (steps / 16.0).astype(np.float32)
    reports[2, 1] += 2.0**-5  # off the grid
    reports[3, 0] = np.nan
    reports[4, 2] = 1e30
    for client, report in enumerate(reports):
        other = facts.info(2 if client == 5 else 1)
        store.add(ROUND, client, seal(report_as_bytes(report), public_key(key), other))
    assert close(store, least=5, key=key) is None
    assert close(store, least=4, key=key) == [0, 1, 6, 7]
    (content,) = store.batch(ROUND)
    total = sum_of_content(content, facts)
    assert np.array_equal(total, steps[[0, 1, 6, 7]].sum(axis=0) / 16.0)
    with pytest.raises(RunError, match="no sum"):
        sum_of_content(content[:-1], facts)

"""A round has one batch, whatever happens; who sent which, and when, is nowhere."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2, ncx2

from fl_shuffle.errors import RunError
from fl_shuffle.shuffler.remote.agreement import Agreement, report_as_bytes
from fl_shuffle.shuffler.remote.sealing import new_key, public_key, seal
from fl_shuffle.shuffler.remote.store import FILE, Store, Taken
from fl_shuffle.shuffler.remote.summing import adding, sum_of_content

RUN = "ab" * 16
FACTS = Agreement(RUN, "reports", 8, 3, 2, -4, 1 << 20)
EVERYBODY = np.ones(8, dtype=bool)
ORDERS = list(permutations(range(3)))
ROUNDS_OF_BATCHES = 400


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store.open(tmp_path)
    found.begin(FACTS, 1, EVERYBODY)
    return found


def sealed(client: int) -> bytes:
    return bytes([client]) * FACTS.sealed_bytes


def fill(store: Store, clients: list[int], round_number: int = 1) -> None:
    for client in clients:
        assert store.add(RUN, round_number, client, sealed(client)) is Taken.ACCEPTED


def test_a_round_has_one_batch_until_it_is_handed_over(store: Store, tmp_path: Path) -> None:
    fill(store, [5, 0, 3])
    present = store.shuffle(RUN, 1, 2)
    assert present is not None
    assert np.flatnonzero(present).tolist() == [0, 3, 5]
    batch = list(store.batch(RUN, 1))
    assert sorted(batch) == [sealed(client) for client in (0, 3, 5)]
    assert store.add(RUN, 1, 6, sealed(6)) is Taken.NOT_OPEN
    store.close()
    again = Store.open(tmp_path)
    assert not again.begin(FACTS, 1, EVERYBODY)
    repeated = again.shuffle(RUN, 1, 2)
    assert repeated is not None
    assert np.array_equal(repeated, present)
    assert list(again.batch(RUN, 1)) == batch
    again.hand_over(RUN, 1)
    assert list(again.batch(RUN, 1)) == []
    assert again.handed_over(RUN, 1)
    assert not again.begin(FACTS, 1, EVERYBODY)
    assert again.add(RUN, 1, 6, sealed(6)) is Taken.NOT_OPEN


def test_one_report_per_client_and_round_and_none_twice(store: Store) -> None:
    fill(store, [1])
    assert store.add(RUN, 1, 1, sealed(1)) is Taken.ACCEPTED  # the acknowledgement was lost
    assert store.add(RUN, 1, 1, sealed(7)) is Taken.ALREADY
    assert store.add(RUN, 1, 2, sealed(1)) is Taken.REPLAYED
    assert store.add(RUN, 2, 2, sealed(2)) is Taken.NOT_OPEN
    assert store.add("cd" * 16, 1, 2, sealed(2)) is Taken.NOT_OPEN
    fill(store, [2])
    assert store.shuffle(RUN, 1, 2) is not None
    assert sorted(store.batch(RUN, 1)) == [sealed(1), sealed(2)]


def delivery(client: int) -> bytes:
    """One sealed report for each of three batches."""
    return b"".join(bytes([client, batch]) * (FACTS.sealed_bytes // 2) for batch in range(3))


def test_each_batch_of_a_round_has_an_order_of_its_own(tmp_path: Path) -> None:
    """Of three clients: every pair of orders is as likely in two batches, and no report is lost."""
    store, facts = Store.open(tmp_path), replace(FACTS, batches=3)
    store._db.execute("PRAGMA synchronous = OFF")
    pairs: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for number in range(1, ROUNDS_OF_BATCHES + 1):
        assert store.begin(facts, number, EVERYBODY)
        for client in range(3):
            assert store.add(RUN, number, client, delivery(client)) is Taken.ACCEPTED
        assert store.shuffle(RUN, number, 2) is not None
        found = list(store.batch(RUN, number))
        assert [piece[1] for piece in found] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert {len(piece) for piece in found} == {FACTS.sealed_bytes}
        orders = [tuple(piece[0] for piece in found[start : start + 3]) for start in (0, 3, 6)]
        assert all(sorted(order) == [0, 1, 2] for order in orders)
        pairs[orders[0], orders[1]] += 1
        pairs[orders[1], orders[2]] += 1
    expected = 2 * ROUNDS_OF_BATCHES / 36
    squares = sum((pairs[one, two] - expected) ** 2 for one in ORDERS for two in ORDERS)
    # The two pairs of a round share a batch, but each of them is uniform: at most twice chi-square.
    assert squares / expected < 2.0 * chi2.isf(1e-6, 35)


def test_a_copy_of_one_of_anothers_reports_is_refused(tmp_path: Path) -> None:
    store, facts = Store.open(tmp_path), replace(FACTS, batches=3)
    store.begin(facts, 1, EVERYBODY)
    assert store.add(RUN, 1, 1, delivery(1)) is Taken.ACCEPTED
    size = FACTS.sealed_bytes
    copied = delivery(2)[: 2 * size] + delivery(1)[:size]
    assert store.add(RUN, 1, 2, copied) is Taken.REPLAYED
    twice = delivery(3)[:size] * 2 + delivery(3)[2 * size :]
    assert store.add(RUN, 1, 3, twice) is Taken.REPLAYED


def test_a_batch_below_the_minimum_stays(store: Store) -> None:
    fill(store, [1, 2])
    assert store.shuffle(RUN, 1, 3) is None
    assert list(store.batch(RUN, 1)) == []
    fill(store, [3])
    assert store.shuffle(RUN, 1, 3) is not None


def test_an_empty_round_is_never_closed(store: Store) -> None:
    assert store.shuffle(RUN, 1, 0) is None


def test_only_clients_that_are_asked_and_only_one_round_at_a_time(store: Store) -> None:
    asked = EVERYBODY.copy()
    asked[2] = False
    assert store.begin(FACTS, 4, asked)
    assert store.add(RUN, 4, 2, sealed(6)) is Taken.NOT_ASKED
    assert store.add(RUN, 4, 10**9, sealed(6)) is Taken.NOT_ASKED
    assert store.begin(FACTS, 1, asked)
    fill(store, [1])
    fill(store, [3])
    present = store.shuffle(RUN, 1, 2)
    assert present is not None
    assert np.flatnonzero(present).tolist() == [1, 3]
    assert store.begin(FACTS, 2, EVERYBODY)
    fill(store, [4], 2)
    assert store.begin(FACTS, 3, EVERYBODY)
    assert store.add(RUN, 2, 5, sealed(5)) is Taken.NOT_OPEN
    assert store.begin(FACTS, 2, EVERYBODY)
    assert store.shuffle(RUN, 2, 1) is None


def test_the_list_of_an_open_round_grows_and_never_shrinks(store: Store) -> None:
    """Begun anew with a victim and a colluder alone, it is closed with everybody's reports."""
    fill(store, [0, 1, 2, 3, 4])
    victim = np.zeros_like(EVERYBODY)
    victim[[0, 5]] = True
    assert store.begin(FACTS, 1, victim)
    fill(store, [5, 6])  # 6 is asked still
    present = store.shuffle(RUN, 1, 2)
    assert present is not None and np.flatnonzero(present).tolist() == [0, 1, 2, 3, 4, 5, 6]
    some = EVERYBODY.copy()
    some[[3, 4]] = False
    assert store.begin(FACTS, 2, some)
    assert store.add(RUN, 2, 3, sealed(3)) is Taken.NOT_ASKED
    assert store.begin(FACTS, 2, victim | ~some)
    fill(store, [1, 3, 4], 2)
    assert store.begin(FACTS, 2, np.zeros_like(EVERYBODY))
    assert store.shuffle(RUN, 2, 1) is None  # all of them are gone, and nobody is asked
    assert store.add(RUN, 2, 5, sealed(5)) is Taken.NOT_ASKED


def test_the_file_is_private_and_holds_no_arrival_and_no_sender(
    store: Store, tmp_path: Path
) -> None:
    fill(store, [5, 0, 3, 7])
    store.shuffle(RUN, 1, 2)
    store.close()
    path = tmp_path / FILE
    assert path.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(path) as database:
        tables = {
            name: [row[1].lower() for row in database.execute(f"PRAGMA table_info({name})")]
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        assert tables["batch"] == ["run", "round", "position", "content"]
        assert not any("time" in column for columns in tables.values() for column in columns)
        assert database.execute("SELECT count(*) FROM reports").fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM seen").fetchone() == (0,)
    # Deleted rows are overwritten: each report is there once, in the batch.
    content = path.read_bytes()
    assert [content.count(sealed(client)[:64]) for client in (0, 3, 5, 7)].count(1) >= 3
    assert [each.name for each in tmp_path.iterdir() if "-wal" in each.name] == []


def test_two_stores_that_were_filled_in_another_order_are_equal(tmp_path: Path) -> None:
    contents = []
    for name, order in (("one", [0, 1, 2, 3]), ("other", [3, 1, 0, 2])):
        (tmp_path / name).mkdir()
        store = Store.open(tmp_path / name)
        store.begin(FACTS, 1, EVERYBODY)
        fill(store, order)
        store.close()
        with sqlite3.connect(tmp_path / name / FILE) as database:
            contents.append("\n".join(database.iterdump()))
    assert contents[0] == contents[1]


def test_every_order_is_equally_likely(tmp_path: Path) -> None:
    """3 reports, 1,200 rounds, 6 orders: chi-square at level 1e-6. A shuffler that leaves an order
    out, or draws one twice as often as the others, is found with probability above 0.999."""
    store = Store.open(tmp_path)
    store._db.execute("PRAGMA synchronous = OFF")
    rounds, seen = 1200, Counter[tuple[int, ...]]()
    for number in range(1, rounds + 1):
        store.begin(FACTS, number, EVERYBODY)
        fill(store, [0, 1, 2], number)
        store.shuffle(RUN, number, 2)
        seen[tuple(piece[0] for piece in store.batch(RUN, number))] += 1
        store.hand_over(RUN, number)
    orders = list(permutations(range(3)))
    limit = float(chi2.ppf(1 - 1e-6, 5))
    expected = rounds / 6
    assert sum((seen[order] - expected) ** 2 / expected for order in orders) < limit
    for faulty in ([0.0] + [1 / 5] * 5, [2 / 7] + [1 / 7] * 5):
        distance = rounds * sum((share - 1 / 6) ** 2 * 6 for share in faulty)
        assert ncx2.sf(limit, 5, distance) > 0.999


def test_a_round_is_not_closed_before_that_is_durable(store: Store, tmp_path: Path) -> None:
    fill(store, [5, 0, 3])
    for pragma in ("locking_mode = NORMAL", "busy_timeout = 50", "user_version"):
        store._db.execute(f"PRAGMA {pragma}").fetchall()
    reader = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM reports").fetchone()
    # The commit has to wait for the reader, and does not so for long.
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        store.shuffle(RUN, 1, 2)
    assert store.attendance(RUN, 1) is None
    assert list(store.batch(RUN, 1)) == []
    reader.execute("ROLLBACK")
    assert reader.execute("SELECT count(*) FROM reports").fetchone() == (3,)
    fill(store, [6])
    assert store.shuffle(RUN, 1, 2) is not None
    batch = list(store.batch(RUN, 1))
    reader.close()
    store.close()
    assert list(Store.open(tmp_path).batch(RUN, 1)) == batch


def test_nobody_reads_the_file_of_an_open_store(store: Store, tmp_path: Path) -> None:
    for fresh in (False, True):
        reader = sqlite3.connect(tmp_path / FILE, timeout=0.05)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            reader.execute("SELECT count(*) FROM reports")
        reader.close()
        if not fresh:
            store.close()
            store = Store.open(tmp_path)
    store.close()


CRASH = """
import sys
from pathlib import Path
import numpy as np
from fl_shuffle.shuffler.remote.agreement import Agreement
from fl_shuffle.shuffler.remote.store import Store

facts = Agreement("ab" * 16, "reports", 8, 3, 2, -4, 1 << 20)
store = Store.open(Path(sys.argv[1]))
left = int(sys.argv[2])
steps = [0]

def trace(statement):
    steps[0] += 1
    if steps[0] == left:
        import os
        os.kill(os.getpid(), 9)

store._db.set_trace_callback(trace)
store.begin(facts, 1, np.ones(8, dtype=bool))
print("begun", flush=True)
for client in (0, 3, 5):
    print(store.add("ab" * 16, 1, client, bytes([client]) * facts.sealed_bytes).name, flush=True)
if store.shuffle("ab" * 16, 1, 2) is not None:
    for piece in store.batch("ab" * 16, 1):
        print("batch", piece[0], flush=True)
print("steps", steps[0])
"""


def crash(directory: Path, left: int) -> list[str]:
    """What a process says that is killed before its `left`-th statement (0: never)."""
    done = subprocess.run(
        [sys.executable, "-c", CRASH, str(directory), str(left)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert done.returncode == (-9 if left else 0), done.stderr
    return done.stdout.splitlines()


def test_killed_before_any_statement_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    total = int(crash(whole, 0)[-1].split()[1])
    assert total > 30
    for left in range(1, total + 1, 4):
        directory = tmp_path / str(left)
        directory.mkdir()
        said = crash(directory, left)
        store = Store.open(directory)
        closed = store.attendance(RUN, 1) is not None
        released = [int(line.split()[1]) for line in said if line.startswith("batch")]
        order = [piece[0] for piece in store.batch(RUN, 1)]
        assert order[: len(released)] == released
        if closed:
            assert sorted(order) == [0, 3, 5]
            continue
        assert not released
        kept = {client for (client,) in store._db.execute("SELECT client FROM reports")}
        assert len(kept) >= said.count("ACCEPTED")
        # It goes on where it was: what is there already is not taken twice.
        store.begin(FACTS, 1, EVERYBODY)
        fill(store, [0, 3, 5])
        store.shuffle(RUN, 1, 2)
        assert sorted(piece[0] for piece in store.batch(RUN, 1)) == [0, 3, 5]
        store.close()


def test_threads_and_closing_at_once_give_one_batch(store: Store) -> None:
    results = []
    gate = threading.Barrier(9)

    def send(client: int) -> None:
        gate.wait()
        results.append((client, store.add(RUN, 1, client, sealed(client))))

    def close() -> None:
        gate.wait()
        store.shuffle(RUN, 1, 2)

    threads = [threading.Thread(target=send, args=(client,)) for client in range(8)]
    threads.append(threading.Thread(target=close))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    present = store.shuffle(RUN, 1, 2)
    assert present is not None
    taken = sorted(client for client, outcome in results if outcome is Taken.ACCEPTED)
    assert taken == np.flatnonzero(present).tolist()
    assert sorted(piece[0] for piece in store.batch(RUN, 1)) == taken


def test_a_sum_is_exact_and_leaves_out_what_cannot_be_added(tmp_path: Path) -> None:
    key = new_key()
    facts = Agreement(RUN, "sum", 8, 3, 2, -4, 1 << 20)
    store = Store.open(tmp_path)
    store.begin(facts, 1, EVERYBODY)
    generator = np.random.default_rng(4)
    steps = generator.integers(-(1 << 20), 1 << 20, size=(8, 3))
    reports = (steps / 16.0).astype(np.float32)
    reports[2, 1] += 2.0**-5  # off the grid
    reports[3, 0] = np.nan
    reports[4, 2] = 1e30
    for client, report in enumerate(reports):
        other = facts.info(2 if client == 5 else 1)
        store.add(RUN, 1, client, seal(report_as_bytes(report), public_key(key), other))
    assert store.add_up(RUN, 1, 5, adding(facts, 1, key)) is None
    present = store.add_up(RUN, 1, 4, adding(facts, 1, key))
    assert present is not None
    assert np.flatnonzero(present).tolist() == [0, 1, 6, 7]
    (content,) = store.batch(RUN, 1)
    total = sum_of_content(content, facts)
    assert np.array_equal(total, steps[[0, 1, 6, 7]].sum(axis=0) / 16.0)
    with pytest.raises(RunError, match="no sum"):
        sum_of_content(content[:-1], facts)

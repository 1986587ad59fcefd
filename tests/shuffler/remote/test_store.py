"""A round has one batch, whatever happens; who sent which, and when, is nowhere."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
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
from fl_shuffle.shuffler.remote.store import FILE, Store
from fl_shuffle.shuffler.remote.wire import CLOSED, HANDED_OVER, OPEN, ShufflerError
from tests.shuffler.remote.small_shuffler import EVERYBODY, FACTS

THREE = replace(FACTS, batches=3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store.open(tmp_path)
    found.begin(FACTS, 1, EVERYBODY)
    return found


def sealed(client: int, batches: int = 1) -> bytes:
    """What stands for a client's reports: each of its bytes names client or batch."""
    pairs = (bytes([client % 256, batch]) for batch in range(batches))
    return b"".join(pair * (FACTS.sealed_bytes // 2) for pair in pairs)


def add(
    store: Store, client: int, delivery: bytes = b"", number: int = 1, facts: Agreement = FACTS
) -> str:
    """Why a delivery is refused; nothing where it is there for good."""
    try:
        store.add(facts, number, client, delivery or sealed(client, facts.batches))
    except ShufflerError as refusal:
        return str(refusal)
    return ""


def close(
    store: Store, least: int = 2, number: int = 1, facts: Agreement = FACTS, key: bytes = b""
) -> list[int] | None:
    """Who is in a round's batch; None where there are too few."""
    try:
        return np.flatnonzero(store.close_round(facts, number, least, key)).tolist()
    except ShufflerError as refusal:
        assert "nothing is released" in str(refusal)
        return None


def test_a_round_has_one_batch_until_it_is_handed_over(store: Store, tmp_path: Path) -> None:
    assert close(store, least=0) is None
    assert [add(store, client) for client in (5, 0, 3)] == [""] * 3
    assert close(store, least=4) is None
    with pytest.raises(ShufflerError, match="not closed"):
        store.batch(FACTS, 1)
    assert close(store) == [0, 3, 5]
    batch = store.batch(FACTS, 1)
    assert sorted(batch) == [sealed(client) for client in (0, 3, 5)]
    assert store.batch(FACTS, 1, 1, 1) == batch[1:2]
    store.close()
    again = Store.open(tmp_path)
    assert again.begin(FACTS, 1, EVERYBODY) == CLOSED
    assert close(again, least=6) == [0, 3, 5] and again.batch(FACTS, 1) == batch
    again.hand_over(FACTS, 1)
    with pytest.raises(ShufflerError, match="handed over"):
        again.batch(FACTS, 1)
    assert again.begin(FACTS, 1, EVERYBODY) == HANDED_OVER
    assert "not open" in add(again, 4)


def test_one_report_per_client_and_round_and_none_twice(store: Store) -> None:
    # The acknowledgement was lost: what is there counts.
    assert [add(store, 1, delivery) for delivery in (sealed(1), sealed(1), sealed(5))] == [""] * 3
    assert "sent before" in add(store, 2, sealed(1))
    assert "not open" in add(store, 2, number=2)
    assert "no such run" in add(store, 2, facts=replace(FACTS, run="cd" * 16))
    assert "other facts" in add(store, 2, facts=THREE)
    assert add(store, 2) == "" and close(store) == [1, 2]
    assert sorted(store.batch(FACTS, 1)) == [sealed(1), sealed(2)]
    # One round is open at a time: beginning another throws its reports away.
    store.begin(FACTS, 2, EVERYBODY)
    assert add(store, 4, number=2) == ""
    store.begin(FACTS, 3, EVERYBODY)
    assert "not open" in add(store, 5, number=2)
    store.begin(FACTS, 2, EVERYBODY)
    assert close(store, 1, number=2) is None


def test_each_batch_of_a_round_has_an_order_of_its_own(tmp_path: Path) -> None:
    """Of three clients: every order is as likely, every pair of orders in two batches, and no
    report is lost. Chi-square at level 1e-6; a shuffler that leaves an order out, or draws one
    twice as often as the others, is found with probability above 0.999."""
    store, rounds = Store.open(tmp_path), 400
    store._db.execute("PRAGMA synchronous = OFF")
    single, pairs = Counter[Any](), Counter[Any]()
    for number in range(1, rounds + 1):
        store.begin(THREE, number, EVERYBODY)
        for client in range(3):
            add(store, client, number=number, facts=THREE)
        assert close(store, number=number, facts=THREE) == [0, 1, 2]
        found = store.batch(THREE, number)
        assert [piece[1] for piece in found] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        orders = [tuple(piece[0] for piece in found[start : start + 3]) for start in (0, 3, 6)]
        single.update(orders)
        pairs.update([(orders[0], orders[1]), (orders[1], orders[2])])
    orders_of_three = list(permutations(range(3)))
    limit, expected = float(chi2.isf(1e-6, 5)), 3 * rounds / 6
    assert sum((single[order] - expected) ** 2 / expected for order in orders_of_three) < limit
    for faulty in ([0.0] + [1 / 5] * 5, [2 / 7] + [1 / 7] * 5):
        distance = 3 * rounds * sum((share - 1 / 6) ** 2 * 6 for share in faulty)
        assert ncx2.sf(limit, 5, distance) > 0.999
    # The two pairs of a round share a batch, but each of them is uniform: at most twice chi-square.
    expected = 2 * rounds / 36
    squares = sum((pairs[pair] - expected) ** 2 for pair in product(orders_of_three, repeat=2))
    assert squares / expected < 2.0 * chi2.isf(1e-6, 35)


def test_a_copy_of_one_of_anothers_reports_is_refused(tmp_path: Path) -> None:
    store, size = Store.open(tmp_path), FACTS.sealed_bytes
    store.begin(THREE, 1, EVERYBODY)
    one, two = sealed(1, 3), sealed(2, 3)
    assert add(store, 1, one, facts=THREE) == ""
    for delivery in (two[: 2 * size] + one[:size], two[:size] * 3):
        assert "sent before" in add(store, 2, delivery, facts=THREE)


def test_the_list_of_an_open_round_grows_and_never_shrinks(store: Store) -> None:
    """Begun anew with a victim and a colluder alone, it is closed with everybody's reports."""
    victim, some = np.isin(np.arange(6), [0, 4]), ~np.isin(np.arange(6), [3, 4])
    assert not any(add(store, client) for client in range(4))
    assert store.begin(FACTS, 1, victim) == OPEN
    assert not any(add(store, client) for client in (4, 5))  # 5 is asked still
    assert close(store) == [0, 1, 2, 3, 4, 5]
    store.begin(FACTS, 2, some)
    assert all("not asked" in add(store, client, number=2) for client in (3, 10**9))
    store.begin(FACTS, 2, victim | ~some)
    assert not any(add(store, client, number=2) for client in (1, 3, 4))
    store.begin(FACTS, 2, ~EVERYBODY)
    assert close(store, 1, number=2) is None  # all of them are gone, and nobody is asked
    assert "not asked" in add(store, 5, number=2)


def test_the_file_is_private_and_holds_no_arrival_and_no_sender(tmp_path: Path) -> None:
    contents = []
    for name, order in (("one", [0, 3, 4, 5]), ("other", [5, 3, 0, 4])):
        (tmp_path / name).mkdir()
        store, path = Store.open(tmp_path / name), tmp_path / name / FILE
        store.begin(FACTS, 1, EVERYBODY)
        assert not any(add(store, client) for client in order)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            sqlite3.connect(path, timeout=0.05).execute("SELECT count(*) FROM reports")
        store.close()
        with sqlite3.connect(path) as database:
            contents.append("\n".join(database.iterdump()))
        store = Store.open(tmp_path / name)
        close(store)
        store.close()
    assert contents[0] == contents[1]  # the order in which they came is nowhere
    assert path.stat().st_mode & 0o777 == 0o600 and not list(path.parent.glob("*-wal"))
    with sqlite3.connect(path) as database:
        (schema,) = database.execute("SELECT group_concat(sql) FROM sqlite_master").fetchone()
        assert "time" not in schema.lower()
        columns = [row[1] for row in database.execute("PRAGMA table_info(batch)")]
        assert columns == ["run", "round", "position", "content"]
        for table in ("reports", "seen"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    # Deleted rows are overwritten: each report is there once, in the batch.
    assert [path.read_bytes().count(sealed(client)) for client in (3, 4, 5)] == [1, 1, 1]


def test_a_round_is_not_closed_before_that_is_durable(store: Store, tmp_path: Path) -> None:
    assert not any(add(store, client) for client in (5, 0, 3))
    for pragma in ("locking_mode = NORMAL", "busy_timeout = 50", "user_version"):
        store._db.execute(f"PRAGMA {pragma}").fetchall()
    reader = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM reports").fetchone()
    # The commit has to wait for the reader, and does not so for long.
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        close(store)
    assert store.state_of(FACTS, 1)[0] == OPEN
    reader.close()
    assert close(store) == [0, 3, 5]


def test_killed_before_any_statement_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """What a killed process leaves is what its files held when the statement began."""
    home, left, accepted = tmp_path / "store", list[tuple[Path, list[int]]](), list[int]()
    home.mkdir()

    def trace(statement: str) -> None:
        left.append((tmp_path / str(len(left)), accepted.copy()))
        shutil.copytree(home, left[-1][0])

    store = Store.open(home)
    store._db.set_trace_callback(trace)
    store.begin(FACTS, 1, EVERYBODY)
    for client in (0, 3, 5):
        assert add(store, client) == ""
        accepted.append(client)
    assert close(store) == [0, 3, 5]
    trace("none: it has ended")
    assert len(left) > 30
    for folder, acknowledged in [*left[::5], left[-1]]:
        again = Store.open(folder)
        kept = again._db.execute("SELECT DISTINCT client FROM reports").fetchall()
        # It goes on where it was: what is there already is not taken twice.
        if again.begin(FACTS, 1, EVERYBODY) == OPEN:
            assert {client for (client,) in kept} >= set(acknowledged)
            assert not any(add(again, client) for client in (0, 3, 5))
            assert close(again) == [0, 3, 5]
        assert sorted(again.batch(FACTS, 1)) == [sealed(client) for client in (0, 3, 5)]
        again.close()


def test_threads_and_closing_at_once_give_one_batch(store: Store) -> None:
    with ThreadPoolExecutor(7) as pool:
        calls = [pool.submit(add, store, client) for client in range(6)]
        calls.insert(3, pool.submit(close, store, 1))
    said = [call.result() for call in calls if call is not calls[3]]
    present = [client for client, refusal in enumerate(said) if not refusal]
    assert close(store, 1) == present == sorted(piece[0] for piece in store.batch(FACTS, 1))


def test_a_sum_is_exact_and_leaves_out_what_cannot_be_added(tmp_path: Path) -> None:
    key, store, facts = new_key(), Store.open(tmp_path), replace(FACTS, release="sum")
    store.begin(facts, 1, EVERYBODY)
    steps = np.random.default_rng(4).integers(-(1 << 20), 1 << 20, size=(6, 4))
    reports = (steps / 1024.0).astype(np.float32)
    reports[2, 1] += 2.0**-11  # off the grid
    reports[3, 0] = np.nan
    for client, report in enumerate(reports):
        info = facts.info(2 if client == 5 else 1)
        delivery = seal(report_as_bytes(report), public_key(key), info)
        assert add(store, client, delivery, facts=facts) == ""
    assert close(store, 4, facts=facts, key=key) is None
    assert close(store, 3, facts=facts, key=key) == [0, 1, 4]
    (content,) = store.batch(facts, 1)
    total = sum_of_content(content, facts)
    assert np.array_equal(total, steps[[0, 1, 4]].sum(axis=0) / 1024.0)
    with pytest.raises(RunError, match="no sum"):
        sum_of_content(content[:-1], facts)

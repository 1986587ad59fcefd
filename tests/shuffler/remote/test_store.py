"""What is sealed opens for one key, run and round; a round has one batch, whatever happens; who
sent which, and when, is nowhere."""

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
from fl_shuffle.shuffler.remote.agreement import Agreement, opened_report, report_as_bytes
from fl_shuffle.shuffler.remote.sealing import OVERHEAD, new_key, public_key, seal
from fl_shuffle.shuffler.remote.store import FILE, Store
from fl_shuffle.shuffler.remote.wire import OPEN, ShufflerError

FACTS = Agreement("5a" * 16, "reports", 6, 4, 2, -10, 1 << 20)
THREE = replace(FACTS, batches=3)
EVERYBODY = np.ones(6, dtype=bool)
PRIVATE = new_key()
REPORT = np.array([0.5, -2.0, 1024.0, 0.0], dtype=np.float32)


def sealed_report(report: np.ndarray = REPORT, facts: Agreement = FACTS, number: int = 7) -> bytes:
    return seal(report_as_bytes(report, None), public_key(PRIVATE), facts.info(number))


def test_a_report_opens_as_it_was_for_its_key_round_and_run_alone() -> None:
    first, second = sealed_report(), sealed_report()
    assert first != second and report_as_bytes(REPORT, None) not in first
    assert len(first) == len(second) == FACTS.sealed_bytes == 16 + OVERHEAD
    opened = opened_report(first, PRIVATE, FACTS, 7)
    assert opened is not None and opened.tobytes() == REPORT.tobytes()
    assert opened_report(first, PRIVATE, FACTS, 8) is None
    assert opened_report(first, new_key(), FACTS, 7) is None
    for changed in ({"run": "10" * 16}, {"release": "sum"}, {"clients": 11}, {"exponent": -9}):
        assert opened_report(first, PRIVATE, replace(FACTS, **changed), 7) is None
    # Whole or not at all; the last of these is a point of small order.
    for changed in (first[:-1], first[:40], b"", first + b"\0", bytes(132)):
        assert opened_report(changed, PRIVATE, FACTS, 7) is None
    for place in (0, 40, len(first) - 1):
        changed = bytearray(first)
        changed[place] ^= 1
        assert opened_report(bytes(changed), PRIVATE, FACTS, 7) is None


def test_what_is_off_the_grid_or_too_large_is_no_report() -> None:
    for bad in (2.0**-11, 1025.0, np.nan, np.inf, -np.inf, 3e38):
        report = REPORT.copy()
        report[1] = bad
        assert opened_report(sealed_report(report), PRIVATE, FACTS, 7) is None
    assert opened_report(sealed_report(REPORT[:2]), PRIVATE, FACTS, 7) is None


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
    store: Store, least: int = 2, number: int = 1, facts: Agreement = FACTS
) -> list[int] | None:
    """Who is in a round's batch; None where there are too few."""
    try:
        return np.flatnonzero(store.close_round(facts, number, least, PRIVATE)).tolist()
    except ShufflerError as refusal:
        assert "nothing is released" in str(refusal)
        return None


def test_one_report_per_client_and_round_and_none_twice(store: Store) -> None:
    # The acknowledgement was lost: what is there counts.
    assert [add(store, 1, delivery) for delivery in (sealed(1), sealed(1), sealed(5))] == [""] * 3
    assert "sent before" in add(store, 2, sealed(1))
    assert add(store, 2) == "" and close(store) == [1, 2]
    assert sorted(store.batch(FACTS, 1)) == [sealed(1), sealed(2)]
    # A copy of one report of another client's would stand beside it in a batch.
    other = replace(THREE, run="cd" * 16)
    store.begin(other, 1, EVERYBODY)
    one, two, size = sealed(1, 3), sealed(2, 3), FACTS.sealed_bytes
    assert add(store, 1, one, facts=other) == ""
    for delivery in (two[: 2 * size] + one[:size], two[:size] * 3):
        assert "sent before" in add(store, 2, delivery, facts=other)
    # One round is open at a time: beginning another throws its reports away.
    store.begin(other, 2, EVERYBODY)
    assert "not open" in add(store, 3, facts=other)
    store.begin(other, 1, EVERYBODY)
    assert close(store, 1, facts=other) is None


def test_each_batch_of_a_round_has_an_order_of_its_own(tmp_path: Path) -> None:
    """Of three clients every pair of orders in two batches is as likely. Chi-square at level 1e-6;
    a shuffler that leaves an order out, or draws one twice as often as the others, is found with
    probability above 0.999."""
    store, rounds, pairs = Store.open(tmp_path), 800, (Counter[Any](), Counter[Any]())
    store._db.execute("PRAGMA synchronous = OFF")
    for number in range(1, rounds + 1):
        store.begin(THREE, number, EVERYBODY)
        for client in range(3):
            add(store, client, number=number, facts=THREE)
        assert close(store, number=number, facts=THREE) == [0, 1, 2]
        found = store.batch(THREE, number)
        assert [piece[1] for piece in found] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        orders = [tuple(piece[0] for piece in found[start : start + 3]) for start in (0, 3, 6)]
        pairs[0][orders[0], orders[1]] += 1
        pairs[1][orders[1], orders[2]] += 1
    limit, expected = float(chi2.isf(1e-6, 35)), rounds / 36
    for counted in pairs:
        every = product(permutations(range(3)), repeat=2)
        assert sum((counted[pair] - expected) ** 2 / expected for pair in every) < limit
    for faulty in ([0.0] + [1 / 5] * 5, [2 / 7] + [1 / 7] * 5):
        distance = ((np.outer(faulty, faulty) - 1 / 36) ** 2).sum() * 36 * rounds
        assert ncx2.sf(limit, 35, distance) > 0.999


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
        store.close()
        with sqlite3.connect(path) as database:
            contents.append("\n".join(database.iterdump()))
        store = Store.open(tmp_path / name)
        close(store)
        store.close()
    assert contents[0] == contents[1]  # the order in which they came is nowhere
    assert path.stat().st_mode & 0o777 == 0o600 and not list(path.parent.glob("*-wal"))
    with sqlite3.connect(path) as database:
        assert "time" not in str(database.execute("SELECT sql FROM sqlite_master").fetchall())
        columns = [row[1] for row in database.execute("PRAGMA table_info(batch)")]
        assert columns == ["run", "round", "position", "content"]
        for table in ("reports", "seen"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    # Deleted rows are overwritten: each report is there once, in the batch.
    assert [path.read_bytes().count(sealed(client)) for client in (3, 4, 5)] == [1, 1, 1]


def test_what_is_handed_over_or_thrown_away_is_in_no_byte_of_the_file(tmp_path: Path) -> None:
    """Sealed reports may be opened one day, with a key that was lost."""
    store, path = Store.open(tmp_path), tmp_path / FILE

    def left() -> list[int]:
        return [path.read_bytes().count(sealed(client)) for client in (1, 2)]

    store.begin(FACTS, 1, EVERYBODY)
    assert not any(add(store, client) for client in (1, 2)) and left() == [1, 1]
    assert close(store) == [1, 2] and left() == [1, 1]
    store.hand_over(FACTS, 1)
    assert left() == [0, 0]
    with pytest.raises(ShufflerError, match="handed over"):
        store.batch(FACTS, 1)
    store.begin(FACTS, 2, EVERYBODY)
    assert not any(add(store, client, number=2) for client in (1, 2)) and left() == [1, 1]
    store.begin(FACTS, 3, EVERYBODY)
    assert left() == [0, 0]


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
    batch = store.batch(FACTS, 1)
    assert len(left) > 30
    for folder, acknowledged in [*left[::5], left[-1]]:
        again = Store.open(folder)
        kept = again._db.execute("SELECT DISTINCT client FROM reports").fetchall()
        # It goes on where it was: what is there already is not taken twice.
        if again.begin(FACTS, 1, EVERYBODY) == OPEN:
            assert {client for (client,) in kept} >= set(acknowledged)
            assert not any(add(again, client) for client in (0, 3, 5))
            assert close(again) == [0, 3, 5]
        assert sorted(again.batch(FACTS, 1)) == sorted(batch)
    assert close(again, least=6) == [0, 3, 5] and again.batch(FACTS, 1) == batch


def test_a_client_is_in_a_sum_with_all_of_its_reports_or_with_none(tmp_path: Path) -> None:
    store, facts = Store.open(tmp_path), replace(FACTS, release="sum", batches=2)
    store.begin(facts, 1, EVERYBODY)
    off = REPORT + np.float32(2.0**-11)
    for client, reports in enumerate(((REPORT, REPORT), (REPORT, off), (off, REPORT))):
        delivery = b"".join(sealed_report(each, facts, 1) for each in reports)
        assert add(store, client, delivery, facts=facts) == ""
    assert close(store, 1, facts=facts) == [0]
    (content,) = store.batch(facts, 1)
    assert np.array_equal(facts.sum_in(content), 2.0 * REPORT)


def test_threads_and_closing_at_once_give_one_batch(store: Store) -> None:
    with ThreadPoolExecutor(7) as pool:
        calls = [pool.submit(add, store, client) for client in range(6)]
        calls.insert(3, pool.submit(close, store, 1))
    said = [call.result() for call in calls if call is not calls[3]]
    present = [client for client, refusal in enumerate(said) if not refusal]
    assert close(store, 1) == present == sorted(piece[0] for piece in store.batch(FACTS, 1))


def test_a_sum_is_exact_and_leaves_out_what_cannot_be_added(tmp_path: Path) -> None:
    store, facts = Store.open(tmp_path), replace(FACTS, release="sum")
    store.begin(facts, 1, EVERYBODY)
    steps = np.random.default_rng(4).integers(-(1 << 20), 1 << 20, size=(6, 4))
    reports = (steps / 1024.0).astype(np.float32)
    reports[2, 1] += 2.0**-11  # off the grid
    reports[3, 0] = np.nan
    for client, report in enumerate(reports):
        delivery = sealed_report(report, facts, 2 if client == 5 else 1)
        assert add(store, client, delivery, facts=facts) == ""
    assert close(store, 4, facts=facts) is None
    assert close(store, 3, facts=facts) == [0, 1, 4]
    (content,) = store.batch(facts, 1)
    wanted = steps[[0, 1, 4]].sum(axis=0) / 1024.0
    assert np.array_equal(facts.sum_in(content), wanted)
    with pytest.raises(RunError, match="not a sum of this run"):
        facts.sum_in(content[:-1])

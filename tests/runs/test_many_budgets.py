"""A run in which every client has a budget of its own: what is written down, and for whom."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.ledger.store import SCHEMA_VERSION, Ledger
from fl_shuffle.ledger.writer import LedgerWriter

CLIENTS = 500


def test_a_round_lists_the_most_exposed_and_every_client_has_its_own_bill(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    exposure = rng.uniform(0.01, 0.5, CLIENTS)
    ones = np.ones(CLIENTS)
    table = ClassTable(np.zeros(CLIENTS, np.int8), 2.0 / exposure, ones, 2.0 * ones, exposure,
                       1e-5 * ones, ones.astype(np.int64))  # fmt: skip
    class_of = rng.permutation(CLIENTS)
    accountant = Accountant(table, class_of, unit="client", schedule="aggregate", delta=1e-5)
    config = parse_config({"data": {"clients": CLIENTS}})
    meta = {
        "schema": SCHEMA_VERSION, "config": config.to_dict(), "run": "0" * 32, "dimension": 1,
        "data": {"source": "none", "records": CLIENTS, "shape": [1], "classes": 2,
                 "test_records": 1, "held_out": 0},
        "libraries": {}, "relation": "replace-one", "test_data": "public", "code_version": "0",
        "python": "3", "records_not_covered": 0, "seed": 1, "started": "2026-01-01",
    }  # fmt: skip
    ledger = Ledger.create(tmp_path / "ledger.sqlite", meta, table, class_of)
    writer = LedgerWriter(accountant, ledger, config)
    presence = [rng.random(CLIENTS) < 0.6 for _ in range(3)]
    for number, present in enumerate(presence, start=1):
        assert writer.reserve(number, present) is not None
        assert writer.commit(number, present) is not None
    writer.close_books(3)
    ledger.close()

    read = LedgerRecord(tmp_path / "ledger.sqlite")
    assert read.classes == table and np.array_equal(read.class_of, class_of)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        select = "SELECT class_id, n_reports, local FROM round_classes WHERE round = 3"
        listed = db.execute(select).fetchall()
    assert 0 < len(listed) <= 64
    taken = np.sum(presence, axis=0)
    expected = [
        gaussian_epsilon(1e-5, exposure[own] * np.sqrt(times)) if times else 0.0
        for own, times in zip(class_of, taken, strict=True)
    ]
    assert read.spend is not None
    np.testing.assert_array_equal(read.spend[:, 0], taken)
    np.testing.assert_allclose(read.spend[:, 1], expected, rtol=1e-10)
    client_of = np.argsort(class_of)
    for own, reports, local in listed:
        assert reports == 1 and presence[2][client_of[own]]
        assert abs(local / expected[client_of[own]] - 1) < 1e-10
    assert (
        read.epsilon["proven"][-1] == max(row[2] for row in listed)
        or not presence[2][int(np.argmax(expected))]
    )

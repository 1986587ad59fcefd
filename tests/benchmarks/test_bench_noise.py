"""The noise benchmark runs from end to end; times are not looked at."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import noise


def test_the_table_has_every_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "noise.csv"
    arguments = ["--seconds", "0.1", "--dimensions", "610", "--csv", str(table)]
    monkeypatch.setattr(sys, "argv", ["noise", *arguments])
    monkeypatch.setattr(noise, "VARIATES", 1 << 18)
    threads = torch.get_num_threads()
    try:
        assert noise.main() == 0
    finally:
        torch.set_num_threads(threads)
    with table.open(newline="") as file:
        rows = {row["what"]: row for row in csv.DictReader(file)}
    assert {"ours: normal", "ours: gaussian reports", "torch normal_ (mt19937)"} <= set(rows)
    assert all(float(row["median_ns"]) > 0 for row in rows.values())

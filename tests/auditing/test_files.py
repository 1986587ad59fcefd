"""The audit alters files, too: what one line holds may change nothing that is published."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from fl_shuffle.auditing.effort import Clock
from fl_shuffle.auditing.file_neighbours import CELLS
from fl_shuffle.auditing.twin_runs import audit_published
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.sources import files
from fl_shuffle.errors import DataError

HEADER = "ward,age,sex,outcome\r\n"
LINES = [f"{'abcd'[k % 4]},{k},{'fm'[k % 2]},{k % 3 % 2}" for k in range(24)]


def lib_csv(path: Path, client: str = "") -> dict[str, Any]:
    """As a reader of .csv files does it who trusts the library."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *rows = [row for row in csv.reader(file) if any(row)]
        cells = [(row + [""] * len(header))[: len(header)] for row in rows]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    return dict(zip(header, zip(*cells, strict=True), strict=True))


def settings(folder: Path, *, by_file: bool, named: bool) -> Config:
    """Records of four wards in one file or in one a ward; `named`: they say whose they are."""
    (folder / "test.csv").write_text(HEADER + "\r\n".join(LINES[:3]), newline="")
    if by_file:
        (folder / "train").mkdir()
        for ward in "abcd":
            own = [line for line in LINES if line[0] == ward]
            (folder / "train" / f"{ward}.csv").write_text(HEADER + "\r\n".join(own), newline="")
    else:
        (folder / "train.csv").write_text(HEADER + "\r\n".join(LINES) + "\r\n", newline="")
    options: dict[str, Any] = {
        "label": "outcome",
        "classes": 2,
        "columns": ["age", "sex"],
        "categories": {"sex": ["f", "m"]},
        "ranges": {"age": [0, 30]},
    }
    if named:
        options["client"] = "ward"
    return parse_config(
        {
            "run": {"rounds": 1},
            "data": {
                "source": "files",
                "root": str(folder),
                "features": "none",
                "clients": 4,
                "partition": "natural" if named or by_file else "iid",
                "source_options": options,
            },
            "privacy": {"unit": "record"},
            "budgets": {"epsilon": 2.0},
        }
    )


@pytest.mark.parametrize(("by_file", "named"), [(False, True), (True, False), (False, False)])
def test_what_a_line_holds_changes_nothing_that_is_published(
    tmp_path: Path, by_file: bool, named: bool
) -> None:
    found = audit_published(settings(tmp_path, by_file=by_file, named=named), Clock(600.0), ())
    assert found.neighbours == tuple(CELLS)
    assert found.differences == ()


@pytest.mark.parametrize(("by_file", "named"), [(False, True), (True, False), (False, False)])
def test_a_reader_that_trusts_the_library_is_found_out(
    tmp_path: Path, by_file: bool, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "read_table", lib_csv)
    found = audit_published(settings(tmp_path, by_file=by_file, named=named), Clock(600.0), ())
    told = {difference.neighbour for difference in found.differences}
    caught = {"a cell that begins with a quote", "carriage returns in cells",
              "cells of 200,000 characters", "cells that are no UTF-8"}  # fmt: skip
    assert told >= caught | (set() if named else {"a line of blank cells"})

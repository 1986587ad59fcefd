"""docs/research/papers.md: every call of its tables runs, with the status beside it; every
numbered statement of the papers has a row. (That the numbers are the recorded ones: test_pages.)"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import fl_shuffle as fs
from benchmarks.reproduction import chen2024_estimation
from benchmarks.reproduction.core import all_targets
from benchmarks.reproduction.papers import Statement, papers
from benchmarks.tables import read_csv
from fl_shuffle.accounting.queries.methods import METHODS
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import resolve_config
from tests.repository import ROOT

PAPERS = papers(ROOT / "docs" / "research" / "reproductions")
ROWS = [row for paper in PAPERS.values() for row in paper.rows]
BOUND, REPRODUCE, SIMULATE = "fl-shuffle bound ", "scripts/reproduce ", "fl-shuffle simulate "
BOUNDS = [row for row in ROWS if row.call.startswith(BOUND)]


def ids(rows: list[Statement]) -> list[str]:
    return [row.what for row in rows]


ONE = [row for row in BOUNDS if "--over" not in row.call]
FIGURES = [row for row in BOUNDS if "--over" in row.call]
PYTHON = [row for row in ROWS if row.call.startswith("fs.")]
FIGURE_3 = {"mean": chen2024_estimation.PLAIN, "frequency": chen2024_estimation.PUBLISHED}


@pytest.mark.parametrize("row", ONE, ids=ids(ONE))
def test_call_in_the_table_runs_with_its_status(
    row: Statement, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *words = shlex.split(row.call)
    assert program == "fl-shuffle"
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == row.status


@pytest.mark.parametrize("row", FIGURES, ids=ids(FIGURES))
def test_figure_in_the_table_is_drawn(
    row: Statement, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At two of the hundred values: every method that is named has a curve."""
    words = shlex.split(row.call.replace("1e3:1e5:100", "1e3:1e5:2"))
    picture = tmp_path / "figure.svg"
    assert main([str(picture) if word == "FILE" else word for word in words[1:]] + ["--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    methods = words[words.index("--method") + 1].split(",")
    assert {each["method"] for each in body["curves"]} == set(methods)
    assert body["values"] == [1000, 100_000] and not body["not_applicable"]
    assert picture.read_bytes().startswith(b"<?xml") and row.status == "figure"


@pytest.mark.parametrize("row", PYTHON, ids=ids(PYTHON))
def test_python_call_in_the_table_runs_with_its_status(row: Statement) -> None:
    users = 400
    given = {
        "fs": fs,
        "ages": np.linspace(20.0, 80.0, users),
        "values": np.arange(users) % 2,
        "budgets": np.tile([0.5, 1.0], users // 2),
    }
    assert str(eval(row.call, given).central.status) == row.status


def test_figure_3_has_the_numbers_of_its_reproduction() -> None:
    """First and last point of each curve, and the epsilons at the paper's default budgets."""
    page = (ROOT / "docs" / "research" / "papers.md").read_text(encoding="utf-8")
    folder = ROOT / "docs" / "research" / "reproductions"
    for kind, label in FIGURE_3.items():
        said = re.findall(rf"^\| Figure 3, {kind}: .*$|^- {kind}: .*$", page, re.MULTILINE)
        assert len(said) == 2
        for axis in ("f_C", "eps_C"):
            table = read_csv(folder / f"chen2024-gspa-figure-3-{kind}" / f"against_{axis}.csv")
            names = f"MAE, {label}", f"largest expected MAE, {label}"
            for name, line in zip(names, said, strict=True):
                first, last = (float(table[end][name]) for end in (0, -1))
                ends = {f"{first:.3g} to {last:.3g} over", f"{last:.3g} to {first:.3g} over"}
                assert any(f"{each} {axis}" in line for each in ends)
        assert f"{float(table[1][f'proven epsilon, {label}']):.3g} for {label[:11]}" in page
        assert f"epsilon {float(table[1]['GSPA epsilon']):.3g}, as published" in page


def test_other_calls_in_the_table_name_what_there_is() -> None:
    targets = all_targets()
    for row in ROWS:
        if row.call.startswith(REPRODUCE):
            assert row.call.removeprefix(REPRODUCE) in targets
        elif row.call.startswith(SIMULATE):
            resolve_config(row.call.removeprefix(SIMULATE), {})
        else:
            assert row in BOUNDS or row in PYTHON or not row.call
        assert not row.code or (ROOT / "fl_shuffle" / row.code).exists()


@pytest.mark.parametrize("name", PAPERS)
def test_every_numbered_statement_has_a_row(name: str) -> None:
    paper = PAPERS[name]
    assert {each for row in paper.rows for each in row.covers} == set(paper.numbered)


def test_tables_name_every_bound_of_the_papers() -> None:
    words = [shlex.split(row.call) for row in ONE]
    called = {each[each.index("--method") + 1] for each in words}
    of_vectors = {"vector", "sum", "attack", "sum-attack", "profile"}
    assert called == METHODS.keys() - of_vectors

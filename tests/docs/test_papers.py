"""docs/papers.md: every call of its tables runs, and has the status that stands beside it."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from fl_shuffle.accounting.queries.methods import METHODS
from fl_shuffle.cli import main
from tests.repository import ROOT

PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (?P<what>[^|]+) \| `(?P<call>[^`]+)` \| (?P<status>[^|]+) \|$", re.MULTILINE)
ROWS = [(found["what"], found["call"], found["status"]) for found in ROW.finditer(PAGE)]


@pytest.mark.parametrize(("what", "call", "status"), ROWS, ids=[row[0] for row in ROWS])
def test_call_in_the_table_runs_with_its_status(
    what: str, call: str, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *words = shlex.split(call)
    assert program == "fl-shuffle"
    assert main([*words, "--json"]) == 0, what
    assert json.loads(capsys.readouterr().out)["status"] == status


def test_tables_name_every_bound_of_the_papers() -> None:
    """What a table row cannot hold is no row: all lines but headings are read."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) == len(ROWS) > 20
    called = {shlex.split(call)[shlex.split(call).index("--method") + 1] for _, call, _ in ROWS}
    of_vectors = {"proven", "sum", "attack", "sum-attack", "profile"}
    assert called == METHODS.keys() - of_vectors

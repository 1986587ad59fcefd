"""What is published under docs/reproduction and in the README: one accounting, today's settings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.reproduction import publish, training
from benchmarks.reproduction.core import Options, all_targets, execute, finished
from benchmarks.tables import read_csv, write_csv
from fl_shuffle.errors import NotApplicableError
from tests.repository import ROOT

PUBLISHED = ROOT / publish.FOLDER


@pytest.mark.parametrize("column", ["proven epsilon", "lower bound", "published epsilon (GSPA)"])
def test_tables_that_disagree_are_not_published(tmp_path: Path, column: str) -> None:
    for path in (publish.CLIENT_LEVEL, publish.RECORD_LEVEL, publish.EPSILONS):
        (tmp_path / path.parent).mkdir()
        shutil.copyfile(PUBLISHED / path, tmp_path / path)
    assert publish.expectations(tmp_path) in (ROOT / "README.md").read_text()
    rows = read_csv(tmp_path / publish.CLIENT_LEVEL)
    rows[-1][column] = "0.3"
    write_csv(tmp_path / publish.CLIENT_LEVEL, rows)
    with pytest.raises(NotApplicableError, match=r"is 0\.3 in one table.*recount"):
        publish.expectations(tmp_path)


@pytest.mark.slow
def test_published_epsilons_are_the_present_accountants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A copy of what is published, two configurations of it, counted again: nothing may change.
    monkeypatch.setattr(
        training, "RECORD", {"mnist_record_mixed": training.RECORD["mnist_record_mixed"]}
    )
    monkeypatch.setattr(training, "CLIENTS", {0.5: training.CLIENTS[0.5]})
    options = Options(tmp_path, measured=PUBLISHED)
    for name in (path.parent.name for path in (publish.CLIENT_LEVEL, publish.RECORD_LEVEL)):
        execute(all_targets()[name], options)
    for path in (publish.CLIENT_LEVEL, publish.RECORD_LEVEL):
        (row,) = read_csv(tmp_path / path)
        (published,) = (
            each
            for each in read_csv(PUBLISHED / path)
            if each["configuration"] == row["configuration"]
        )
        for key, value in row.items():
            assert value == published[key] or float(value) == pytest.approx(float(published[key]))


def test_the_published_results_have_the_present_settings() -> None:
    options = Options(PUBLISHED)
    for target in all_targets().values():
        assert finished(target, options) is not None, f"{target.name}: run it and publish again"
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    assert size < 3_000_000

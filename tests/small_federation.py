"""Small federations on the digits, run through the public command."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fl_shuffle.cli import main

SMALL = """
run = { rounds = 3, seed = 5 }
data = { source = "digits", clients = 12 }
model = { kind = "linear" }
privacy = { unit = "client", clip_norm = 0.5 }
budgets = { distribution = "uniform", low = 1.0, high = 4.0 }
server = { learning_rate = 0.5 }
"""

Launch = Callable[..., int]
Play = Callable[..., Path]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.fixture
def launch(small: Path, tmp_path: Path) -> Launch:
    """Run the small federation into `tmp_path/NAME` with overrides; returns the exit code."""

    def run(name: str, *settings: str, options: tuple[str, ...] = (), quiet: bool = True) -> int:
        arguments = ["simulate", str(small), "--out", str(tmp_path / name), *options]
        arguments += ["--quiet"] if quiet else []
        for setting in settings:
            arguments += ["--set", setting]
        return main(arguments)

    return run


@pytest.fixture
def play(launch: Launch, tmp_path: Path) -> Play:
    """Run it to its end, as `launch` does; the folder."""

    def run(name: str, *settings: str, **named: Any) -> Path:
        assert launch(name, *settings, **named) == 0
        return tmp_path / name

    return run


def stored(run: Path, select: str) -> list[tuple[Any, ...]]:
    """What a run's ledger answers."""
    with closing(sqlite3.connect(run / "ledger.sqlite")) as database:
        return database.execute(select).fetchall()


def page(run: Path) -> str:
    """The report of a run."""
    assert main(["report", str(run)]) == 0
    return (run / "report.html").read_text(encoding="utf-8")


def model_bytes(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def summary(folder: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return answer


def rows(folder: Path) -> list[dict[str, str]]:
    """The lines of metrics.csv."""
    return list(csv.DictReader((folder / "metrics.csv").open(encoding="utf-8")))


def notes(folder: Path, kind: str) -> list[str]:
    """What the ledger notes of a kind."""
    from fl_shuffle.ledger.reader import RunView

    return [text for _, own, text in RunView(folder).notes if own == kind]

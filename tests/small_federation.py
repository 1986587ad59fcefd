"""Small federations on the digits, run through the public command."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

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


def model_bytes(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def summary(folder: Path) -> dict[str, object]:
    answer: dict[str, object] = json.loads((folder / "summary.json").read_text())
    return answer


def rows(folder: Path) -> list[dict[str, str]]:
    """The lines of metrics.csv."""
    return list(csv.DictReader((folder / "metrics.csv").open(encoding="utf-8")))


def notes(folder: Path, kind: str) -> list[str]:
    """What the ledger notes of a kind."""
    from fl_shuffle.ledger.reader import RunView

    return [text for _, own, text in RunView(folder).notes if own == kind]

"""Imports keep the contracts of pyproject.toml, and one that did not would be told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.repository import ROOT

LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint_imports(*options: str) -> int:
    """The exit code of `lint-imports`, which switches this process's loggers off if it is called
    here."""
    command = [sys.executable, "-c", LINT, "--no-cache", *options]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def test_imports_point_downwards() -> None:
    assert lint_imports() == 0


def test_an_import_that_points_upwards_is_told(tmp_path: Path) -> None:
    rules = (
        "[importlinter]\nroot_package = fl_shuffle\n[importlinter:contract:turned]\nname = turned\n"
    )
    rules += "type = layers\nlayers =\n    fl_shuffle.accounting\n    fl_shuffle.cli\n"
    (tmp_path / "turned.ini").write_text(rules)
    assert lint_imports("--config", str(tmp_path / "turned.ini")) == 1

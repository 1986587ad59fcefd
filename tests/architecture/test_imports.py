"""Imports keep the contracts of pyproject.toml."""

from __future__ import annotations

import subprocess
import sys

from tests.repository import ROOT


def test_imports_point_downwards() -> None:
    # In a process of its own: it switches the loggers off where it is called.
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0

"""The repository's root and its own Python files."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_files() -> list[Path]:
    """What git tracks, or would; all there are, outside a checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    paths = [ROOT / name for name in listed] or [
        path
        for top in ("fl_shuffle", "clients", "server", "benchmarks", "tests")
        for path in (ROOT / top).rglob("*.py")
    ]
    return sorted(path for path in paths if path.is_file())


FILES = python_files()

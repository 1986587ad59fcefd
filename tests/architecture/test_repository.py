"""What the repository offers strangers agrees with itself: versions, what Flower installs, and
imports with their contracts."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fl_shuffle.version import __version__
from tests.repository import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def test_one_version_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"] == __version__
    assert citation["license"] == PROJECT["license"]
    assert f"\n## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_a_run_by_flower_installs_none_of_what_is_asked_for() -> None:
    """`flwr run .` resolves this file with uv: whatever it names is left out."""
    asked = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    names = {canonicalize_name(Requirement(text).name) for each in asked for text in each}
    excluded = PYPROJECT["tool"]["uv"]["exclude-dependencies"]
    assert sorted(excluded) == sorted(names - {"fl-shuffle"})
    # Who installs by `uv pip` gets all of it.
    assert "exclude" not in tomllib.loads((ROOT / "uv.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("script", ["check_versions", "check_flower"])
def test_script_names_tests_that_there_are(script: str) -> None:
    text = (ROOT / "scripts" / script).read_text(encoding="utf-8")
    named = re.findall(r"\btests/[\w/]+(?:\.py)?", text)
    assert named and [name for name in named if not (ROOT / name).exists()] == []


def test_imports_point_downwards() -> None:
    # In a process of its own: it switches the loggers off where it is called.
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0

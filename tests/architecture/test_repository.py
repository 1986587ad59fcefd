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


PRE_COMMIT = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))


def test_remote_hooks_are_pinned_and_ruff_is_that_of_the_constraints() -> None:
    remote = {each["repo"]: each["rev"] for each in PRE_COMMIT["repos"] if each["repo"] != "local"}
    assert remote and all(re.fullmatch(r"v\d+\.\d+\.\d+", rev) for rev in remote.values())
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (ruff,) = re.findall(r"^ruff==(.+)$", constraints, re.MULTILINE)
    assert remote["https://github.com/astral-sh/ruff-pre-commit"] == f"v{ruff}"


def test_hooks_have_what_pre_commit_asks_for() -> None:
    for each in PRE_COMMIT["repos"]:
        for hook in each["hooks"]:
            asked = {"id", "name", "entry", "language"} if each["repo"] == "local" else {"id"}
            assert asked <= set(hook), hook
            for place in re.findall(r"\btests/[\w/.]+", hook.get("entry", "")):
                assert (ROOT / place).exists()


def test_files_are_as_the_hooks_would_leave_them() -> None:
    """No hook changes a file that is committed: trailing blanks, and the end of the file."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("no git repository")
    kept = re.compile(PRE_COMMIT["exclude"])
    wrong = []
    for name in listed.stdout.decode().splitlines():
        path = ROOT / name
        if kept.search(name) or not path.is_file() or path.is_symlink():
            continue
        content = path.read_bytes()
        if b"\0" in content or not content:
            continue
        blanks = re.search(rb"[ \t]+$", content, re.MULTILINE) and path.suffix != ".svg"
        if blanks or not content.endswith(b"\n") or content.endswith(b"\n\n") or b"\r\n" in content:
            wrong.append(name)
    assert wrong == []

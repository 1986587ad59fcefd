"""What the repository offers strangers agrees with itself: workflows, scripts, versions, pins, and
imports with their contracts."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fl_shuffle.version import __version__
from tests.repository import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_there_is_with_no_more_rights_than_it_needs(path: Path) -> None:
    found = read(path)
    assert found["permissions"] == {"contents": "read"}
    steps = [step for job in found["jobs"].values() for step in job["steps"]]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    for step in steps:
        for script in re.findall(r"\bscripts/\w+", step.get("run", "")):
            assert (ROOT / script).is_file(), script
    # Whoever may publish builds nothing, and is named.
    for job in found["jobs"].values():
        if "id-token" in job.get("permissions", {}):
            assert "environment" in job and not any("run" in step for step in job["steps"])


def test_the_workflows_try_every_python_that_is_allowed() -> None:
    (lowest,) = re.findall(r">=3\.(\d+)", PROJECT["requires-python"])
    test = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]
    assert min(test["strategy"]["matrix"]["python"]) == f"3.{lowest}"


def test_one_version_everywhere() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == PROJECT["version"] == __version__
    assert citation["license"] == PROJECT["license"]
    assert f"\n## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_scripts_name_extras_and_tests_that_exist() -> None:
    for name in ("test", "check_versions"):
        text = (ROOT / "scripts" / name).read_text(encoding="utf-8")
        extras = set(re.findall(r"--extra (\w+)", text))
        assert extras <= PROJECT["optional-dependencies"].keys()
        paths = re.findall(r"\btests/[\w/.]*\w", text)
        assert paths and not [path for path in paths if not (ROOT / path).exists()]


def test_no_script_ends_processes_by_their_names() -> None:
    for path in (ROOT / "scripts").iterdir():
        assert not re.search(r"\b(pkill|killall)\b", path.read_text(encoding="utf-8")), path.name


def test_no_text_holds_both_sides_of_a_merge() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]:
        assert not re.search(r"^(<{7}|>{7}) ", path.read_text(encoding="utf-8"), re.MULTILINE), path


def followed(requirement: Requirement, found: set[str]) -> set[str]:
    """Names and extras of all that is installed for it, here; added to `found`."""
    name = canonicalize_name(requirement.name)
    key = f"{name} {sorted(requirement.extras)}"
    if key in found or name == "fl-shuffle":
        return found
    found.add(key)
    try:
        needs = map(Requirement, metadata.requires(name) or [])
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed here")
    for need in needs:
        extras = ["", *requirement.extras]
        if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras):
            followed(need, found)
    return found


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lock was made by Python 3.11")
def test_everything_installed_is_pinned() -> None:
    """What `pip install .[dev,all,docs]` asks for, followed from package to package."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines]
    assert all(str(pin.specifier).startswith("==") for pin in pins)
    extras = PROJECT["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    lists = [extras[name] for name in ("dev", "docs", *sorted(everything.extras))]
    found: set[str] = set()
    for text in (text for each in (PROJECT["dependencies"], *lists) for text in each):
        followed(Requirement(text), found)
    # What a torch built for a GPU brings along is pinned by that torch itself.
    names = {key.split()[0] for key in found if not key.startswith(("nvidia-", "cuda-", "triton"))}
    assert not names - {canonicalize_name(pin.name) for pin in pins}


def test_a_run_by_flower_installs_none_of_what_is_asked_for() -> None:
    """`flwr run .` resolves this file with uv: whatever it names is left out."""
    asked = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    names = {canonicalize_name(Requirement(text).name) for each in asked for text in each}
    excluded = PYPROJECT["tool"]["uv"]["exclude-dependencies"]
    assert sorted(excluded) == sorted(names - {"fl-shuffle"})
    # Who installs by `uv pip` gets all of it.
    assert "exclude" not in tomllib.loads((ROOT / "uv.toml").read_text(encoding="utf-8"))


def test_imports_point_downwards() -> None:
    # In a process of its own: it switches the loggers off where it is called.
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0

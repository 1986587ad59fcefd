"""What the repository offers strangers agrees with itself: workflows, scripts, versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fl_shuffle.version import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
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
    (lowest,) = re.findall(r">=3\.(\d+)", PROJECT["project"]["requires-python"])
    test = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]
    assert min(test["strategy"]["matrix"]["python"]) == f"3.{lowest}"


def test_one_version_everywhere() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == PROJECT["project"]["version"] == __version__
    assert citation["license"] == PROJECT["project"]["license"]
    assert f"\n## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_scripts_name_extras_and_tests_that_exist() -> None:
    for name in ("test", "check_versions"):
        text = (ROOT / "scripts" / name).read_text(encoding="utf-8")
        extras = set(re.findall(r"--extra (\w+)", text))
        assert extras <= PROJECT["project"]["optional-dependencies"].keys()
        paths = re.findall(r"\btests/[\w/.]*\w", text)
        assert paths and not [path for path in paths if not (ROOT / path).exists()]


def test_no_script_ends_processes_by_their_names() -> None:
    for path in (ROOT / "scripts").iterdir():
        assert not re.search(r"\b(pkill|killall)\b", path.read_text(encoding="utf-8")), path.name


def test_no_text_holds_both_sides_of_a_merge() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]:
        assert not re.search(r"^(<{7}|>{7}) ", path.read_text(encoding="utf-8"), re.MULTILINE), path

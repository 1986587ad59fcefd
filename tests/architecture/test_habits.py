"""What the repository offers strangers agrees with itself: workflows, forms, citation, versions."""

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
FORMS = [path for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
         if path.name != "config.yml"]  # fmt: skip


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


def test_the_quick_tests_are_there() -> None:
    named = re.findall(r"\btests/[\w/.]*\w", (ROOT / "scripts" / "test").read_text("utf-8"))
    assert len(named) > 5 and all((ROOT / name).exists() for name in named)


def test_the_workflows_try_every_python_that_is_allowed() -> None:
    (lowest,) = re.findall(r">=3\.(\d+)", PROJECT["project"]["requires-python"])
    test = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]
    assert min(test["strategy"]["matrix"]["python"]) == f"3.{lowest}"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_the_version_and_what_was_done(path: Path) -> None:
    form = read(path)
    assert form["name"] and form["description"]
    fields = {each["id"]: each for each in form["body"] if each["type"] != "markdown"}
    assert "version" in fields
    assert sum(each.get("validations", {}).get("required", False) for each in fields.values()) >= 3


def test_one_version_everywhere() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == PROJECT["project"]["version"] == __version__
    assert citation["license"] == PROJECT["project"]["license"]
    assert f"\n## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_owner_is_named_in_one_place() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), ROOT / "CITATION.cff"]
    assert not [path for path in pages if "github.com/OWNER" in path.read_text(encoding="utf-8")]
    assert all("OWNER" in url for url in PROJECT["project"]["urls"].values()) or not any(
        "OWNER" in url for url in PROJECT["project"]["urls"].values()
    )


def test_check_versions_names_extras_and_tests_that_exist() -> None:
    text = (ROOT / "scripts" / "check_versions").read_text(encoding="utf-8")
    extras = re.findall(r"--extra (\w+)", text)
    assert extras and set(extras) <= PROJECT["project"]["optional-dependencies"].keys()
    paths = re.findall(r"\btests/\S+", text)
    assert paths and not [name for name in paths if not (ROOT / name).exists()]


def test_no_script_ends_processes_by_their_names() -> None:
    for path in (ROOT / "scripts").iterdir():
        assert not re.search(r"\b(pkill|killall)\b", path.read_text(encoding="utf-8")), path.name


def test_no_text_holds_both_sides_of_a_merge() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]:
        assert not re.search(r"^(<{7}|>{7}) ", path.read_text(encoding="utf-8"), re.MULTILINE), path

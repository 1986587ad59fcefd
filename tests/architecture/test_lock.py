"""constraints.txt pins everything that the scripts install."""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


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

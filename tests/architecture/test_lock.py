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


def wanted() -> list[Requirement]:
    """What `pip install .[dev,all,docs]` asks for."""
    extras = PROJECT["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    lists = [extras[name] for name in ("dev", "docs", *sorted(everything.extras))]
    return [Requirement(text) for each in (PROJECT["dependencies"], *lists) for text in each]


def closure() -> set[str]:
    """Names of all that is installed for it, here, followed from package to package."""
    found: set[str] = set()
    waiting, seen = wanted(), set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen or name == "fl-shuffle":
            continue
        seen.add(key)
        found.add(name)
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            pytest.skip(f"{name} is not installed here")
        for text in needs:
            need = Requirement(text)
            extras = ["", *requirement.extras]
            if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(need)
    return found


def pinned() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines]
    return {canonicalize_name(pin.name): pin for pin in pins}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lock was made by Python 3.11")
def test_everything_installed_is_pinned() -> None:
    pins = pinned()
    assert all(str(pin.specifier).startswith("==") for pin in pins.values())
    # What a torch built for a GPU brings along is pinned by that torch itself.
    missing = {name for name in closure() if not name.startswith(("nvidia-", "cuda-", "triton"))}
    assert not missing - pins.keys()


def test_a_run_by_flower_installs_none_of_what_is_asked_for() -> None:
    """`flwr run .` resolves this file with uv: whatever it names is left out."""
    asked = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    names = {canonicalize_name(Requirement(text).name) for each in asked for text in each}
    excluded = PYPROJECT["tool"]["uv"]["exclude-dependencies"]
    assert sorted(excluded) == sorted(names - {"fl-shuffle"})
    # Who installs by `uv pip` gets all of it.
    assert "exclude" not in tomllib.loads((ROOT / "uv.toml").read_text(encoding="utf-8"))

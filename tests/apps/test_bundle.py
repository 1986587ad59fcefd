"""`flwr run .` sends a bundle of this repository: everything that its apps need is in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.apps.programs import OFFLINE, program
from tests.apps.superlink import app_folder
from tests.repository import FILES, ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which(program("flwr")) is None, reason="Flower's programs are not installed"
    ),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle that `flwr build` makes of this repository, unpacked; an environment in it is
    stood for by one module."""
    place = tmp_path_factory.mktemp("bundle")
    app = app_folder(place, "benchmarks", "tests")
    library = app / ".venv" / "lib" / "library.py"
    library.parent.mkdir(parents=True)
    library.touch()
    environment = {**os.environ, **OFFLINE, "FLWR_HOME": str(place / "home")}
    command = [program("flwr"), "build", "--app", str(app)]
    subprocess.run(command, cwd=place, env=environment, check=True, capture_output=True)
    (packed,) = place.glob("*.fab")
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(place / "unpacked")
    return place / "unpacked"


def test_every_module_and_every_data_file_is_in_it(bundle: Path) -> None:
    held = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    modules = {path.relative_to(ROOT).as_posix() for path in FILES}
    needed = {name for name in modules if name.split("/")[0] in ("fl_shuffle", "clients", "server")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shipped = project["tool"]["setuptools"]["package-data"]["fl_shuffle"]
    data = {
        path.relative_to(ROOT).as_posix()
        for pattern in shipped
        for path in (ROOT / "fl_shuffle").glob(pattern)
        if path.name != "py.typed"
    }
    assert "fl_shuffle/data/sources/digits.json" in data and len(needed) > 100
    assert needed | data <= held
    assert not {name for name in held if name.startswith(("tests/", "benchmarks/", ".venv/"))}


def test_flower_installs_nothing_before_it_runs(bundle: Path, tmp_path: Path) -> None:
    """`uv sync` as Flower calls it, and offline: torch and all stay those of whoever runs it."""
    shutil.copy(bundle / "pyproject.toml", tmp_path)
    command = [sys.executable, "-m", "uv", "sync", "--python", sys.executable, "--offline"]
    command += ["--no-install-project", "--no-install-package", "flwr", "--inexact"]
    made = tmp_path / "environment"
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(made)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert made.is_dir() and not list(made.rglob("*.dist-info"))

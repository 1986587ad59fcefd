"""The two pages have one name in a checkout and in a wheel."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import fl_shuffle.builtin_apps
from tests.repository import ROOT


@pytest.mark.parametrize("name", ["clients", "server"])
def test_page_is_the_file_beside_the_package(name: str) -> None:
    page = importlib.import_module(f"fl_shuffle.builtin_apps.{name}.app")
    assert page.__file__ is not None
    assert Path(page.__file__).samefile(ROOT / name / "app.py")
    # Another test may have loaded it anew: the same file under the same name.
    assert getattr(fl_shuffle.builtin_apps, name).app.__spec__.name == page.__name__


@pytest.mark.parametrize("name", ["tests", "benchmarks", "fl_shuffle"])
def test_nothing_else_of_the_checkout_is_a_page(name: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"fl_shuffle.builtin_apps.{name}")


def test_earlier_name_of_the_package_is_the_same_module() -> None:
    """A Flower app of version 0.2 or 0.3 names it in its pyproject.toml."""
    code = (
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always')\n"
        "    from fl_shuffle.pages.server.app import app as server\n"
        "    import fl_shuffle.pages.clients.app as clients\n"
        "from fl_shuffle.builtin_apps.server.app import app\n"
        "from fl_shuffle.builtin_apps.clients import app as client\n"
        "print(server is app, clients is client)\n"
        "print(*(each.message for each in told if 'fl_shuffle.pages' in str(each.message)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    same, told = found.stdout.splitlines()
    assert same == "True True"
    assert told == (
        "fl_shuffle.pages is now called fl_shuffle.builtin_apps; the old name goes in 0.4"
    )


def test_page_of_a_wheel_is_the_one_in_the_package(tmp_path: Path) -> None:
    """A wheel has the folders in the package; what lies beside the package is not its own."""
    pages = tmp_path / "fl_shuffle" / "builtin_apps"
    source = (ROOT / "fl_shuffle" / "builtin_apps" / "__init__.py").read_text(encoding="utf-8")
    for folder, where in ((pages, "wheel"), (tmp_path, "beside")):
        for name in ("clients", "server"):
            (folder / name).mkdir(parents=True)
            (folder / name / "__init__.py").write_text("")
            (folder / name / "app.py").write_text(f"app = {where!r}\n")
    (pages / "__init__.py").write_text(source)
    (pages.parent / "__init__.py").write_text("")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from fl_shuffle.builtin_apps.server.app import app as server\n"
        "from fl_shuffle.builtin_apps.clients.app import app as clients\n"
        "print(server, clients)"
    )
    ask = [sys.executable, "-I", "-c", code]
    found = subprocess.run(ask, check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["wheel", "wheel"]

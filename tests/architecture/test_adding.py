"""Adding a bound touches one new module and the registry: done as docs/architecture.md says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.drawing import PAGE, ROOT

QUESTION = ("--randomizer=krr", "--k=4", "--epsilon0=1.5", "--clients=100", "--delta=1e-6")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the page's example in it."""
    place = tmp_path_factory.mktemp("house")
    compiled = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "fl_shuffle", place / "fl_shuffle", ignore=compiled)
    module, lines = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    queries = place / "fl_shuffle" / "accounting" / "queries"
    (queries / "local_method.py").write_text(module, encoding="utf-8")
    imported, line = lines.strip().split("\n\n")
    registry = (queries / "methods.py").read_text(encoding="utf-8")
    for place_of, text in (
        ("from fl_shuffle.errors import", f"{imported}\nfrom fl_shuffle.errors import"),
        ("= _registry(\n", f"= _registry(\n    {line},\n"),
    ):
        assert registry.count(place_of) == 1
        registry = registry.replace(place_of, text)
    (queries / "methods.py").write_text(registry, encoding="utf-8")
    return place


def run(house: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from fl_shuffle.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=house,
        env={"PYTHONPATH": str(house)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_new_bound_is_asked_listed_and_refused_like_the_others(house: Path) -> None:
    asked = run(house, "bound", "--method", "local", "--json", *QUESTION)
    assert asked.returncode == 0, asked.stderr
    answer = json.loads(asked.stdout)
    assert (answer["epsilon"], answer["status"]) == (1.5, "proven")

    compared = run(house, "compare", "--json", *QUESTION)
    assert compared.returncode == 0, compared.stderr
    assert "local" in compared.stdout

    refused = run(house, "bound", "--method", "local", "--delta0", "1e-5", *QUESTION)
    assert refused.returncode == 2 and "stated for pure local budgets" in refused.stderr

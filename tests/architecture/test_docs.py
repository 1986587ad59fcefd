"""Files and names that the documents mention exist."""

from __future__ import annotations

import re

from tests.repository import FILES, ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "configs").glob("*.md")]
)
FILE = re.compile(r"[\w./-]*\w\.py\b")
SCRIPT = re.compile(r"\bscripts/(\w+)")
PATHS = ["/" + str(path.relative_to(ROOT)) for path in FILES]


def missing_files(text: str) -> list[str]:
    """Names like `engine/fourier.py` that are the end of no file's path."""
    return [
        name
        for name in dict.fromkeys(FILE.findall(text))
        if not any(path.endswith("/" + name.removeprefix("../")) for path in PATHS)
    ]


def test_named_files_and_scripts_exist() -> None:
    assert missing_files("`engine/fourier.py`, `engine/spectral.py`") == ["engine/spectral.py"]
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not {n for n in SCRIPT.findall(text) if not (ROOT / "scripts" / n).is_file()}, page
        if page.name == "CHANGELOG.md":  # it also speaks of what is gone
            continue
        assert missing_files(text) == [], page


def unknown_names(text: str) -> list[str]:
    """Names in backticks that the package has not: behind a file, as in `engine/fourier.py`
    (`trapezoid`), those that are not defined there, of others those that are no word anywhere."""
    package = [path for path in FILES if path.is_relative_to(ROOT / "fl_shuffle")]
    sources = {str(path): path.read_text("utf-8") for path in package}
    words = set(re.findall(r"\w+", "\n".join(sources.values())))
    asked = re.findall(r"`([A-Za-z_][\w.]*\w)`", text)
    found = [name for name in asked if name.rpartition(".")[2] not in words | {"py", "json"}]
    for file, names in re.findall(r"`([\w/]+\.py)` \((`[^)]*)", text):
        there = "\n".join(sources[path] for path in sources if path.endswith(f"/{file}"))
        defined = re.findall(r"(?:def|class) (\w+)", there)
        found += [name for name in re.findall(r"`(\w+)`", names) if name not in defined]
    return found


def test_proofs_name_the_function_of_each_step_and_each_bound_its_place() -> None:
    proofs = (ROOT / "docs" / "proofs.md").read_text("utf-8")
    assert unknown_names(proofs) == []
    wrong = "`RoundType.lessned`, `engine/fourier.py` (`trapezoid`, `Cover`)"
    assert unknown_names(wrong) == ["RoundType.lessned", "Cover"]
    sections = dict(re.findall(r"^## (\d+)\.(.*?)(?=^## |\Z)", proofs, re.MULTILINE | re.DOTALL))
    modules = (ROOT / "fl_shuffle" / "accounting" / "bounds").rglob("*.py")
    for path in sorted(modules):
        # Of a package, of what is asked, and of what is only published nothing is proven.
        if path.name in ("__init__.py", "personal_budgets.py", "gspa.py"):
            continue
        place = re.search(r"docs/proofs\.md,\s+sections? ([\d, andto]+)", path.read_text("utf-8"))
        assert place is not None, path
        numbers = re.findall(r"\d+", place.group(1))
        assert any(path.name in sections[number] for number in numbers), path

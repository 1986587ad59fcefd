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


def unknown_names(text: str, sources: str) -> list[str]:
    """Names in backticks, like `Cover` or `RoundType.lessened`, that no source has as a word."""
    names = {name.rpartition(".")[2] for name in re.findall(r"`([A-Za-z_][\w.]*\w)`", text)}
    known = set(re.findall(r"\w+", sources))
    return sorted(name for name in names - {"py", "json"} if name not in known)


def test_what_the_proofs_name_is_in_the_package() -> None:
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "fl_shuffle").rglob("*.py"))
    assert unknown_names((ROOT / "docs" / "proofs.md").read_text("utf-8"), sources) == []
    assert unknown_names("`Cover`, `RoundType.lessned`", sources) == ["lessned"]


def undefined_names(text: str) -> list[str]:
    """Names in brackets behind a file, as `engine/fourier.py` (`trapezoid`), not defined there."""
    found = []
    for file, names in re.findall(r"`([\w/]+\.py)` \((`[^)]*)", text):
        sources = [path.read_text("utf-8") for path in FILES if str(path).endswith("/" + file)]
        known = re.findall(r"(?:def|class) (\w+)", "\n".join(sources))
        found += [name for name in re.findall(r"`(\w+)`", names) if name not in known]
    return found


def test_proofs_name_the_function_of_each_step_and_each_bound_its_place() -> None:
    proofs = (ROOT / "docs" / "proofs.md").read_text("utf-8")
    assert undefined_names(proofs) == []
    assert undefined_names("`engine/fourier.py` (`trapezoid`, `trapeze`)") == ["trapeze"]
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

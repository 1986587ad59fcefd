"""The files and commands of the how-to pages, written down and run as they stand."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from fl_shuffle.cli import main
from tests.architecture.test_limits import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# file: (\S+)\n")


def played(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Write the page's files into the folder and run its commands there; what each printed."""
    printed = []
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        named = NAMED.match(text)
        if named:
            name = named[1] + (".py" if language == "python" else "")
            (folder / name).parent.mkdir(exist_ok=True)
            body = text[named.end() :] if language == "csv" else text
            (folder / name).write_text(body, encoding="utf-8")
        elif language == "sh":
            for line in text.splitlines():
                program, *arguments = shlex.split(line)
                assert program == "fl-shuffle"
                assert main(arguments) == 0, capsys.readouterr().err
                printed.append(capsys.readouterr().out)
    return printed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_own_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = played(ROOT / "docs" / "own-data.md", folder, capsys)
    assert len(printed) == 4 and all("privacy: epsilon <= " in text for text in printed)


def test_own_app(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated, ledger, report = played(ROOT / "docs" / "own-app.md", folder, capsys)
    assert "test accuracy" in simulated and "17" in ledger and report
    assert (folder / "run" / "report.html").is_file()

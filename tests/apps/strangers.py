"""Apps written for Flower's own strategies (`strangers.txt`), and what of them changes."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from pathlib import Path

import pytest

from fl_shuffle.cli import main

SOURCE = Path(__file__).with_name("strangers.txt")
BLOCK = re.compile(r"^~~~~\w+\n# file: (\S+)\n(.*?)^~~~~$", re.MULTILINE | re.DOTALL)
CHANGES = re.compile(r"^~~~~changes ?(\w*)\n(.*?)^~~~~$", re.MULTILINE | re.DOTALL)
HUNK = re.compile(r"^([^-+\n].*)$|((?:^-.*\n)+)((?:^\+.*\n)+)", re.MULTILINE)

APPS = ("torch_app", "numpy_app")
CLIENTS, ROUNDS = 16, 3
SETTINGS = """
[run]
rounds = 3
[data]
clients = 16
records = 20
[app]
server = "{app}.server_app:app"
client = "{app}.client_app:app"
"""
"""The new file beside the app: what of the run is public, and what it may cost."""
PRIVACY = {
    "updates": '[privacy]\nunit = "client"\nclip_norm = 1.0\nrelease = "sum"\n'
    'personalization = "clipping"\n[budgets]\ndistribution = "uniform"\nlow = 20.0\nhigh = 40.0\n',
    "records": '[privacy]\nunit = "record"\nclip_norm = 0.5\n[budgets]\nepsilon = 2.0\n',
    "declared": '[privacy]\nrandomizer = "declared"\ndeclared_sigma = 3.0\n',
}
"""What is protected: updates, gradients of single records, or nothing but by the app itself."""


def written(app: str, place: Path, kind: str = "updates", *, changed: bool = True) -> Path:
    """The app's folder with its configuration, or as its author left it."""
    files = _files(app)
    if changed:
        files = _changed(_changed(files), kind)
        files[f"{app}/shuffle.toml"] = SETTINGS.format(app=app) + PRIVACY[kind]
    for name, text in {**files, f"{app}/{app}/__init__.py": ""}.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return place / app


def edit(path: Path, *changes: tuple[str, str]) -> None:
    """Replace texts that stand there once."""
    text = path.read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)


def changed_lines(app: str) -> int:
    """How many lines of the app's own files are changed, added or removed."""
    before, count = _files(app), 0
    for name, text in _changed(before).items():
        match = SequenceMatcher(None, before[name].splitlines(), text.splitlines(), autojunk=False)
        for kind, a, b, c, d in match.get_opcodes():
            count += max(b - a, d - c) if kind != "equal" else 0
    return count


def _files(app: str) -> dict[str, str]:
    found = BLOCK.findall(SOURCE.read_text(encoding="utf-8"))
    return {name: text for name, text in found if name.startswith(f"{app}/")}


def _changed(files: dict[str, str], kind: str = "") -> dict[str, str]:
    made, name = dict(files), ""
    for of, block in CHANGES.findall(SOURCE.read_text(encoding="utf-8")):
        for heading, old, new in HUNK.findall(block) if of == kind else ():
            name = heading or name
            if not heading and name in made:
                gone, come = (re.sub("^.", "", text, flags=re.MULTILINE) for text in (old, new))
                assert made[name].count(gone) == 1, (name, gone)
                made[name] = made[name].replace(gone, come)
    return made


def simulate(*settings: str, out: str = "run", options: tuple[str, ...] = ()) -> int:
    """Play the app in the current folder; the exit code."""
    arguments = [part for setting in settings for part in ("--set", setting)]
    return main(["simulate", "shuffle.toml", "--out", out, *options, *arguments])


def error_line(capture: pytest.CaptureFixture[str]) -> str:
    """The one error line since somebody looked."""
    lines = capture.readouterr().err.splitlines()
    (line,) = [line for line in lines if line.startswith("fl-shuffle: error: ")]
    return line.removeprefix("fl-shuffle: error: ")

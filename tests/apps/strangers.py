"""Apps written for Flower's own strategies (`strangers.txt`), and what of them changes."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from pathlib import Path

SOURCE = Path(__file__).with_name("strangers.txt")
BLOCK = re.compile(r"^~~~~\w+\n# file: (\S+)\n(.*?)^~~~~$", re.MULTILINE | re.DOTALL)
CHANGES = re.compile(r"^~~~~changes\n(.*?)^~~~~$", re.MULTILINE | re.DOTALL)
APPS = ("quickstart_pytorch", "quickstart_sklearn", "fl_tabular", "opacus_fl", "advanced_pytorch")

SETTINGS = """
[run]
rounds = 3
[data]
clients = 16
[privacy]
unit = "client"
clip_norm = 1.0
release = "sum"
personalization = "clipping"
[budgets]
distribution = "uniform"
low = 20.0
high = 40.0
[app]
server = "{package}.server_app:app"
client = "{package}.client_app:app"
"""
"""The new file beside the app: what of the run is public, and what it may cost."""


def written(app: str, place: Path, *, changed: bool) -> Path:
    """The app's folder as its author left it, or changed, with its configuration."""
    files = _changed(_files(app)) if changed else _files(app)
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    folder = place / app
    (package,) = (path.parent for path in folder.rglob("task.py"))
    (package / "__init__.py").touch()
    if changed:
        text = SETTINGS.format(package=package.name)
        (folder / "shuffle.toml").write_text(text, encoding="utf-8")
    return folder


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


def _changed(files: dict[str, str]) -> dict[str, str]:
    made, name = dict(files), ""
    for block in CHANGES.findall(SOURCE.read_text(encoding="utf-8")):
        hunks = re.findall(r"^([^-+\n].*)$|((?:^-.*\n)+)((?:^\+.*\n)+)", block, re.MULTILINE)
        for heading, old, new in hunks:
            name = heading or name
            if heading or name not in made:
                continue
            gone, come = (re.sub("^.", "", text, flags=re.MULTILINE) for text in (old, new))
            assert made[name].count(gone) == 1, (name, gone)
            made[name] = made[name].replace(gone, come)
    return made

"""Apps written for Flower's own strategies (`strangers.txt`), and what of them changes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("strangers.txt").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^~~~~\w+\n# file: (\S+)\n(.*?)^~~~~$", SOURCE, re.M | re.S))
PATCHES = dict(re.findall(r"^~~~~patch (\w+)\n(.*?)^~~~~$", SOURCE, re.M | re.S))

CLIENTS, ROUNDS = 16, 2
SETTINGS = """
[run]
rounds = 2
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
EVERY_APP = [("torch_app", kind) for kind in PRIVACY] + [("numpy_app", "updates")]


def written(app: str, place: Path, kind: str = "updates", *, changed: bool = True) -> Path:
    """The app's folder with its configuration, or as its author left it."""
    files = {name: text for name, text in FILES.items() if name.startswith(app)}
    files[f"{app}/{app}/__init__.py"] = ""
    if changed:
        files[f"{app}/shuffle.toml"] = SETTINGS.format(app=app) + PRIVACY[kind]
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for patch in (PATCHES[name] for name in (app, kind) if changed and name in PATCHES):
        command = ["git", "apply", "--unidiff-zero", "-"]
        subprocess.run(command, cwd=place, input=patch, text=True, check=True)
    return place / app


def edit(changes: dict[str, str]) -> None:
    """Replace texts that stand once in the app in the current folder."""
    for old, new in changes.items():
        texts = {path: path.read_text() for path in Path().glob("**/*.[pt]*")}
        (path,) = (path for path, text in texts.items() if text.count(old))
        assert texts[path].count(old) == 1, old
        path.write_text(texts[path].replace(old, new))

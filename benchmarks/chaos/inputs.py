"""What a user can get wrong on the command line."""

from __future__ import annotations

from pathlib import Path

from benchmarks.chaos.children import command
from benchmarks.chaos.tally import Tally


def mistakes(folder: Path) -> Tally:
    """What a user can get wrong on the command line: one line, exit code 2."""
    folder.mkdir()
    files = {
        "deep.toml": "x = " + "[" * 50_000,
        "long.toml": "[run]\nseed = " + "9" * 5000,
        "binary.toml": "\0\1\2",
        "budgets.csv": "client_id,epsilon,delta\n" + "9" * 5000 + ",1,1\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "folder.toml").mkdir()
    at = {name: str(folder / name) for name in (*files, "folder.toml", "none.toml", "run")}
    new = ["--quiet", "--out", at["run"], "--rounds", "1"]
    tries: list[list[str]] = [
        *(["simulate", at[name], *new] for name in at if name.endswith(".toml")),
        ["simulate", "/dev/zero", *new],
        ["simulate", "--set", "run.seed=" + "9" * 5000, *new],
        ["simulate", "--set", "run.seed=" + "[" * 50_000, *new],
        ["simulate", "--set", "run", *new],
        ["simulate", "--budgets", at["budgets.csv"], *new],
        ["simulate", "--budgets", "/dev/zero", *new],
        ["simulate", "--budgets", str(folder), *new],
        ["simulate", "--quiet", "--out", "/proc/x", "--rounds", "1"],
        ["simulate", "--quiet", "--out", "/dev/null", "--rounds", "1"],
        ["simulate", "--quiet", "--set", "run.out=/proc", "--rounds", "1"],
        ["simulate", "--resume", "/proc"],
        ["simulate", "--resume", str(folder)],
        ["simulate", "--set", "app.server=os:getcwd", *new],
        ["simulate", "--set", "app.client=os:getcwd", *new],
        ["simulate", "--set", "app.client=no.such:app", *new],
        ["simulate", "--set", "data.source=os:getcwd", *new],
        ["simulate", "--set", "model.kind=os:getcwd", *new],
        ["report", "/proc"],
        ["report", str(folder)],
        ["bound", "--matrix", "/dev/zero", "--clients", "9", "--delta", "1e-6"],
    ]
    tally = Tally("users' mistakes")
    for arguments in tries:
        ended = command(arguments, folder / "said")
        problem = tally.said(ended.said)
        if ended.code != 2 or len(ended.said.strip().splitlines()) != 1:
            problem = problem or f"exit code {ended.code}: {ended.said[-300:]!r}"
        tally.add(" ".join(arguments)[:80], problem=problem)
    return tally

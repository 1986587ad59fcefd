"""The results page: one Markdown file made from the entries of the targets, nothing else."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.reproduction.core import ENTRY, write_atomically


def write_page(out: Path, order: Sequence[str], *, whole: bool = True) -> Path:
    """Write OUT/README.md from every entry under OUT; targets in `order`, others after them.

    Not `whole`: the list alone, to which the site adds the sections when it is built.
    """
    entries = {path.parent.name: json.loads(path.read_text()) for path in out.glob(f"*/{ENTRY}")}
    names = [name for name in order if name in entries]
    names += sorted(set(entries) - set(names))
    path = out / "README.md"
    shown = [entries[name] for name in names]
    write_atomically(path, page(shown) + (sections(shown) if whole else ""))
    return path


def page(entries: Sequence[dict[str, Any]]) -> str:
    """The list of all targets."""
    total = sum(entry["seconds"] for entry in entries)
    lines = [
        "# The papers, reproduced and put right",
        "",
        "Made by `scripts/reproduce` from the entries beside it; do not edit. "
        f"{len(entries)} targets, {_duration(total)} in all. What each paper claims, what "
        "came out, and what holds: on the site's page, or `entry.json` of each folder.",
    ]
    for paper, own in itertools.groupby(entries, key=lambda entry: entry["paper"]):
        lines += ["", f"**{paper}**", ""]
        for entry in own:
            shown = f"{entry['name']}/{(entry['figures'] + entry['tables'])[0]}"
            time = _duration(entry["seconds"])
            lines.append(f"- [{entry['name']}]({shown}) {entry['title']}; {time}")
    return "\n".join(lines) + "\n"


def sections(entries: Sequence[dict[str, Any]]) -> str:
    """One section a target, with claims, figures and data."""
    return "\n".join(line for entry in entries for line in _section(entry)) + "\n"


def _section(entry: dict[str, Any]) -> list[str]:
    mode = " Few points only (`--fast`)." if entry["fast"] else ""
    lines = [
        "",
        f"## {entry['name']}",
        "",
        f"**{entry['title']}** ({entry['paper']}). Took {_duration(entry['seconds'])}.{mode}",
        "",
        "| the paper's claim | our reproduction | the honest version |",
        "|---|---|---|",
        f"| {' | '.join(_cell(entry[key]) for key in ('claim', 'reproduction', 'honest'))} |",
    ]
    for name in entry["figures"]:
        lines += ["", f"![{entry['title']}]({entry['name']}/{name})"]
    data = ", ".join(f"[{name}]({entry['name']}/{name})" for name in entry["tables"])
    settings = ", ".join(f"{key} = {_plain(value)}" for key, value in entry["parameters"].items())
    return [*lines, "", f"Data: {data}. Settings: {settings}."]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min"

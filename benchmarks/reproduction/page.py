"""The results page: one Markdown file made from the entries of the targets, nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.reproduction.core import ENTRY, JINJA


def write_page(out: Path, order: Sequence[str], *, whole: bool = True) -> Path:
    """Write OUT/README.md from every entry under OUT; targets in `order`, others after them.

    Not `whole`: the list alone, to which the site adds the sections when it is built.
    """
    entries = {path.parent.name: json.loads(path.read_text()) for path in out.glob(f"*/{ENTRY}")}
    names = [*(name for name in order if name in entries), *sorted(set(entries) - set(order))]
    path = out / "README.md"
    shown = [entries[name] for name in names]
    path.write_text(page(shown) + (sections(shown) if whole else ""))
    return path


def page(entries: Sequence[dict[str, Any]]) -> str:
    """The list of all targets."""
    return JINJA.get_template("list.md.j2").render(entries=entries)


def sections(entries: Sequence[dict[str, Any]]) -> str:
    """One section a target, with claims, figures and data."""
    return JINJA.get_template("sections.md.j2").render(entries=entries)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


JINJA.filters |= {"duration": _duration, "plain": _plain}

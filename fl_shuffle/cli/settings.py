"""`fl-shuffle settings`: what a configuration can say."""

from __future__ import annotations

import argparse

from fl_shuffle import declare
from fl_shuffle.configuration.reading import SECTIONS
from fl_shuffle.run_words import say

SUMMARY = (
    "Every setting of a configuration, with its default, what it allows and what it means; "
    "those of one section; or one."
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="a section, as run, or a setting, as run.rounds"
    )


def run(arguments: argparse.Namespace) -> int:
    say(*_lines(arguments.name))
    return 0


def _lines(name: str | None) -> list[str]:
    known = {
        f"{section}.{key}": each
        for section, fields in SECTIONS.items()
        for key, each in declare.settings_of(fields).items()
    }
    wanted = [key for key in known if name in (None, key, *key.split("."))]
    if not wanted:
        declare.require_known("setting", str(name), [*SECTIONS, *known])
    lines = []
    for key in wanted:
        each = known[key]
        flag = f"   {each.flag}" if each.flag else ""
        lines.append(f"{key} = {declare.as_toml(each.default)}{flag}")
        lines += [f"    {text}" for text in (each.help, each.range, each.condition) if text]
    return lines

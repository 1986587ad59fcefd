"""`fl-shuffle settings`: what a configuration can say."""

from __future__ import annotations

from argparse import Namespace

from fl_shuffle import settings_schema
from fl_shuffle.configuration.reading import SECTIONS, SETTINGS
from fl_shuffle.runs.console_messages import say


def run(arguments: Namespace) -> int:
    wanted = [key for key in SETTINGS if arguments.name in (None, key, *key.split("."))]
    if not wanted:
        settings_schema.require_known("setting", arguments.name, [*SECTIONS, *SETTINGS])
    for key in wanted:
        (section, _, name), each = key.partition("."), SETTINGS[key]
        words = settings_schema.words_of(SECTIONS[section], name)
        shown = f"{key} = {settings_schema.as_toml(each.default)}   {each.flag}"
        say(shown.rstrip(), *(f"    {text}" for text in words))
    return 0

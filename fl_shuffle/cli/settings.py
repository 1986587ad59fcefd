"""`fl-shuffle settings`: what a configuration can say."""

from __future__ import annotations

from argparse import Namespace

from fl_shuffle import declare
from fl_shuffle.configuration.reading import SECTIONS, SETTINGS
from fl_shuffle.run_words import say


def run(arguments: Namespace) -> int:
    wanted = [key for key in SETTINGS if arguments.name in (None, key, *key.split("."))]
    if not wanted:
        declare.require_known("setting", arguments.name, [*SECTIONS, *SETTINGS])
    for key in wanted:
        (section, _, name), each = key.partition("."), SETTINGS[key]
        words = declare.words_of(SECTIONS[section], name)
        shown = f"{key} = {declare.as_toml(each.default)}   {each.flag}"
        say(shown.rstrip(), *(f"    {text}" for text in words))
    return 0

"""Every setting of a configuration, with its default, what it allows and what it means; those of
one section; or one."""

from __future__ import annotations

import argparse

from fl_shuffle import declare
from fl_shuffle.cli.options import option
from fl_shuffle.configuration.reading import SECTIONS, SETTINGS
from fl_shuffle.run_words import say


def configure(parser: argparse.ArgumentParser) -> None:
    option(parser, "name", "NAME", "a section, as run, or a setting, as run.rounds", nargs="?")


def run(arguments: argparse.Namespace) -> int:
    wanted = [key for key in SETTINGS if arguments.name in (None, key, *key.split("."))]
    if not wanted:
        declare.require_known("setting", arguments.name, [*SECTIONS, *SETTINGS])
    for key in wanted:
        (section, _, name), each = key.partition("."), SETTINGS[key]
        words = declare.words_of(SECTIONS[section], name)
        shown = f"{key} = {declare.as_toml(each.default)}   {each.flag}"
        say(shown.rstrip(), *(f"    {text}" for text in words))
    return 0

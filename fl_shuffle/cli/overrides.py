"""`--set SECTION.KEY=VALUE`, and the short options of single settings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from fl_shuffle import declare
from fl_shuffle.configuration.reading import SECTIONS
from fl_shuffle.errors import ConfigError


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="override one setting of the configuration; may be repeated",
    )


def add_short_options(
    parser: argparse.ArgumentParser, sections: Iterable[str] = tuple(SECTIONS)
) -> None:
    """Those of the settings of these sections that declare one."""
    for name in sections:
        declare.add_options(parser, SECTIONS[name], short=True)


def short_options(
    arguments: argparse.Namespace, sections: Iterable[str] = tuple(SECTIONS)
) -> list[str]:
    """The short options as the `section.key=value` they stand for; none may be set twice."""
    given = {}
    for name in sections:
        for each in declare.settings_of(SECTIONS[name]).values():
            value = getattr(arguments, each.flag[2:], None) if each.flag else None
            if value is not None:
                # A path is the caller's: a run's folder must not depend on where it was started.
                given[f"{name}.{each.name}"] = (
                    each.flag,
                    (str(Path(value).resolve()) if each.metavar in ("DIR", "FILE.csv") else value),
                )
    if "budgets.file" in given:
        given["budgets.distribution"] = "--budgets", "file"
    for setting in arguments.set:
        key = setting.partition("=")[0].strip()
        if key in given:
            raise ConfigError(f"--set {setting}: {given[key][0]} says the same; drop one of them")
    return [f"{key}={json.dumps(value)}" for key, (_, value) in given.items()]

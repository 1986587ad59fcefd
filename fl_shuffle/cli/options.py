"""What commands share: settings as options have them, and answers as lines or JSON."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fl_shuffle.configuration.reading import SETTINGS
from fl_shuffle.errors import ConfigError
from fl_shuffle.runs.console_messages import say
from fl_shuffle.settings_schema import json_ready

CommandAnswer = tuple[Any, list[str]]
"""An answer as JSON has it, and as lines."""


def show(answer: CommandAnswer, *, as_json: bool) -> None:
    """Print an answer: exactly one JSON object, or lines."""
    body, lines = answer
    if as_json:
        print(json.dumps(json_ready(body), allow_nan=False), flush=True)
    else:
        say(*lines)


def overrides(arguments: Namespace, sections: Collection[str]) -> list[str]:
    """Return every `section.key=value`: as it was set, or what a short option stands for; none may
    be set twice."""
    given = {}
    for key, each in SETTINGS.items():
        wanted = each.flag and key.partition(".")[0] in sections
        value = getattr(arguments, each.flag[2:], None) if wanted else None
        if value is not None:
            # A path is the caller's: a run's folder must not depend on where it was started.
            is_path = each.metavar in ("DIR", "FILE.csv")
            given[key] = each.flag, str(Path(value).resolve()) if is_path else value
    if "budgets.file" in given:
        given["budgets.distribution"] = "--budgets", "file"
    for setting in arguments.set:
        key = setting.partition("=")[0].strip()
        if key in given:
            raise ConfigError(
                f"--set {setting}: {given[key][0]} sets the same setting; leave one of them out"
            )
    return [*arguments.set, *(f"{key}={json.dumps(value)}" for key, (_, value) in given.items())]

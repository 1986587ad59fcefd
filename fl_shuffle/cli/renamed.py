"""Commands and flags of the last release, for one more: what they are called now."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fl_shuffle.errors import ConfigError

FLAGS = {("simulate", "--tensorboard"): ["--track", "tensorboard"]}
GONE = {"estimate": "estimate is no command any more: fl_shuffle.estimators has it in Python"}


def renamed(words: Sequence[str]) -> tuple[list[str], str]:
    """The words in today's names, and a note where they were others (else an empty one).

    Raises `ConfigError` for what nothing replaces on the command line.
    """
    if not words:
        return [], ""
    command, rest = words[0], list(words[1:])
    if command in GONE:
        raise ConfigError(GONE[command])
    if command == "compare":
        found = ["bound", *rest, "--all"]
    elif command == "export":
        found = ["ledger", *rest]
        if rest and not any(word.partition("=")[0] == "--out" for word in rest):
            found += ["--out", f"{rest[0]}/export"]
    elif command == "plan":
        found = _plan(rest)
    else:
        found = [command]
        for word in rest:
            found += FLAGS.get((command, word), [word])
    changed = found != list(words)
    return found, f"note: this is now fl-shuffle {' '.join(found)}" if changed else ""


def _plan(rest: list[str]) -> list[str]:
    """What a configuration costs, or the noise for a target: both are questions of `bound`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--clients", "--epsilon", "--unit", "--randomizer", "--clip", "--classes"):
        parser.add_argument(name)
    parser.add_argument("--levels")
    parser.add_argument("--time", action="store_true")
    given, others = parser.parse_known_args(rest)
    if given.time:
        return ["simulate", *others, "--dry-run"]
    if given.levels is not None:
        return ["bound", *others, "--grid", f"budgets.levels={given.levels}"]
    if given.clip is not None or given.classes is not None:
        raise ConfigError(
            "plan --clip and --classes are gone: sigma is in clip norms (multiply it by yours); "
            "personal clips are a configuration's: fl-shuffle bound CONFIG"
        )
    if given.clients is None and given.epsilon is None:
        return ["bound", *others]
    target = []
    for name in ("clients", "epsilon"):
        value = getattr(given, name)
        target += [f"--{name}", value] if value is not None else []
    kind = ["--randomizer", given.randomizer or "gaussian", "--unit", given.unit or "client"]
    return ["bound", *kind, *target, *others, "--solve-for", "sigma"]

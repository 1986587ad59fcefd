"""Commands and flags of the last release, for one more: what they are called now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fl_shuffle.errors import ConfigError

GONE = {
    "estimate": "estimate is no longer a command: use fl_shuffle.estimators in Python",
    "plan": "what a configuration costs is now fl-shuffle bound CONFIG, a grid of it --grid "
    "budgets.levels=5,10, the time it takes fl-shuffle simulate CONFIG --dry-run, and the noise "
    "for a target fl-shuffle bound --randomizer gaussian --clients N --epsilon X --delta Y "
    "--solve-for sigma",
}

FLAGS = {
    "bound": {"--why": ["--explain"]},
    "ledger": {"--recount": ["--recompute"]},
    "certify": {"--short": ["--proof", "convex-order"]},
    "shuffler": {"--passes": ["--credentials"], "--largest-report": ["--max-report-bytes"]},
}
"""Command -> options of version 0.2 -> what is written today."""
VALUES = {
    ("bound", "--method"): {"proven": "vector"},
    ("certify", "--column"): {"proven": "shuffled"},
}
"""(command, option) -> values of version 0.2 -> today's."""


def renamed(words: Sequence[str]) -> tuple[list[str], str]:
    """Return the words in today's names, and a note where they were others (else an empty one).

    Raises `ConfigError`, naming what replaces it, for what has no other name alone.
    """
    command, rest, found = words[0], list(words[1:]), list(words)
    if command in GONE:
        raise ConfigError(GONE[command])
    if command == "compare":
        found = ["bound", *rest, "--all"]
    elif command == "export":
        found = ["ledger", *rest]
        if rest and not any(word.partition("=")[0] == "--out" for word in rest):
            found += ["--out", f"{rest[0]}/export"]
    elif command == "simulate" and "--tensorboard" in rest:
        at = found.index("--tensorboard")
        found[at : at + 1] = ["--track", "tensorboard"]
    else:
        found = [command, *_todays_options(command, rest)]
    changed = found != list(words)
    return found, f"note: this is now fl-shuffle {' '.join(found)}" if changed else ""


def _todays_options(command: str, words: Sequence[str]) -> list[str]:
    """Return the words after a command, with its options and their values by the names of today."""
    found: list[str] = []
    before = ""
    for word in words:
        option, sign, value = word.partition("=")
        if option in FLAGS.get(command, {}):
            first, *more = FLAGS[command][option]
            found += [first + sign + value, *more]
        elif (known := VALUES.get((command, option))) and sign:
            found.append(f"{option}={_todays_values(known, value)}")
        elif known := VALUES.get((command, before)):
            found.append(_todays_values(known, word))
        else:
            found.append(word)
        before = word
    return found


def _todays_values(known: Mapping[str, str], given: str) -> str:
    return ",".join(known.get(each.strip(), each) for each in given.split(","))

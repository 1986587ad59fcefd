"""What a page shows as the output of a block, beside what the block prints.

Words must be the same, and in the same order of lines. Numbers may differ in their last digits
between machines: a model's accuracy by a test record or two, everything else by 0.2%. Times,
dates, and names of runs that are made of them change from run to run. A line of three dots stands
for any lines.
"""

from __future__ import annotations

import re

CHANGES = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.+]+|\b\d{8}-\d{6}\b|\b\d+(?:\.\d+)? (?:s|min|MB)\b|\(\d+:\d\d\)"
)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")
OF_MODELS, OF_ACCOUNTS = 1e-2, 2e-3
"""Relative differences that are allowed where accuracies are shown, and elsewhere."""


def missing_lines(shown: str, printed: str) -> list[str]:
    """Return the lines of `shown` that `printed` does not have, in that order."""
    within = OF_MODELS if "accuracy" in shown else OF_ACCOUNTS
    waiting, missing = printed.splitlines(), []
    for line in filter(str.strip, shown.splitlines()):
        if line.strip() == "...":
            continue
        place = next((i for i, found in enumerate(waiting) if _same(line, found, within)), None)
        if place is None:
            missing.append(line)
        else:
            del waiting[: place + 1]
    return missing


def _same(shown: str, printed: str, within: float) -> bool:
    shown, printed = CHANGES.sub("@", shown), CHANGES.sub("@", printed)
    if _words(shown) != _words(printed):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(_close(expected, found, within) for expected, found in pairs)


def _words(line: str) -> list[str]:
    return NUMBER.sub("#", line).split()


def _close(shown: str, printed: str, within: float) -> bool:
    digits = shown.partition("e")[0].partition(".")[2]
    unit = 10.0 ** -len(digits) if digits and "e" not in shown else 0.0
    return abs(float(shown) - float(printed)) <= max(1.01 * unit, within * abs(float(shown)))

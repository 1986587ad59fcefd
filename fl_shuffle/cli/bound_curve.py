"""`fl-shuffle bound --over NAME=VALUES`: bounds as functions of one number of the question."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fl_shuffle import settings_schema
from fl_shuffle.accounting.queries.many import Answers
from fl_shuffle.accounting.queries.methods import METHODS
from fl_shuffle.accounting.queries.query import BoundQuery, method_named
from fl_shuffle.cli.options import CommandAnswer
from fl_shuffle.errors import ConfigError, InvalidValueError, require_choice
from fl_shuffle.report.curves import (
    WORDS,
    Curve,
    curves_figure,
    name_of,
    require_ending,
    write_curves,
)
from fl_shuffle.report.formats import as_text, short
from fl_shuffle.runs.console_messages import tell

MOST_VALUES = 10_000
"""A picture has fewer dots across."""
SMALLEST = "smallest proven"
"""What the line is called that is no single method's."""
FORMS = "must be FIRST:LAST:COUNT, as 1e3:1e5:100, or a list, as 10,100,1000"


def curves_over(arguments: Namespace, values: Mapping[str, Any]) -> CommandAnswer:
    """Return the answers of one or several methods, for one or several randomizers, over one
    number; a picture of them with --plot.

    Raises `ConfigError` where no method answers at any value, and `InvalidValueError` for a value
    that the question does not allow.
    """
    for name in ("config", "set", "grid", "solve_for", "explain", "certificate"):
        if getattr(arguments, name):
            shown = "CONFIG" if name == "config" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{shown} cannot be combined with --over; leave it out")
    path = None if arguments.plot is None else Path(arguments.plot)
    if path is not None:
        require_ending(path)
    axis, points = axis_of(arguments.over)
    if axis in values:
        raise ConfigError(
            f"--over {axis}: --{axis.replace('_', '-')} is also given; leave one of the two out"
        )
    shared = {name: value for name, value in values.items() if name not in ("method", "randomizer")}
    methods = _methods(values.get("method"), everything=arguments.all)
    wanted = [
        (randomizer, method)
        for randomizer in _randomizers(values.get("randomizer"))
        for method in methods
    ]
    questions = [
        BoundQuery.from_mapping({**shared, axis: point, "method": method, "randomizer": randomizer})
        for randomizer, method in wanted
        for point in points
    ]
    tell(f"computing {len(questions)} answers")
    with Answers() as answers:
        found = answers.ask(questions)
    asked, given = ("epsilon", "delta") if questions[0].delta is not None else ("delta", "epsilon")
    several = len({randomizer for randomizer, _ in wanted}) > 1
    curves, refusals = list[Curve](), dict[str, str]()
    for place, (randomizer, method) in enumerate(wanted):
        of = str(randomizer) if several else None
        answered = found[place * len(points) : (place + 1) * len(points)]
        own = Curve.of(method or SMALLEST, answered, asked, of)
        if isinstance(own, Curve):
            curves.append(own)
        else:
            refusals[name_of(method or SMALLEST, of)] = own
    curves = _once(curves)
    if not curves:
        reasons = "; ".join(f"{name}: {text}" for name, text in refusals.items())
        raise ConfigError(f"no bound applies at any {axis} of --over. {reasons}")
    curves.sort(key=lambda curve: list(WORDS).index(curve.status))
    at = "" if axis == given else f" at {given} = {getattr(questions[0], given):g}"
    figure = curves_figure(axis, np.array(points, dtype=np.float64), f"{asked}{at}", curves)
    if path is not None:
        tell("drawing")
        write_curves(figure, path)
    return _said(axis, points, f"{asked}{at}", curves, refusals, path)


def _methods(given: str | None, *, everything: bool) -> list[str | None]:
    """Return names of methods, each once; None stands for the smallest proven bound."""
    if everything:
        if given is not None:
            raise ConfigError("--all runs every method: leave out --method")
        return list(METHODS)
    if given is None:
        return [None]
    return [
        require_choice("method", method_named(name.strip()), METHODS)
        for name in dict.fromkeys(given.split(","))
    ]


def _randomizers(given: str | None) -> list[str | None]:
    """Return the randomizers between semicolons, each once; None stands for any of the local
    budget."""
    if given is None:
        return [None]
    return list(dict.fromkeys(name.strip() for name in given.split(";")))


def _once(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves, and only one without a randomizer where a method says the same of all of
    them."""
    kept: dict[str, Curve] = {}
    for curve in curves:
        same = [each for each in curves if each.method == curve.method]
        shared = len(same) == len({each.randomizer for each in curves}) > 1 and all(
            np.array_equal(each.numbers, curve.numbers) for each in same
        )
        drawn = replace(curve, randomizer=None) if shared else curve
        kept.setdefault(drawn.name, drawn)
    return list(kept.values())


def axis_of(text: str) -> tuple[str, list[int | float]]:
    """Return the question's number and its values: `NAME=FIRST:LAST:COUNT` or
    `NAME=VALUE,VALUE,...`.

    Positive ends are joined in equal ratios, others in equal steps; of a whole number every value
    is rounded to one, and stands once.
    """
    known = settings_schema.settings_of(BoundQuery)
    axes = [
        each.name
        for each in known.values()
        if each.kind in ("int", "float", "int | float") and each.read is None
    ]
    name, equals, said = text.partition("=")
    name = require_choice("--over", name.strip().replace("-", "_"), axes)
    if not equals or not said.strip():
        raise InvalidValueError("--over", text, FORMS)
    kind = known[name].kind
    if ":" not in said:
        values = [_listed(text, word, kind) for word in said.split(",")]
        if len(values) > MOST_VALUES:
            raise InvalidValueError("--over", text, f"may have at most {MOST_VALUES:,} values")
        return name, list(dict.fromkeys(values))
    words = said.split(":")
    if len(words) != 3:
        raise InvalidValueError("--over", text, FORMS)
    first, last, number = (_number(text, word) for word in words)
    if not (number == int(number) and 2 <= number <= MOST_VALUES):
        raise InvalidValueError(
            "--over", text, f"COUNT must be a whole number in [2, {MOST_VALUES}]"
        )
    spaced = np.geomspace if first > 0.0 and last > 0.0 else np.linspace
    inner = spaced(first, last, int(number)).tolist()
    exact = [first, *inner[1:-1], last]
    return name, list(dict.fromkeys(round(each) if kind == "int" else each for each in exact))


def _number(text: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidValueError("--over", text, FORMS)
    return value


def _listed(text: str, word: str, kind: str) -> int | float:
    """Return a value of a list: of a whole number none is rounded."""
    value = _number(text, word)
    whole = value == int(value)
    if kind == "int" and not whole:
        raise InvalidValueError("--over", text, f"{word.strip()} must be a whole number")
    return int(value) if kind == "int" or (kind != "float" and whole) else value


def _said(
    axis: str, points: list[int | float], y_label: str, curves: list[Curve],
    refusals: dict[str, str], path: Path | None,
) -> CommandAnswer:  # fmt: skip
    """Return a table, or where the picture is, and what each column may claim."""
    lines = [f"{y_label} over {axis}"]
    if path is None:
        columns = {curve.name: list(map(short, curve.numbers.tolist())) for curve in curves}
        lines += [*as_text({axis: points, **columns}, "table").splitlines(), ""]
    for curve in curves:
        known = int(np.isfinite(curve.numbers).sum())
        missing = f"; at {len(points) - known} of {len(points)} values there is no finite answer"
        gap = (missing + f": {curve.refusal}" * bool(curve.refusal)) * (known < len(points))
        lines.append(f"{curve.name}: {curve.status}; {curve.source}{gap}")
    lines += [f"{name}: not applicable: {text}" for name, text in refusals.items()]
    lines += [] if path is None else [f"written: {path}"]
    body = {
        "over": axis,
        "values": points,
        "curves": [
            {
                "method": curve.method,
                **({} if curve.randomizer is None else {"randomizer": curve.randomizer}),
                "status": curve.status,
                "source": curve.source,
                "numbers": [None if math.isnan(each) else each for each in curve.numbers.tolist()],
            }
            for curve in curves
        ],
        "not_applicable": refusals,
        "plot": None if path is None else str(path),
    }
    return body, lines

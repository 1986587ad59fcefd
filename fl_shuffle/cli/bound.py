"""`fl-shuffle bound`: one privacy bound, every one that applies, or a number for a target."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from fl_shuffle import declare
from fl_shuffle.cli.overrides import add_overrides
from fl_shuffle.errors import ConfigError, FlShuffleError, InvalidValueError, require_choice
from fl_shuffle.plugins import require_extra
from fl_shuffle.run_words import say, tell

if TYPE_CHECKING:
    from fl_shuffle.accounting.guarantee import Guarantee
    from fl_shuffle.accounting.queries.question import Question

SUMMARY = (
    "The epsilon at --delta (or delta at --epsilon) of shuffled reports, the smallest proven one; "
    "with CONFIG what its rounds will cost; with both --epsilon and --delta the --solve-for that "
    "keeps them."
)
ADVERSARY = ("release", "assumed_honest")
ASKED = ("delta", "epsilon", "method")
CONFIGURED = {"clients": "data.clients", "rounds": "run.rounds"}
"""Flags that mean the configuration's own setting where one is given."""


def configure(parser: argparse.ArgumentParser) -> None:
    from fl_shuffle.accounting.queries.question import Question

    parser.add_argument(
        "config", metavar="CONFIG", nargs="?", help="what this configuration will cost"
    )
    parser.add_argument(
        "--grid", action="append", default=[], metavar="SECTION.KEY=VALUE,...",
        help="with CONFIG: what each of these values would gain and lose; may be repeated",
    )  # fmt: skip
    add_overrides(parser)
    names = [each for each in declare.settings_of(Question) if each not in ADVERSARY + ASKED]
    declare.add_options(parser.add_argument_group("reports"), Question, names=names)
    declare.add_options(parser.add_argument_group("adversary"), Question, names=ADVERSARY)
    asked = parser.add_argument_group("asked")
    declare.add_options(asked, Question, names=ASKED)
    asked.add_argument(
        "--solve-for", metavar="NAME",
        help="given both --epsilon and --delta: the most (or least) of clients, sigma, records, "
        "epsilon0, delta0, rounds, participation or assumed-honest that keeps them; with CONFIG "
        "and --epsilon: of rounds, reports-per-round, epsilon0 or clients",
    )  # fmt: skip
    asked.add_argument(
        "--all", action="store_true", help="every bound that applies, proven ones first"
    )
    asked.add_argument(
        "--why",
        action="store_true",
        help="where proofs are; with --all: why others do not apply",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--certificate", metavar="FILE", help="write a certificate that fl-shuffle verify checks"
    )
    output.add_argument(
        "--plot", metavar="FILE", help="with --all: figure of the bounds over n (png, pdf, svg)"
    )
    one = output.add_mutually_exclusive_group()
    one.add_argument("--json", action="store_true", help="print exactly one JSON object")
    one.add_argument(
        "--jsonl", metavar="FILE", help="one JSON query per line ('-': standard input)"
    )


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.accounting.queries.question import Question

    values = declare.given(arguments, Question)
    if arguments.config is not None:
        return _configured(arguments, values)
    if arguments.set or arguments.grid:
        raise ConfigError(
            f"--{'set' if arguments.set else 'grid'} changes a configuration; name one"
        )
    if arguments.jsonl is not None:
        with _lines_of(arguments.jsonl) as lines:
            return _stream(lines, values, sys.stdout)
    if arguments.solve_for is not None:
        return _solve(arguments.solve_for.replace("-", "_"), values, as_json=arguments.json)
    query = Question.from_mapping(values)
    if arguments.all:
        return _all(query, arguments)
    return _one(query, arguments)


def _configured(arguments: argparse.Namespace, values: dict[str, Any]) -> int:
    """What a configuration will cost, or what of it keeps a target."""
    from fl_shuffle.api.configs import configured
    from fl_shuffle.cli.cost import show_cost, show_grid, show_solved

    settings = [*arguments.set]
    target = values.pop("epsilon", None) if arguments.solve_for is not None else None
    for name, value in values.items():
        if name == "budgets":
            path = json.dumps(str(Path(arguments.budgets).resolve()))
            settings += ["budgets.distribution=file", f"budgets.file={path}"]
        elif name in CONFIGURED:
            settings.append(f"{CONFIGURED[name]}={value}")
        else:
            raise ConfigError(
                f"--{name.replace('_', '-')} belongs to a question, CONFIG to a cost; give one of "
                "the two (a configuration is changed with --set)"
            )
    for name in ("all", "why", "plot", "jsonl", "certificate"):
        if getattr(arguments, name):
            raise ConfigError(f"--{name.replace('_', '-')} belongs to a question; leave out CONFIG")
    config = configured(arguments.config, settings)
    if arguments.solve_for is not None:
        if target is None or arguments.grid:
            raise ConfigError("CONFIG --solve-for NAME needs the target, --epsilon, and no --grid")
        name = arguments.solve_for.replace("-", "_")
        show_solved(config, name, target, as_json=arguments.json)
    elif arguments.grid:
        show_grid(config, arguments.grid, as_json=arguments.json)
    else:
        show_cost(config, as_json=arguments.json)
    return 0


def _one(query: Question, arguments: argparse.Namespace) -> int:
    from fl_shuffle.accounting.queries.methods import bound, lower_answers, proven_over_lower

    if arguments.certificate is not None and query.method is None:
        # Certificates are written for these bounds; another may be a little smaller.
        vector = "sum" if query.release == "sum" else "proven"
        certified = {"krr": "blanket", "gaussian": vector}
        query = replace(query, method=certified.get(str(query.randomizer)))
    tell(f"working out {query.method or 'the smallest proven bound'}")
    start = time.perf_counter()
    result = bound(query)
    seconds = time.perf_counter() - start
    lower = lower_answers(query) if result.is_guarantee else {}
    ratio = proven_over_lower(query, {**lower, result.method: result})
    written = []
    if arguments.certificate is not None:
        written.append(_certify(query, result, Path(arguments.certificate)))
    if arguments.json:
        print(json.dumps({**result.to_dict(), "proven_over_lower": ratio, "seconds": seconds}))
    else:
        proofs = [_proofs()] if arguments.why else []
        say(str(result), *_remarks(result, ratio), *proofs, *written)
    return 0


def _certify(query: Question, answer: Guarantee, path: Path) -> str:
    """Write the certificate, and say which epsilon it vouches for."""
    require_extra("flint", "certificates", "--certificate")
    from fl_shuffle.certificates.questions import certificate_of
    from fl_shuffle.certificates.writing import text_of

    tell("writing a certificate")
    written = certificate_of(query, answer)
    try:
        path.write_text(text_of(written), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--certificate {path}: cannot be written: {error}") from None
    claim = written["claim"]
    return f"certificate: epsilon <= {claim['epsilon']}; check it: fl-shuffle verify {path}"


def _proofs() -> str:
    """Where the file lies that sources name: a wheel has it in the package, a clone beside it."""
    package = Path(__file__).resolve().parents[1]
    places = [folder / "docs" / "proofs.md" for folder in (package, package.parent)]
    return f"proofs: {next(filter(Path.exists, places), 'docs/proofs.md of the repository')}"


def _remarks(answer: Guarantee, ratio: float | None) -> list[str]:
    """What goes with the number."""
    from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS
    from fl_shuffle.accounting.guarantee import ratio_line

    lines = [] if ratio is None else [ratio_line(ratio)]
    if "epsilon_add_remove" in answer.details:
        lines.append(f"epsilon {answer.details['epsilon_add_remove']:.6g}: {ADD_REMOVE_WORDS}")
    if answer.details.get("shuffling_helps") is False:
        lines.append(
            "shuffling adds nothing here: a client's own noise hides it better than others"
        )
    return lines + [f"assumes {text}" for text in answer.assumptions]


def _solve(name: str, values: dict[str, Any], *, as_json: bool) -> int:
    from fl_shuffle.accounting.queries.question import Question
    from fl_shuffle.accounting.queries.solve import COSTS, solve

    if name in ("delta", "epsilon"):
        other = "epsilon" if name == "delta" else "delta"
        raise ConfigError(
            f"--solve-for {name}: leave it out; --{other} without --{name} asks for it"
        )
    require_choice("--solve-for", name, COSTS)
    if name in values:
        raise ConfigError(f"--solve-for {name}: --{name} is what is asked for; leave it out")
    delta = values.pop("delta", None)
    if values.get("epsilon") is None or delta is None:
        raise ConfigError(f"--solve-for {name} needs the target: --epsilon and --delta")
    if name == "clients" and isinstance(values.get("assumed_honest"), int):
        raise InvalidValueError(
            "assumed_honest", values["assumed_honest"], "decides alone, however many the clients "
            "are; give a share of them with --solve-for clients"
        )  # fmt: skip
    tell(f"looking for {name}")
    query = Question.from_mapping({**values, **START.get(name, {name: 1})})
    value, result = solve(query, name, delta)
    if as_json:
        print(json.dumps({name: value, **result.to_dict(), "target_delta": delta}))
        return 0
    side = "<=" if COSTS[name] else ">="
    say(
        f"{name} {side} {value:.6g} for epsilon <= {query.epsilon:g} at delta = {delta:g}",
        str(result),
        *_remarks(result, None),
    )
    return 0


START: dict[str, dict[str, Any]] = {"delta0": {"delta0": 1e-6}}
"""A value that makes a question of what is solved for; elsewhere 1 does."""


@contextmanager
def _lines_of(name: str) -> Iterator[TextIO]:
    if name == "-":
        yield sys.stdin
        return
    try:
        with open(name, encoding="utf-8") as lines:
            yield lines
    except UnicodeDecodeError:
        raise ConfigError(f"query file {name} is not UTF-8 text") from None
    except FileNotFoundError:
        raise ConfigError(f"query file {name} does not exist") from None
    except OSError as error:
        raise ConfigError(f"query file {name} cannot be read: {error}") from None


def _stream(lines: TextIO, defaults: dict[str, Any], out: TextIO) -> int:
    """One result or error object per nonempty line, each flushed as soon as it is known; flags
    given beside --jsonl are defaults for all lines. 2 if one of them is an error."""
    code = 0
    for line in lines:
        if line.strip():
            found = _answer_line(line, defaults)
            code = 2 if "error" in found else code
            print(json.dumps(found), file=out, flush=True)
    return code


def _answer_line(line: str, defaults: dict[str, Any]) -> dict[str, Any]:
    from fl_shuffle.accounting.queries.methods import bound
    from fl_shuffle.accounting.queries.question import Question

    start = time.perf_counter()
    try:
        query = json.loads(line, parse_constant=_refuse_constant)
        if not isinstance(query, dict):
            raise InvalidValueError("query", query, "must be a JSON object")
        answer = bound(Question.from_mapping({**defaults, **query}))
    except json.JSONDecodeError as error:
        return {"error": f"not JSON: {error}"}
    except RecursionError:
        return {"error": "not JSON: nested too deeply"}
    except FlShuffleError as error:
        return {"error": " ".join(str(error).split())}
    except ValueError as error:
        if "integer string conversion" not in str(error):
            raise
        return {"error": "not JSON: a number has too many digits"}
    return {**answer.to_dict(), "seconds": time.perf_counter() - start}


def _refuse_constant(name: str) -> float:
    raise InvalidValueError("query", name, "is not a JSON number; numbers must be finite")


def _all(query: Question, arguments: argparse.Namespace) -> int:
    from fl_shuffle.accounting.guarantee import Guarantee
    from fl_shuffle.accounting.queries.methods import compare, proven_over_lower

    if arguments.plot is not None:
        _require_figure(Path(arguments.plot))
    tell("asking every bound")
    answers = compare(query)
    results = {name: value for name, value in answers.items() if isinstance(value, Guarantee)}
    refusals = {
        name: " ".join(str(value).split())
        for name, value in answers.items()
        if isinstance(value, FlShuffleError)
    }
    if not results:
        reasons = "; ".join(f"{name}: {error}" for name, error in refusals.items())
        raise ConfigError(f"no bound applies to this query. {reasons}")
    if arguments.plot is not None:
        tell("drawing, for more and fewer clients")
        _plot(query, results, Path(arguments.plot))
    ratio = proven_over_lower(query, results)
    if arguments.json:
        print(json.dumps({"results": [value.to_dict() for value in results.values()],
                          "not_applicable": refusals, "proven_over_lower": ratio}))  # fmt: skip
        return 0
    _print_table(query, results)
    best = next(iter(results.values()))
    why = [_proofs()] + [f"{name}: not applicable: {text}" for name, text in refusals.items()]
    chosen = results.get("sum", best)
    say(f"{chosen.method}:", *_remarks(chosen, ratio), *(why if arguments.why else []))
    return 0


def _asked(query: Question) -> tuple[str, str]:
    """What is asked for, and at what."""
    if query.delta is not None:
        return "epsilon", f"delta = {query.delta:g}"
    return "delta", f"epsilon = {query.epsilon:g}"


def _print_table(query: Question, results: dict[str, Guarantee]) -> None:
    from rich.console import Console
    from rich.table import Table

    from fl_shuffle.accounting.queries.methods import asked_number

    asked, given = _asked(query)
    rounds = f", {query.rounds} rounds" if query.rounds > 1 else ""
    reports = "shuffled reports" if query.release == "reports" else "reports, their sum released"
    table = Table(
        title=f"{query.clients} {reports}, {given}{rounds}: {asked} "
        "(only proven upper bounds may be published as guarantees)"
    )
    table.add_column("method", no_wrap=True)
    table.add_column(asked, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("source")
    for name, value in results.items():
        number = asked_number(query, value)
        table.add_row(name, f"{number:.6g}", value.status.value, value.source)
    Console().print(table)


def _require_figure(path: Path) -> None:
    """Raise before anything is computed where no figure can be written."""
    import matplotlib  # noqa: F401

    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ConfigError(f"--plot {path}: the name must end in one of pdf, png, svg")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: cannot be written: no folder {path.parent}")


def _plot(query: Question, results: dict[str, Guarantee], path: Path) -> None:
    """Each method's answer for n from a tenth to ten times the clients."""
    import numpy as np

    from fl_shuffle.errors import RunError
    from fl_shuffle.report.draw import write_picture
    from fl_shuffle.report.figures import STYLES, Figure, Line

    asked, given = _asked(query)
    clients = query.clients or 1
    sizes = sorted({max(1, round(clients * 10.0 ** (i / 4.0 - 1.0))) for i in range(9)})
    if query.budgets:
        sizes = [clients]
    kinds = {"as published": "gspa", "lower bound": "lower"}
    lines = []
    for index, (name, answer) in enumerate(results.items()):
        values = [_number(query if query.budgets else replace(query, clients=n), name)
                  for n in sizes]  # fmt: skip
        kind = kinds.get(answer.status.value, f"run-{index % STYLES}")
        lines.append(Line.of(kind, f"{name} ({answer.status.value})", np.array(sizes), values))
    figure = Figure(
        name="bounds", title="", caption="", x_label="shuffled reports n",
        y_label=f"central {asked}, {given}", lines=lines, log_x=True, log_y=True,
    )  # fmt: skip
    try:
        write_picture(figure, path)
    except RunError as error:
        raise ConfigError(f"--plot {error}") from None


def _number(query: Question, name: str) -> float:
    """The method's answer, or nan (a gap in the figure) where it does not apply or is vacuous."""
    from fl_shuffle.accounting.queries.methods import asked_number, bound

    try:
        number = asked_number(query, bound(replace(query, method=name)))
    except FlShuffleError:
        return math.nan
    return number if 0.0 < number < math.inf else math.nan

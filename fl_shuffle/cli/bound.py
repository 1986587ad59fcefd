"""`fl-shuffle bound`: one privacy bound, every one that applies, or a number for a target."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from fl_shuffle import settings_schema
from fl_shuffle._internal.durable_files import said_in_one_line
from fl_shuffle._internal.plugins import require_extra
from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS
from fl_shuffle.accounting.guarantee import Guarantee, Status, ratio_line
from fl_shuffle.accounting.queries.methods import (
    asked_number,
    bound,
    compare,
    lower_answers,
    tightness,
)
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.accounting.queries.solve import COSTS, solve
from fl_shuffle.cli.options import CommandAnswer, overrides, show
from fl_shuffle.cli.parsers import OF_BOUND
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.errors import ConfigError, FlShuffleError, InvalidValueError, require_choice
from fl_shuffle.report.formats import aligned
from fl_shuffle.runs.console_messages import tell

HEADINGS = {
    Status.PROVEN: "proven",
    Status.AS_PUBLISHED: "as published (no guarantee)",
    Status.LOWER_BOUND: "lower bounds",
}
"""What answers stand under with --all, in this order."""


def run(arguments: Namespace) -> int:
    values = settings_schema.given(arguments, BoundQuery)
    if arguments.jsonl is not None:
        from fl_shuffle.cli.bound_lines import answer_lines

        return answer_lines(arguments, values)
    if arguments.over is not None:
        from fl_shuffle.cli.bound_curve import curves_over

        show(curves_over(arguments, values), as_json=arguments.json)
        return 0
    if arguments.plot is not None:
        raise ConfigError("--plot needs --over NAME=VALUES, the horizontal axis")
    if ";" in str(values.get("randomizer")):
        raise ConfigError(
            f"--randomizer {values['randomizer']}: several randomizers need --over NAME=VALUES, "
            "the horizontal axis; give one randomizer, or add --over"
        )
    solved = (arguments.solve_for or "").replace("-", "_")
    if arguments.config is not None:
        answer = _configured(arguments, values, solved)
    elif arguments.set or arguments.grid:
        name = "set" if arguments.set else "grid"
        raise ConfigError(f"--{name} changes a configuration; add CONFIG")
    elif solved:
        answer = _solved(solved, values)
    else:
        answer = (_all if arguments.all else _one)(BoundQuery.from_mapping(values), arguments)
    show(answer, as_json=arguments.json)
    return 0


def _configured(arguments: Namespace, values: dict[str, Any], solved: str) -> CommandAnswer:
    """Return what a configuration will cost, or what of it keeps a target."""
    from fl_shuffle.cli.cost import said_of_cost, said_of_grid, said_of_target

    settings = overrides(arguments, OF_BOUND)
    target = values.pop("epsilon", None) if solved else None
    for name in values.keys() - OF_BOUND.values():
        raise ConfigError(
            f"--{name.replace('_', '-')} cannot be combined with CONFIG; give one of "
            "the two (a configuration is changed with --set)"
        )
    for name in ("all", "explain", "certificate"):
        if getattr(arguments, name):
            raise ConfigError(f"--{name} cannot be combined with CONFIG; leave one of the two out")
    config = resolve_config(arguments.config, settings)
    if not solved:
        return said_of_grid(config, arguments.grid) if arguments.grid else said_of_cost(config)
    if target is None or arguments.grid:
        raise ConfigError("CONFIG --solve-for NAME needs the target, --epsilon, and no --grid")
    return said_of_target(config, solved, target)


def _one(query: BoundQuery, arguments: Namespace) -> CommandAnswer:
    """Return one bound; with --certificate the one that a certificate is written for."""
    if arguments.certificate is not None and query.method is None:
        # Certificates are written for these bounds; another may be a little smaller.
        vector = "sum" if query.release == "sum" else "vector"
        certified = {"krr": "blanket", "gaussian": vector}
        query = replace(query, method=certified.get(str(query.randomizer)))
    tell(f"computing {query.method or 'the smallest proven bound'}")
    result = bound(query)
    lower = lower_answers(query) if result.is_guarantee else {}
    ratio = tightness(query, {**lower, result.method: result})
    lines = [str(result), *_remarks(result, ratio), *([_proofs()] if arguments.explain else [])]
    if arguments.certificate is not None:
        lines.append(_certify(query, result, Path(arguments.certificate)))
    return {**result.to_dict(), **_ratio(ratio)}, lines


def _certify(query: BoundQuery, answer: Guarantee, path: Path) -> str:
    """Write the certificate, and say which epsilon it vouches for."""
    require_extra("flint", "certificates", "--certificate")
    from fl_shuffle.certificates.questions import certificate_of
    from fl_shuffle.certificates.writing import text_of

    tell("writing a certificate")
    written = certificate_of(query, answer)
    with said_in_one_line(path):
        path.write_text(text_of(written), encoding="utf-8")
    epsilon = written["claim"]["epsilon"]
    return f"certificate: epsilon <= {epsilon}; check it: fl-shuffle verify {path}"


def _proofs() -> str:
    """Return where the pages lie that sources name: in a wheel's package, or beside a clone's."""
    package = Path(__file__).resolve().parents[1]
    places = [folder / "docs/research/proofs/index.md" for folder in (package, package.parent)]
    return f"proofs: {next(filter(Path.exists, places), 'docs/research/proofs of the repository')}"


def _remarks(answer: Guarantee, ratio: float | None) -> list[str]:
    """Return what goes with the number."""
    lines = [] if ratio is None else [ratio_line(ratio)]
    if "epsilon_add_remove" in answer.details:
        lines.append(f"epsilon {answer.details['epsilon_add_remove']:.6g}: {ADD_REMOVE_WORDS}")
    if "order" in answer.details:
        lines.append(
            f"Renyi divergence {answer.details['rdp']:.6g} at order {answer.details['order']:.6g}"
        )
    if answer.details.get("shuffling_helps") is False:
        lines.append(
            "shuffling adds nothing here: a client's own noise hides it better than others"
        )
    return lines + [f"assumes {text}" for text in answer.assumptions]


def _solved(name: str, values: dict[str, Any]) -> CommandAnswer:
    """Return the most (or least) of one number of the question that keeps a target."""
    if name in ("delta", "epsilon"):
        other = "epsilon" if name == "delta" else "delta"
        raise ConfigError(
            f"--solve-for {name}: leave it out; --{other} without --{name} computes it"
        )
    require_choice("--solve-for", name, COSTS)
    if name in values:
        raise ConfigError(f"--solve-for {name}: --{name} is what is solved for; leave it out")
    delta = values.pop("delta", None)
    if values.get("epsilon") is None or delta is None:
        raise ConfigError(f"--solve-for {name} needs the target: --epsilon and --delta")
    if name == "clients" and isinstance(values.get("assumed_honest"), int):
        raise InvalidValueError(
            "assumed_honest", values["assumed_honest"], "is a fixed number, which more clients do "
            "not change; give a share with --solve-for clients"
        )  # fmt: skip
    tell(f"looking for {name}")
    # Any value makes a question of what is solved for; a delta is below 1.
    query = BoundQuery.from_mapping({**values, name: 1e-6 if name == "delta0" else 1})
    value, result = solve(query, name, delta)
    head = f"{name} {'<=' if COSTS[name] else '>='} {value:.6g} for epsilon <= {query.epsilon:g} at"
    return {name: value, **result.to_dict(), "target_delta": delta}, [
        f"{head} delta = {delta:g}", str(result), *_remarks(result, None)
    ]  # fmt: skip


def _all(query: BoundQuery, arguments: Namespace) -> CommandAnswer:
    """Return every bound that applies, and why others do not."""
    tell("asking every bound")
    results: dict[str, Guarantee] = {}
    refusals: dict[str, str] = {}
    for name, answer in compare(query).items():
        if isinstance(answer, FlShuffleError):
            refusals[name] = " ".join(str(answer).split())
        else:
            results[name] = answer
    if not results:
        reasons = "; ".join(f"{name}: {error}" for name, error in refusals.items())
        raise ConfigError(f"no bound applies to this query. {reasons}")
    ratio = tightness(query, results)
    chosen = results.get("sum", next(iter(results.values())))
    # A refusal begins with its method's name, which already heads the line.
    refused = [f"  {name}: {text.removeprefix(f'{name} ')}" for name, text in refusals.items()]
    lines = [
        *_table(query, results),
        *(["", "does not apply", *refused] if refused else []),
        *["", f"{chosen.method}:", *_remarks(chosen, ratio)],
        *([_proofs()] if arguments.explain else []),
    ]
    found = [value.to_dict() for value in results.values()]
    return {"results": found, "not_applicable": refusals, **_ratio(ratio)}, lines


def _ratio(ratio: float | None) -> dict[str, float | None]:
    """Return the proven number over the lower bound, also under the name of version 0.2."""
    return {"tightness": ratio, "proven_over_lower": ratio}


def _table(query: BoundQuery, results: dict[str, Guarantee]) -> list[str]:
    """Return what is asked, and under a heading for each status a line for each answer."""
    asked, given = ("epsilon", "delta") if query.epsilon is None else ("delta", "epsilon")
    rounds = f", {query.rounds} rounds" if query.rounds > 1 else ""
    noun = "report" if query.clients == 1 else "reports"
    reports = f"shuffled {noun}" if query.release == "reports" else f"{noun}, their sum released"
    lines = [
        f"{query.clients} {reports}, {given} = {getattr(query, given):g}{rounds}: {asked} "
        "(only proven upper bounds may be published as guarantees)"
    ]
    # Columns have one width under all headings; the source comes last, in any width.
    rows = [[name, f"{asked_number(query, each):.6g}"] for name, each in results.items()]
    shown = dict(zip(results, aligned([["method", asked], *rows])[1:], strict=True))
    for status, heading in HEADINGS.items():
        found = [name for name, each in results.items() if each.status is status]
        if found:
            lines += ["", heading]
            lines += [f"  {shown[name]}  {results[name].source}" for name in found]
    return lines

"""`fl-shuffle bound`: one privacy bound, or a stream of them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

from fl_shuffle.api.queries import answer, read_query
from fl_shuffle.errors import ConfigError, FlShuffleError, InvalidValueError
from fl_shuffle.simulation.progress import say, tell

if TYPE_CHECKING:
    pass

SUMMARY = "Compute a privacy bound for shuffled reports."

QUERY_NAMES = (
    *("randomizer", "k", "cap", "method", "epsilon0", "delta0", "clients", "epsilon", "delta"),
    *("rounds", "joint", "parallel", "unit", "records", "calibration", "profile"),
    *("participation", "relative_error", "release", "assumed_honest"),
)


def add_query_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that describe one query, shared with `fl-shuffle compare`."""
    parser.add_argument(
        "--randomizer",
        metavar="NAME",
        help="krr, blh, rappor, oue, hadamard, laplace, gaussian or privunit; left out: any",
    )
    parser.add_argument(
        "--k", type=int, metavar="K", help="number of categories (krr, rappor, oue)"
    )
    parser.add_argument("--cap", type=float, metavar="P", help="cap probability of privunit (0.5)")
    parser.add_argument("--epsilon0", type=float, metavar="X", help="local epsilon of one report")
    parser.add_argument("--delta0", type=float, metavar="Y", help="local delta of one report (0)")
    parser.add_argument(
        "--profile",
        metavar="EPSILON:DELTA,...|gdp:MU",
        help="local guarantees that all hold for one report (method profile)",
    )
    parser.add_argument("--clients", type=int, metavar="N", help="number of shuffled reports")
    parser.add_argument("--delta", type=float, metavar="D", help="ask for epsilon at this delta")
    parser.add_argument("--epsilon", type=float, metavar="E", help="ask for delta at this epsilon")
    parser.add_argument("--rounds", type=int, metavar="T", help="number of rounds (1)")
    parser.add_argument(
        "--joint", type=int, metavar="K", help="answers in one report, sharing epsilon0 evenly (1)"
    )
    parser.add_argument(
        "--parallel", metavar="NAME:WEIGHT,...", help="each client uses one of these randomizers"
    )
    parser.add_argument("--unit", choices=("record", "client"), help="what neighbours change")
    parser.add_argument("--records", type=int, metavar="B", help="records averaged in one report")
    parser.add_argument(
        "--calibration", choices=("classical", "analytic"), help="how Gaussian noise is scaled"
    )
    parser.add_argument(
        "--participation",
        type=float,
        metavar="Q",
        help="each of the clients takes part by its own coin, and who did stays secret (1)",
    )
    parser.add_argument(
        "--relative-error",
        type=float,
        metavar="R",
        help="numerical excess allowed to computed bounds, relative to delta (1e-6; noise 2e-4)",
    )
    add_release_arguments(parser)
    parser.add_argument(
        "--budgets", metavar="FILE.csv", help="personal budgets: client_id,epsilon,delta"
    )


def add_release_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say what of a round's reports leaves, shared with `fl-shuffle plan`."""
    parser.add_argument(
        "--release",
        choices=("reports", "sum"),
        help="what leaves a round: its reports, shuffled, or only their sum (reports)",
    )
    parser.add_argument(
        "--assumed-honest",
        type=count_or_share,
        metavar="K|SHARE",
        help="with --release sum: the noise of so many reports, or of this share, counts (all)",
    )


def count_or_share(text: str) -> int | float:
    """A whole number as a count, anything with a point or exponent as a share."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def configure(parser: argparse.ArgumentParser) -> None:
    add_query_arguments(parser)
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="which bound (default: blanket if a randomizer is named, else clone; gspa-exact with "
        "budgets alone; sum for Gaussian or Laplace noise with --release sum); `fl-shuffle "
        "compare` lists them",
    )
    parser.add_argument(
        "--solve-for",
        choices=("clients", "epsilon0"),
        help="given both --epsilon and --delta: the fewest clients, or the largest local budget",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print exactly one JSON object")
    output.add_argument(
        "--jsonl", metavar="FILE", help="one JSON query per line ('-': standard input)"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.jsonl is not None:
        return _stream(arguments)

    values = given_values(arguments)
    if arguments.solve_for is not None:
        return _solve(arguments.solve_for, values, as_json=arguments.json)
    from fl_shuffle.accounting.guarantee import ratio_line
    from fl_shuffle.accounting.queries.methods import bound, lower_answers, proven_over_lower

    start = time.perf_counter()
    query = read_query(values)
    tell(f"working out {query.method}")
    result = bound(query)
    seconds = time.perf_counter() - start
    lower = lower_answers(query) if result.is_guarantee else {}
    ratio = proven_over_lower(query, {**lower, query.method: result})
    if arguments.json:
        print(json.dumps({**result.to_dict(), "proven_over_lower": ratio, "seconds": seconds}))
    else:
        say(str(result))
        if ratio is not None:
            say(ratio_line(ratio))
        if result.details.get("participation", 1.0) != 1.0:
            from fl_shuffle.accounting.bounds.participation import ASSUMPTION

            say(f"assumes {ASSUMPTION}")
        if query.release == "sum":
            say(f"assumes {result.assumptions[0]}")
    return 0


def _solve(name: str, values: dict[str, Any], *, as_json: bool) -> int:
    """The fewest clients or the largest epsilon0 that `blanket` certifies as (epsilon, delta)."""
    from dataclasses import replace

    from fl_shuffle.accounting.bounds.blanket import (
        blanket_delta,
        largest_local_budget,
        smallest_cohort,
    )
    from fl_shuffle.accounting.bounds.participation import ASSUMPTION
    from fl_shuffle.accounting.queries.bound_query import make_randomizer

    if name in values:
        raise ConfigError(f"--solve-for {name}: --{name} is what is asked for; leave it out")
    if values.get("epsilon") is None or values.get("delta") is None:
        raise ConfigError(f"--solve-for {name} needs the target: --epsilon and --delta")
    delta = values.pop("delta")
    query = read_query({**values, name: 1})
    if query.method != "blanket" or query.rounds > 1 or query.budgets:
        raise ConfigError(
            f"--solve-for {name} is offered for one round of one named randomizer (method "
            "blanket); for noise over many rounds see `fl-shuffle plan`"
        )
    query.require_pure()
    epsilon = query.epsilon or 0.0
    epsilon0, _, clients = query.local
    tell(f"looking for {name}")
    if name == "clients":
        clients = smallest_cohort(
            make_randomizer(query, epsilon0),
            epsilon,
            delta,
            participation=query.participation,
            relative_error=query.relative_error,
        )
    else:
        epsilon0 = largest_local_budget(
            lambda budget: make_randomizer(query, budget),
            clients,
            epsilon,
            delta,
            participation=query.participation,
            relative_error=query.relative_error,
        )
    solved = replace(query, clients=clients, epsilon0=epsilon0)
    result = blanket_delta(
        make_randomizer(solved, epsilon0), clients, epsilon, participation=query.participation
    )
    value = clients if name == "clients" else epsilon0
    if as_json:
        print(json.dumps({name: value, **result.to_dict(), "target_delta": delta}))
        return 0
    at = f"epsilon0 = {epsilon0:g}" if name == "clients" else f"{clients} clients"
    shown = f"clients >= {value}" if name == "clients" else f"epsilon0 <= {value:.6g}"
    say(f"{shown} for epsilon <= {epsilon:g} at delta = {delta:g} with {at}")
    say(str(result))
    if query.participation < 1.0:
        say(f"assumes {ASSUMPTION}")
    return 0


def given_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """The query names that were given on the command line, with their values."""
    names = (*QUERY_NAMES, "budgets")
    found = {name: getattr(arguments, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _stream(arguments: argparse.Namespace) -> int:
    """Answer every line; flags given beside --jsonl are defaults for all lines."""
    defaults = given_values(arguments)
    if arguments.jsonl == "-":
        return _answer_lines(sys.stdin, defaults, sys.stdout)
    try:
        with open(arguments.jsonl, encoding="utf-8") as lines:
            return _answer_lines(lines, defaults, sys.stdout)
    except UnicodeDecodeError:
        raise ConfigError(f"query file {arguments.jsonl} is not UTF-8 text") from None
    except FileNotFoundError:
        raise ConfigError(f"query file {arguments.jsonl} does not exist") from None
    except OSError as error:
        raise ConfigError(f"query file {arguments.jsonl} cannot be read: {error}") from None


def _answer_lines(lines: Iterable[str], defaults: dict[str, Any], out: TextIO) -> int:
    """One result or error object per nonempty line, each flushed as soon as it is known.

    Returns the exit code: 2 if one of them is an error.
    """
    code = 0
    for line in lines:
        if not line.strip():
            continue
        found = _answer_line(line, defaults)
        code = 2 if "error" in found else code
        out.write(json.dumps(found) + "\n")
        out.flush()
    return code


def _answer_line(line: str, defaults: dict[str, Any]) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        query = json.loads(line, parse_constant=_refuse_constant)
        if not isinstance(query, dict):
            raise InvalidValueError("query", query, "must be a JSON object")
        result = answer({**defaults, **query})
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
    return {**result.to_dict(), "seconds": time.perf_counter() - start}


def _refuse_constant(name: str) -> float:
    raise InvalidValueError("query", name, "is not a JSON number; numbers must be finite")

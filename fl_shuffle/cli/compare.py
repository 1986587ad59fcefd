"""`fl-shuffle compare`: every bound that applies to a query, as a table and a figure."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fl_shuffle.api.queries import read_query
from fl_shuffle.cli.bound import add_query_arguments, given_values
from fl_shuffle.errors import ConfigError, FlShuffleError
from fl_shuffle.plugins import require_extra
from fl_shuffle.simulation.progress import tell

if TYPE_CHECKING:
    from fl_shuffle.accounting.guarantee import Guarantee
    from fl_shuffle.accounting.queries.bound_query import BoundQuery

SUMMARY = "Compare every privacy bound that applies, proven ones first."


def configure(parser: argparse.ArgumentParser) -> None:
    add_query_arguments(parser)
    parser.add_argument(
        "--plot", metavar="FILE", help="figure of the bounds over n (png, pdf, svg)"
    )
    parser.add_argument("--why", action="store_true", help="also say why the others do not apply")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.accounting.guarantee import Guarantee
    from fl_shuffle.accounting.queries.methods import compare, proven_over_lower

    query = read_query(given_values(arguments))
    if arguments.plot is not None:
        _require_figure(Path(arguments.plot))
    tell("asking every bound")
    answers = compare(query)
    results = {name: value for name, value in answers.items() if isinstance(value, Guarantee)}
    refusals = {name: value for name, value in answers.items() if isinstance(value, FlShuffleError)}
    if not results:
        reasons = "; ".join(f"{name}: {error}" for name, error in refusals.items())
        raise ConfigError(f"no bound applies to this query. {reasons}")
    if arguments.plot is not None:
        tell("drawing, for more and fewer clients")
        _plot(query, results, Path(arguments.plot))
    if arguments.json:
        body = {
            "results": [value.to_dict() for value in results.values()],
            "not_applicable": {
                name: " ".join(str(error).split()) for name, error in refusals.items()
            },
            "proven_over_lower": proven_over_lower(query, results),
        }
        print(json.dumps(body))
    else:
        _print_table(query, results, refusals if arguments.why else {})
    return 0


def _print_table(
    query: BoundQuery,
    results: dict[str, Guarantee],
    refusals: dict[str, FlShuffleError],
) -> None:
    from rich.console import Console
    from rich.table import Table

    from fl_shuffle.accounting.bounds.participation import ASSUMPTION
    from fl_shuffle.accounting.guarantee import ratio_line
    from fl_shuffle.accounting.queries.methods import asked_number, proven_over_lower

    asked = "epsilon" if query.delta is not None else "delta"
    given = f"delta = {query.delta:g}" if asked == "epsilon" else f"epsilon = {query.epsilon:g}"
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
    console = Console(width=None)
    console.print(table)
    if query.participation < 1.0:
        console.print(f"assumes {ASSUMPTION}", markup=False, highlight=False)
    if "sum" in results:
        words = results["sum"].assumptions[0]
        console.print(f"sum assumes {words}", markup=False, highlight=False)
    ratio = proven_over_lower(query, results)
    if ratio is not None:
        console.print(ratio_line(ratio), highlight=False)
    for name, error in refusals.items():
        console.print(f"{name}: not applicable: {error}", markup=False, highlight=False)


def _require_figure(path: Path) -> None:
    """Raise before anything is computed where no figure can be written."""
    require_extra("matplotlib", "report", f"--plot {path}")
    supported = {"png", "pdf", "svg"}
    if path.suffix.lstrip(".").lower() not in supported:
        raise ConfigError(
            f"--plot {path}: the name must end in one of {', '.join(sorted(supported))}"
        )
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: cannot be written: no folder {path.parent}")


def _plot(query: BoundQuery, results: dict[str, Guarantee], path: Path) -> None:
    """Each method's answer for n from a tenth to ten times the clients (personal budgets: bars)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8.0, 5.0), layout="constrained")
    asked = "epsilon" if query.delta is not None else "delta"
    if query.budgets:
        names = list(results)
        values = [_number(query, name) for name in names]
        axes.barh(names[::-1], values[::-1], color="tab:blue")
        axes.set_xlabel(f"central {asked}")
        axes.set_xscale("log")
    else:
        clients = query.clients or 1
        sizes = sorted({max(1, round(clients * 10.0 ** (i / 4.0 - 1.0))) for i in range(9)})
        styles = {"proven": "-", "asymptotic": "-.", "as published": "--", "lower bound": ":"}
        for index, (name, answer) in enumerate(results.items()):
            line = [_number(replace(query, clients=n), name) for n in sizes]
            colour = plt.get_cmap("tab20")(index % 20)
            axes.plot(
                sizes,
                line,
                styles[answer.status.value],
                color=colour,
                marker=".",
                label=f"{name} ({answer.status.value})",
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("shuffled reports n")
        axes.set_ylabel(f"central {asked}")
        axes.legend(fontsize=7, ncols=2)
    given = f"delta = {query.delta:g}" if asked == "epsilon" else f"epsilon = {query.epsilon:g}"
    axes.set_title(f"{query.randomizer or 'any randomizer'}, {given}")
    axes.grid(True, which="both", alpha=0.3)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ConfigError(f"--plot {path}: cannot be written: {error}") from None
    finally:
        plt.close(figure)


def _number(query: BoundQuery, name: str) -> float:
    """The method's answer, or nan (a gap in the figure) where it does not apply or is vacuous."""
    from fl_shuffle.accounting.queries.methods import asked_number, bound

    try:
        number = asked_number(query, bound(replace(query, method=name)))
    except FlShuffleError:
        return math.nan
    return number if 0.0 < number < math.inf else math.nan

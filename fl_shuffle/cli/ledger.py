"""`fl-shuffle ledger`: what the ledgers of runs say about a client, a round, everybody."""

from __future__ import annotations

import math
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_shuffle._internal.csv_files import whole_number
from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS, add_remove_of
from fl_shuffle.errors import ConfigError, require_integer, suggestion
from fl_shuffle.ledger.tables import EPSILONS
from fl_shuffle.report.formats import as_text, make_folder, write_table
from fl_shuffle.report.record import RunRecord, agree, read_run
from fl_shuffle.report.tables import TABLES, Columns, clients_table, participation_table
from fl_shuffle.runs.console_messages import (
    is_shown,
    say,
    shown_rounds,
    tell,
    terminal_width,
)

if TYPE_CHECKING:
    from fl_shuffle.report.history import SpendHistory

MakeTable = Callable[[RunRecord], Columns]
SHOWN = 10
"""Clients that are named where the recount differs."""


def run(arguments: Namespace) -> int:
    asked_for, form, out = arguments.client, arguments.format, arguments.out
    if form == "parquet" and not out:
        raise ConfigError("--format parquet is a binary format: add --out FILE")
    if arguments.check and (asked_for is None or form != "table" or out):
        raise ConfigError(
            "--check prints Python code for one client: add --client ID, and leave out --format "
            "and --out"
        )
    if arguments.together:
        return _say_together(arguments)
    for option in ("delta", "clients_as"):
        if getattr(arguments, option) not in (None, []):
            raise ConfigError(
                f"--{option.replace('_', '-')} needs --together: add it, with all runs"
            )
    runs = [read_run(Path(name)) for name in arguments.run_directory]
    for run in runs:
        run.every_column = arguments.recompute
    code = max(map(_recounted, runs)) if arguments.recompute else 0
    numbers: dict[int, int] = {}
    if asked_for is not None:
        numbers = {id(run): client_number(run, asked_for) for run in runs}
    tables: dict[str, MakeTable] = {
        **TABLES,
        "clients": partial(clients_table, recount=arguments.recompute),
        "participation": partial(participation_table, round_number=arguments.round),
        "history": lambda run: _history(run, numbers.get(id(run))).table(),
    }
    if arguments.check:
        for run in runs:
            _say_check(run, numbers[id(run)])
        return code
    asked = "clients" if arguments.clients else "notes" if arguments.notes else "rounds"
    asked = "participation" if arguments.round is not None else asked
    asked = "history" if numbers or arguments.history else asked
    if out and asked == "rounds" and not Path(out).suffix:  # a folder: all four tables
        make_folder(Path(out))
        form = form.replace("table", "csv")
        for name in TABLES:
            path = Path(out, f"{name}.{form}")
            write_table(_joined(runs, tables[name]), path, form)
            print(path)
    elif out:
        write_table(_joined(runs, tables[asked]), Path(out), form)
    elif numbers and form == "table":
        for run in runs:
            _say_bill(run, numbers[id(run)], tables["clients"])
    elif arguments.notes and form == "table":
        for run in runs:
            say(*[f"{run.directory}:"] * (len(runs) > 1), *map(_remark, run.notes))
    else:
        print(as_text(_joined(runs, tables[asked]), form, terminal_width(sys.stdout)))
    return code


def client_number(run: RunRecord, asked: str) -> int:
    """Return the number in a run's ledger of the client that `asked` means.

    Digits without a leading zero are that number; anything else, or what follows `name=`, is a
    name. Names are not in the ledger: they are read from the run's data, or from its budgets file.
    Raises `ConfigError` for a name that no client has, `InvalidValueError` for a number that none
    has.
    """
    last = len(run.class_of) - 1
    if not asked.strip():
        raise ConfigError(
            f"--client {asked!r}: must be a client's number, 0 to {last}, or its name"
        )
    # "007" is a name: it is a number in no table of the run.
    if re.fullmatch("0|[1-9][0-9]{0,17}", asked):
        return require_integer("client", int(asked), minimum=0, maximum=last)
    # A query for numbers does not wait for PyTorch.
    from fl_shuffle.together import names_in

    name, names = asked.removeprefix("name=").strip(), names_in(run)
    if name in names:
        return names.index(name)
    hint = suggestion(name, names) or f"a client's number is 0 to {last}"
    if not names:
        hint = f"the clients of this run have no names; give a number, 0 to {last}"
    number = whole_number(name)
    if number is not None and number <= last:
        hint = f"for client number {number} write --client {number}"
    raise ConfigError(f"--client {asked!r}: no client of {run.directory} has this name; {hint}")


def _say_together(arguments: Namespace) -> int:
    """Print what several runs cost the same clients together."""
    for option in ("history", "round", "notes", "check", "recompute"):
        asked = getattr(arguments, option)
        if asked is not None and asked is not False:  # round 0 is asked for, too
            raise ConfigError(
                f"--{option} is about single runs: leave it out, or --together; composed runs are "
                "always counted again"
            )
    from fl_shuffle.together import compose_runs

    renamed = dict(_renaming(text) for text in arguments.clients_as)
    tell(f"counting {len(arguments.run_directory)} runs together")
    paths, delta = arguments.run_directory, arguments.delta
    composed = compose_runs(paths, delta=delta, clients_as=renamed)
    form, every = arguments.format, composed.to_dict()
    if arguments.client is not None:
        number = client_number(read_run(Path(paths[0])), arguments.client)
        every = {name: values[number : number + 1] for name, values in every.items()}
    summed = not arguments.clients and arguments.client is None
    table = composed.summary() if summed else every
    if arguments.out:
        write_table(table, Path(arguments.out), form.replace("table", "csv"))
        return 0
    if form == "table":
        say(*composed.lines())
    print(as_text(table, form, terminal_width(sys.stdout)))
    if form == "table":
        say(*(f"{name}: {why}" for name, why in composed.reasons.items()))
        say(*(f"assumed: {text}" for text in composed.assumptions))
    return 0


def _renaming(text: str) -> tuple[str, str]:
    """Return the two names of `--clients-as`."""
    old, found, new = text.partition("=")
    if not (found and old.strip() and new.strip()):
        raise ConfigError(f"--clients-as {text!r}: must be NAME=NAME, for example alice=a.smith")
    return old.strip(), new.strip()


def _history(run: RunRecord, client: int | None) -> SpendHistory:
    """Return what one client, or each of them, had spent after every round."""
    # What is written down is shown without loading the accountant.
    from fl_shuffle.report.history import spend_history

    if client is None:
        tell(f"counting every client of {run.directory} after every round")
        return spend_history(run)
    return spend_history(run, np.array([client]))


def _recounted(run: RunRecord) -> int:
    """Say on stderr whether a ledger holds what its rounds give when counted again; 1 if not."""
    tell(f"counting every client of {run.directory} again")
    differing, said = run.differing, "counted again: the ledger says the same"
    same = not len(differing) and run.agrees
    if not same:
        which = ", ".join(map(str, differing[:SHOWN].tolist())) or "none"
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        said = (
            f"COUNTED AGAIN, THE LEDGER SAYS SOMETHING ELSE: the largest epsilon {run.recounted} "
            f"(recorded {run.epsilon}); clients that differ: {which}{more}"
        )
    say(f"{run.directory}: {said}", out=sys.stderr)
    return int(not same)


def _joined(records: Sequence[RunRecord], make: MakeTable) -> Columns:
    """Return one table; with several runs, their names stand in the first column."""
    found = [make(record) for record in records]
    if len(found) == 1:
        return found[0]
    sizes = [len(next(iter(table.values()))) for table in found]
    return {"run": np.repeat([record.name for record in records], sizes)} | {
        name: np.concatenate([table[name] for table in found]) for name in found[0]
    }


def _say_bill(run: RunRecord, client: int, clients: MakeTable) -> None:
    """Print what one client spent in one run: in words, and after every round."""
    own = {name: values[client] for name, values in clients(run).items()}
    history = _history(run, client)
    say(*_bill(run, client, own))
    if not len(history.round_numbers):
        return
    spent = None if own["noise"] == "none" else run.accountant.of_client(client)
    if spent is not None:
        cover = spent.gaussian_cover(run.delta)
        say(f"  as Gaussian DP: mu = {cover.mu:.4g}, but for probability {cover.rare:.2g}")
    counted = {name: float(values[-1, 0]) for name, values in history.columns.items()}
    if any(not agree(own[EPSILONS[name]], value) for name, value in counted.items()):
        said = ", ".join(f"{name} {value:.4g}" for name, value in counted.items())
        say(f"  COUNTED AGAIN, IT SPENT SOMETHING ELSE: {said} (--recompute compares every client)")
    last = int(history.round_numbers[-1])
    at = np.array([is_shown(int(number), last) for number in history.round_numbers])
    table = history.table()
    heads = ["round", "num_reports", *(EPSILONS[name] for name in history.columns)]
    lines = as_text({head: table[head][at] for head in heads}, "table").splitlines()
    lines = ["after each round, counted again:", *lines, *shown_rounds(last, "--format csv")]
    say(*(f"  {line}" for line in lines))


def _say_check(run: RunRecord, client: int) -> None:
    """Print Python lines that compute a client's epsilons with dp-accounting, and the results."""
    from fl_shuffle.report.second_opinion import SecondOpinion

    opinion = SecondOpinion(run, client)
    # Not wrapped: they are to be pasted.
    print(*opinion.lines(), opinion.printing(), sep="\n")
    theirs = opinion.theirs()
    for name, ours in opinion.ours.items():
        shown = f", by dp-accounting {theirs[name]:.10g}" if name in theirs else ""
        print(f"# {name}: epsilon by fl-shuffle {ours:.10g}{shown}")
    if not theirs:
        print("# dp-accounting is not installed here: pip install dp-accounting")
    if "sum" in opinion.columns and "sum" not in opinion.ours:
        print("# sum: dp-accounting has no bound for sums of such noise")


def _bill(run: RunRecord, client: int, own: Mapping[str, Any]) -> list[str]:
    """Return what one client spent in one run, in words."""
    rounds = participation_table(run, client=client)["round"].tolist()
    columns = [
        f"{name} {own[f'{name}_epsilon']:.4g}"
        for name in ("shuffled", "sum", "local")
        if not math.isnan(own[f"{name}_epsilon"])
    ]
    if run.config["privacy"]["release"] == "sum":
        removed = add_remove_of(run.config, own["sum_epsilon"], run.delta)
        columns += [] if removed is None else [f"{removed:.4g} is {ADD_REMOVE_WORDS}"]
    # Of a user's own app the ledger knows no numbers of records.
    count = int(own["records"]) if run.meta["data"]["records"] else 0
    averaged = f"the mean of {count:,} record{'s' * (count != 1)}" if count else "its update"
    when = [run.meta[name] for name in ("started", "finished") if run.meta.get(name)]
    if own["noise"] == "none":
        return [
            f"{run.directory}: client {client}, {' to '.join(when)}",
            f"  reported in {own['rounds']} rounds: {_spans(rounds)}",
            f"  its updates left as they are, {averaged}: epsilon is infinite",
        ]
    # A budget of one report is solved for where a client asks for a total of the run.
    asked = (
        "asked for"
        if run.total_epsilon is None
        else f"total of the run{_against(run)}: epsilon {own['total_epsilon']:.4g}, hence"
    )
    return [
        f"{run.directory}: client {client}, {' to '.join(when)}",
        f"  {asked} (epsilon, delta) = ({own['epsilon0']:.4g}, {own['delta0']:.2g}) a report; "
        f"{own['noise']} noise of scale {own['scale']:.4g} on {averaged}",
        f"  reported in {own['rounds']} rounds: {_spans(rounds)}",
        f"  spent, at delta = {own['delta']:g}: epsilon {', '.join(columns)}",
    ]


def _against(run: RunRecord) -> str:
    """Return whom totals hold against, in words, where it is not the attacker of the headline."""
    told = run.config["budgets"].get("against", "release")
    return " against everybody (column local)" if told == "everybody" else ""


def _remark(note: tuple[int, str, str]) -> str:
    """Return a warning, an assumption or a remark of a run, and the round it belongs to."""
    number, kind, text = note
    said = text if text.startswith(kind) else f"{kind}: {text}"
    return f"round {number}, {said}" if number else said


def _spans(rounds: Sequence[int]) -> str:
    """Return numbers in runs, of each its first and last: 1-3, 5."""
    # In a run a number less its place stays the same.
    runs = groupby(enumerate(rounds), lambda pair: pair[1] - pair[0])
    spans = [[number for _, number in run] for _, run in runs]
    shown = (str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in spans)
    return ", ".join(shown) or "none"

"""`fl-shuffle ledger`: what the ledgers of runs say about a client, a round, everybody."""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np

from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS, add_remove_of
from fl_shuffle.budgets import names_of_lines
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.csv_files import whole_number
from fl_shuffle.errors import ConfigError, suggestion
from fl_shuffle.report.formats import as_text, make_folder, write_table
from fl_shuffle.report.record import RunRecord, read_run
from fl_shuffle.report.tables import TABLES, Columns, attendance_table, clients_table
from fl_shuffle.run_words import say, tell, terminal_width

MakeTable = Callable[[RunRecord], Columns]
SHOWN = 10
"""Clients that are named where the recount differs."""


def run(arguments: Namespace) -> int:
    asked_for, form, out = arguments.client, arguments.format, arguments.out
    if form == "parquet" and not out:
        raise ConfigError("--format parquet is no text; say where to write it with --out FILE")
    runs = [read_run(Path(name)) for name in arguments.run_directory]
    code = max(map(_recounted, runs)) if arguments.recount else 0
    tables: dict[str, MakeTable] = {
        **TABLES,
        "clients": partial(clients_table, recount=arguments.recount),
    }
    asked = "clients" if arguments.clients else "notes" if arguments.notes else "rounds"
    numbers = {id(run): client_number(run, asked_for) for run in runs} if asked_for else {}
    if numbers or arguments.round is not None:
        asked = "attendance"

        def attended(run: RunRecord) -> Columns:
            number = numbers.get(id(run))
            return attendance_table(run, client=number, round_number=arguments.round)

        tables[asked] = attended
    if out and asked == "rounds" and not Path(out).suffix:  # a folder: all four tables
        make_folder(Path(out))
        form = form.replace("table", "csv")
        for name, make in tables.items():
            path = Path(out, f"{name}.{form}")
            write_table(_joined(runs, make), path, form)
            print(path)
    elif out:
        write_table(_joined(runs, tables[asked]), Path(out), form)
    elif numbers and form == "table":
        for run in runs:
            say(*_bill(run, numbers[id(run)], tables))
    elif arguments.notes and form == "table":
        for run in runs:
            say(*[f"{run.directory}:"] * (len(runs) > 1), *map(_remark, run.notes))
    else:
        print(as_text(_joined(runs, tables[asked]), form, terminal_width(sys.stdout)))
    return code


def client_number(run: RunRecord, asked: str) -> int:
    """Return the number in a run's ledger of the client that `asked` means.

    Digits are that number; anything else, or what follows `name=`, is a name. Names are not in the
    ledger: they are read from the run's data, or from its budgets file. Raises `ConfigError` for a
    name that no client has.
    """
    number = whole_number(asked)
    if number is not None:
        return number
    name = asked.removeprefix("name=").strip()
    config = parse_config(run.config)
    names: Sequence[str] = ()
    if config.data.partition == "natural":
        # Whoever only asks for numbers does not wait for PyTorch.
        from fl_shuffle.data.partitions import client_names
        from fl_shuffle.data.sources import load_records

        names = client_names(config.data, load_records(config.data).train_clients) or ()
    elif config.budgets.distribution == "file":
        names = names_of_lines(config.budgets.file)
    clients = len(run.class_of)
    if name in names:
        return names.index(name)
    hint = suggestion(name, names) or f"a client's number is 0 to {clients - 1}"
    if not names:
        hint = f"the clients of this run have no names; give a number, 0 to {clients - 1}"
    raise ConfigError(f"--client {asked!r}: no client of {run.directory} has this name; {hint}")


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
    """One table; with several runs, their names stand in the first column."""
    found = [make(record) for record in records]
    if len(found) == 1:
        return found[0]
    sizes = [len(next(iter(table.values()))) for table in found]
    return {"run": np.repeat([record.name for record in records], sizes)} | {
        name: np.concatenate([table[name] for table in found]) for name in found[0]
    }


def _bill(run: RunRecord, client: int, tables: Mapping[str, MakeTable]) -> list[str]:
    """What one client spent in one run, in words."""
    rounds = tables["attendance"](run)["round"].tolist()
    own = {name: values[client] for name, values in tables["clients"](run).items()}
    columns = [
        f"{name} {own[f'{name}_epsilon']:.4g}"
        for name in ("proven", "sum", "local")
        if not math.isnan(own[f"{name}_epsilon"])
    ]
    if run.config["privacy"]["release"] == "sum":
        removed = add_remove_of(run.config, own["sum_epsilon"], run.delta)
        columns += [] if removed is None else [f"{removed:.4g} is {ADD_REMOVE_WORDS}"]
    # Of a user's own app the ledger knows no numbers of records.
    count = int(own["records"]) if run.meta["data"]["records"] else 0
    averaged = f"the mean of {count:,} record{'s' * (count != 1)}" if count else "its update"
    when = [run.meta[name] for name in ("started", "finished") if run.meta.get(name)]
    return [
        f"{run.directory}: client {client}, {' to '.join(when)}",
        f"  asked for (epsilon, delta) = ({own['epsilon0']:.4g}, {own['delta0']:.2g}) a report; "
        f"{own['noise']} noise of scale {own['scale']:.4g} on {averaged}",
        f"  reported in {own['rounds']} rounds: {_spans(rounds)}",
        f"  spent, at delta = {own['delta']:g}: epsilon {', '.join(columns)}",
    ]


def _remark(note: tuple[int, str, str]) -> str:
    """A warning, an assumption or a remark of a run, and the round it belongs to."""
    number, kind, text = note
    said = text if text.startswith(kind) else f"{kind}: {text}"
    return f"round {number}, {said}" if number else said


def _spans(rounds: Sequence[int]) -> str:
    """Numbers in runs, of each its first and last: 1-3, 5."""
    # In a run a number less its place stays the same.
    runs = groupby(enumerate(rounds), lambda pair: pair[1] - pair[0])
    spans = [[number for _, number in run] for _, run in runs]
    shown = (str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in spans)
    return ", ".join(shown) or "none"

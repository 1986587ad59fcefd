"""Copy results to docs/research/reproductions, and make the README's table from them."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.reproduction.core import (
    ENTRY,
    Options,
    Target,
    execute,
    finished,
    rounded_down,
    rounded_up,
)
from benchmarks.reproduction.page import write_page
from benchmarks.reproduction.training import SHOWN_AS
from benchmarks.tables import between, markdown, read_csv
from fl_shuffle.errors import NotApplicableError

FOLDER = Path("docs") / "research" / "reproductions"
START = "<!-- made by scripts/reproduce publish: do not edit -->"
END = "<!-- end of what scripts/reproduce publish makes -->"
CLIENT_LEVEL = Path("mnist-client-level") / "accuracy_against_epsilon.csv"
RECORD_LEVEL = Path("mnist-record-level") / "accuracy.csv"
LOCAL_BUDGET = "local epsilon of a report"
EPSILONS = Path("mnist-epsilons") / "epsilons.csv"
HEADS = (
    *("Configuration", "Local epsilon per report", "Unit", "Test accuracy"),
    *("Epsilon, reports visible", "Proven / attack", "Epsilon, only sums visible"),
    "GSPA formula (not proven)",
)
LEFT_OUT = (
    *("mnist_clients_local_4", "mnist_clients_local_2", "mnist_clients_local_1.75"),
    *("mnist_clients_local_1", "mnist_clients_local_0.5"),
    *("mnist_record_unif3", "mnist_record_mixed"),
)
"""Rows that say what their neighbors say: they are on the page, not in the README."""


def publish(targets: Sequence[Target], options: Options, root: Path) -> Path:
    """Copy all results to docs/research/reproductions below ROOT, and update README.md.

    Raises `NotApplicableError` unless every target is finished, in full, with today's settings.
    """
    missing = [each.name for each in targets if options.fast or not finished(each, options)]
    if missing:
        raise NotApplicableError(
            f"publish: {missing[0]} has no full result with the present settings under "
            f"{options.out} ({len(missing)} of {len(targets)}); run scripts/reproduce all"
        )
    folder = root / FOLDER
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for target in targets:
        entry = json.loads((options.out / target.name / ENTRY).read_text())
        (folder / target.name).mkdir()
        for name in (ENTRY, *entry["tables"], *entry["figures"]):
            shutil.copyfile(options.out / target.name / name, folder / target.name / name)
    return _write_pages(targets, root)


def recount(targets: Sequence[Target], root: Path) -> Path:
    """Ask the present accountant again what the published MNIST runs cost, in all tables that say
    so; accuracies and times stay as they were measured.

    Raises `NotApplicableError` where the published runs have other settings than today's.
    """
    folder = root / FOLDER
    options = Options(folder, measured=folder)
    known = {target.name: target for target in targets}
    # The accountant's own table first, so that its time is that of counting.
    for name in (path.parent.name for path in (EPSILONS, CLIENT_LEVEL, RECORD_LEVEL)):
        before = finished(known[name], options)
        if before is None:
            raise NotApplicableError(
                f"recount: {name} was published with other settings; run it, and publish"
            )
        execute(known[name], options, None if name == EPSILONS.parent.name else before)
    return _write_pages(targets, root)


def _write_pages(targets: Sequence[Target], root: Path) -> Path:
    readme, folder = root / "README.md", root / FOLDER
    table = f"\n{expectations(folder)}"
    readme.write_text(between(readme.read_text(), START, END, table))
    return write_page(folder, [target.name for target in targets], whole=False)


def expectations(folder: Path) -> str:
    """What to expect on MNIST, as a Markdown table: accuracies from the CSV files of the training
    targets, epsilons from the accountant's own.

    Raises `NotApplicableError` where two of these tables give one epsilon differently.
    """
    lines = []
    accounted = {row["configuration"]: row for row in read_csv(folder / EPSILONS)}
    clients = read_csv(folder / CLIENT_LEVEL)
    clients.sort(key=lambda row: -float(row[LOCAL_BUDGET]))
    for row in [*clients, *read_csv(folder / RECORD_LEVEL)]:
        own = accounted[row["configuration"]]
        _require_same(row, own)
        name = Path(row["configuration"]).stem
        if name in LEFT_OUT:
            continue
        columns = ("shuffled", "sum", "shuffled_lower", "gspa")
        proven, sums, floor, said = (float(own[key]) for key in columns)
        client = LOCAL_BUDGET in row
        attack = f" (refuted: an attack reaches {rounded_down(floor)})"
        refuted = attack * (floor > said and not client)
        cells = (
            f"`{name}`",
            row[LOCAL_BUDGET] if client else _in_words(row["local budgets"]),
            "client" if client else "record",
            f"{float(row['accuracy']):.1%} ± {float(row['spread']):.1%}",
            rounded_up(proven),
            rounded_up(proven / floor),
            rounded_up(sums),
            f"{said:.3g}{refuted}",
        )
        lines.append(cells)
    return markdown(HEADS, lines)


def _in_words(budgets: str) -> str:
    """Write "constant 0.5" as "0.5", and "U(0.01, 2)" as "uniform on [0.01, 2]"."""
    plain = budgets.removeprefix("constant ")
    return re.sub(r"^U\((.*)\)$", r"uniform on [\1]", plain)


def _require_same(row: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Two tables were made at two times, perhaps by two accountants."""
    for shown, key in SHOWN_AS.items():
        if shown in row and not math.isclose(float(row[shown]), float(own[key]), rel_tol=1e-9):
            raise NotApplicableError(
                f"publish: {shown} of {row['configuration']} is {row[shown]} in one table and "
                f"{own[key]} in {EPSILONS}; run scripts/reproduce recount"
            )

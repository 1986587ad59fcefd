"""What a run says to a reader, in one wording for the screen, Flower's log and the report."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from fl_shuffle.configuration.sections import Config
    from fl_shuffle.flower.strategy import RoundOutcome

HEADINGS = ("round", "reports", "accuracy", "loss", "GSPA eps", "proven eps", "sum eps", "left")
WIDTHS = (9, 7, 8, 7, 8, 10, 7, 7)
"""Of the columns: a row fits into 80 characters."""
NARROWEST = 40
"""Lines are not wrapped for terminals below this width: nothing would be left of them."""
SAME = 0.02
"""A bound that is smaller by less than this share is no gain worth a word."""


def plain_words(
    epsilons: Mapping[str, float | str | None], *, headline: str, reports: int, rounds: int
) -> str:
    """What the run did for its most exposed client, in one sentence.

    `epsilons` are the columns' (nats, at the run's delta, of the worst client), `headline` is the
    column that holds for what is released, `reports` the fewest that a round had.
    """
    summed = headline == "sum"
    alone, bound = epsilons.get("local"), epsilons[headline]
    attack = epsilons.get("sum_lower" if summed else "lower")
    over = "1 round" if rounds == 1 else f"{rounds:,} rounds"
    how = "adding up" if summed else "shuffling"
    said = (
        f"a client's own reports, {over}: epsilon {number(alone)}; after {how} {reports:,} of them "
        f"in every round: {number(bound)}"
    )
    if alone is not None and bound is not None and float(bound) >= (1.0 - SAME) * float(alone):
        said += ", so that hides nobody"
    return said if attack is None else f"{said}; an attack reaches {number(attack)}"


def header(config: Config, directory: Path, warnings: Iterable[str]) -> list[str]:
    """What is about to run, and what the numbers will not cover."""
    # Inside: `fl-shuffle --help` reads this module, and shall not wait for NumPy.
    from fl_shuffle.accounting.rounds.trust import towards

    lines = [
        f"{config.data.clients} clients, {config.run.rounds} rounds, {config.training.schedule}; "
        f"{config.privacy.randomizer} reports, unit of privacy = {config.privacy.unit}, "
        f"delta = {config.privacy.target_delta:g}",
        f"the guarantee is towards {towards(config.privacy.release, config.privacy.shuffler)}",
        f"run directory: {directory}",
    ]
    return lines + [f"note: {text}" for text in warnings]


def cells(outcome: RoundOutcome, rounds: int, seconds: float | None) -> tuple[str, ...]:
    """One round's cells under `HEADINGS`, of so many rounds; `seconds` is what one takes, None
    where no times are told."""
    columns = outcome.spend.columns
    accuracy, loss = outcome.metrics.get("accuracy"), outcome.metrics.get("loss")
    return (
        f"{outcome.round_number}/{rounds}",
        str(outcome.spend.n_reports),
        "" if accuracy is None else f"{accuracy:.2%}",
        "" if loss is None else f"{loss:.4f}",
        number(columns["gspa"].worst),
        number(columns["proven"].worst),
        number(columns["sum"].worst),
        "" if seconds is None else f"{(rounds - outcome.round_number) * seconds:.0f} s",
    )


def row(texts: Iterable[str]) -> str:
    """Cells in their columns."""
    return "  ".join(text.rjust(width) for text, width in zip(texts, WIDTHS, strict=True)).rstrip()


def footer(summary: Mapping[str, Any]) -> list[str]:
    """The final numbers, each with its name and standing."""
    from fl_shuffle.accounting.guarantee import ratio_line
    from fl_shuffle.accounting.rounds.trust import towards

    accuracy = summary["accuracy"]
    lines = [""]
    if summary["stopped_early"]:
        lines.append(summary["stopped_early"])
    if accuracy is not None:
        lines.append(
            f"test accuracy {accuracy:.2%} after {summary['rounds']} rounds "
            f"(test records: {summary['test_data']})"
        )
    if summary["in_plain_words"] is not None:
        lines.append(f"in plain words: {summary['in_plain_words']}")
    lines.append(
        f"privacy: epsilon <= {number(summary['epsilon'])} at delta = {summary['delta']:g} for the "
        f"worst client (column {summary['headline'] or '-'}: proven, unit = {summary['unit']}, "
        f"{summary['relation']})"
    )
    lines.append(f"         towards {towards(summary['release'], summary['shuffler'])}")
    if summary["shuffler"] == "in-server" and summary["columns"]:
        local = number(summary["columns"]["local"]["epsilon"])
        lines.append(
            f"         towards the operator of the server, which shuffles, too: {local} "
            "(column local)"
        )
    if summary["records_not_covered"]:
        lines.append(
            f"         NOT COVERED: {summary['records_not_covered']} private records "
            "(see the notes above)"
        )
    for name, quantiles in summary["epsilon_quantiles"].items():
        if quantiles is not None:
            shares = ", ".join(f"{level} {number(value)}" for level, value in quantiles.items())
            lines.append(f"         over all clients, {name}: {shares}")
    for name, column in summary["columns"].items():
        shown = number(column["epsilon"])
        lines.append(f"  {name:<9} epsilon {shown:>10}  {column['status']}; {column['source']}")
        if column["note"]:
            lines.append(f"            {column['note']}")
        if name == "lower" and summary["proven_over_lower"] is not None:
            lines.append(f"            {ratio_line(summary['proven_over_lower'])}")
    lines += [f"assumed: {text}" for text in summary["assumptions"]]
    lines.append(f"run directory: {summary['run_directory']}")
    return lines


def wrapped(lines: Iterable[str], width: int | None) -> list[str]:
    """The lines, cut between words where they are wider than `width` (None: any width will do).

    What follows stands a little further in than its line; a word that is longer stays whole.
    """
    if width is None or width < NARROWEST:
        return list(lines)
    found: list[str] = []
    for line in lines:
        # What is said of a column stands below what its notes say.
        margin = len(line) - len(line.lstrip())
        indent = " " * (12 if margin else 4)
        found += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]  # fmt: skip
    return found


def number(value: float | str | None) -> str:
    """Four significant digits; `-` for a number that does not exist."""
    return "-" if value is None else f"{float(value):.4g}"

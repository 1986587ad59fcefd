"""What a run says to a reader, in one wording for the screen, Flower's log and the report."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from pathlib import Path

    from fl_shuffle.configuration.sections import Config
    from fl_shuffle.runs.events import RoundOutcome

HEADINGS = ("round", "reports", "accuracy", "loss", "GSPA", "proven", "sum")
WIDTHS = (9, 8, 9, 8, 8, 8, 8)
"""Of the columns: a row fits into 80 characters."""
HOPELESS = 10.0
"""More clips of noise than this are a warning: hundreds of rounds would hardly show a direction."""
MOST_ROWS = 20
"""Rounds that are printed where nothing is rewritten in place, besides the first and the last."""
NARROWEST = 40
"""Lines are not wrapped for terminals below this width: nothing would be left of them."""
ENTRIES = ("accuracy", "epsilon", "sums", "removed", "reports", "local", "attack", "GSPA")
"""What the final lines begin with; what does not fit stands below their third column."""
METRICS_STAY = (
    "metrics that clients return, and their evaluations, stay with them: they are exact numbers "
    "about private records"
)
MORE_TO_HIDE_AMONG = "more clients or smaller budgets"
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
    if headline == "local":
        return f"as clients declare their own training, {over}: epsilon {number(alone)}"
    how = "adding up" if summed else "shuffling"
    said = (
        f"a client's own reports, {over}: epsilon {number(alone)}; after {how} at least "
        f"{reports:,} of them in every round: {number(bound)}"
    )
    if hides_nobody(bound, alone):
        said += ", so that hides nobody"
    return said if attack is None else f"{said}; an attack reaches {number(attack)}"


def header(
    config: Config, directory: Path, warnings: Iterable[str], noise: str = "", budgets: str = ""
) -> list[str]:
    """What is about to run, and what the numbers will not cover."""
    times = config.privacy.reports_per_round
    each = f" of {times:,} reports a client" if times > 1 else ""
    lines = [
        f"{config.data.clients} clients, {config.run.rounds} rounds{each}, "
        f"{config.training.schedule}; "
        f"{config.privacy.randomizer} reports, unit of privacy = {config.privacy.unit}, "
        f"delta = {config.privacy.target_delta:g}",
        f"run directory: {directory}",
    ]
    lines[1:1] = [budgets] * bool(budgets)
    return lines + [noise] * bool(noise) + [f"note: {text}" for text in warnings]


def noise_words(clips: float, clients: int | None) -> str:
    """How much noise the mean report of so many clients has, in clips
    (`RandomizerPlan.noise_of_mean`); None: of clients that declare their training, whose steps are
    over batches of a size that nobody says."""
    over = " over the records of a client's step" if clients is None else ""
    said = f"noise of the mean: {number(clips)} clips{over}"
    if clips <= 1.0:
        return said
    enough = clips if clients is None else clients * clips**2
    who = "of them in each step" if clients is None else "clients"
    return f"{said}; about {float(f'{enough:.3g}'):,.0f} {who} would make it 1"


def shown_every(rounds: int) -> int:
    """Return k if every k-th of this many rounds is printed: 1, 2, 5, 10, 20, ..."""
    scale = 1
    while rounds > 5 * scale * MOST_ROWS:
        scale *= 10
    return next(step for step in (scale, 2 * scale, 5 * scale) if rounds <= step * MOST_ROWS)


def is_shown(number: int, rounds: int) -> bool:
    """Whether this round is printed: the first, the last, and every k-th (`shown_every`)."""
    return number in (1, rounds) or number % shown_every(rounds) == 0


def shown_rounds(rounds: int) -> list[str]:
    """A line that says which rounds are printed; none if all are."""
    step = shown_every(rounds)
    ordinal = {2: "2nd"}.get(step, f"{step}th")
    return [f"every {ordinal} round is shown; metrics.csv has all of them"] if step > 1 else []


def cells(outcome: RoundOutcome, rounds: int) -> tuple[str, ...]:
    """One round's cells under `HEADINGS`, of so many rounds."""
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
    )


def row(texts: Iterable[str]) -> str:
    """Cells in their columns."""
    return "  ".join(text.rjust(width) for text, width in zip(texts, WIDTHS, strict=True)).rstrip()


def footer(summary: Mapping[str, Any], place: Path | str | None = None) -> list[str]:
    """The final numbers, each with its standing: at most eight lines but for what went wrong.

    `place` is what the run's folder is called, by default its whole path.
    """
    folder = shlex.quote(str(place or summary["run_directory"]))
    lines = [f"! {summary['stopped_early']}"] if summary["stopped_early"] else []
    if summary["accuracy"] is not None:
        count = f"{summary['test_records']} " if summary["test_records"] else ""
        tested = f"on {count}{summary['test_data']} test records, after {summary['rounds']} rounds"
        lines.append(f"accuracy   {summary['accuracy']:<9.2%}{tested}")
    if summary["columns"]:
        lines += _epsilons(summary)
    if summary["records_not_covered"]:
        lines.append(
            f"! NOT COVERED: {summary['records_not_covered']} private records, whose use no "
            "epsilon counts (the notes say which)"
        )
    seeded = "simulation: noise is seeded, no guarantee for real data (run.entropy)"
    notes = f"{len(summary['assumptions'])} assumptions: fl-shuffle ledger {folder} --notes"
    lines.append(f"! {seeded}; {notes}" if summary["seeded"] else notes)
    lines.append(f"next: fl-shuffle report {folder}")
    return lines


def one_line(summary: Mapping[str, Any], place: Path | str) -> str:
    """The run in one line: `--quiet`."""
    accuracy = summary["accuracy"]
    shown = "" if accuracy is None else f"  accuracy {accuracy:.2%}"
    return (
        f"{place}{shown}  epsilon {number(summary['epsilon'])} {_claim(summary)}, delta "
        f"{summary['delta']:g}, unit {summary['unit']}"
    )


def _claim(summary: Mapping[str, Any]) -> str:
    """What the reported epsilon may claim."""
    column = summary["columns"].get(summary["headline"])
    return "proven" if column is None else str(column["status"])


def _entry(name: str, value: float | str | None, text: str) -> str:
    return f"{name:<11}{number(value):<8} {text}"


def _epsilons(summary: Mapping[str, Any]) -> list[str]:
    """The reported epsilon, what others see, what an attack reaches, what was published."""
    # Inside: `fl-shuffle --help` reads this module, and shall not wait for NumPy.
    from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS
    from fl_shuffle.accounting.guarantee import proof_over_attack
    from fl_shuffle.accounting.rounds.trust import towards

    summed, headline = summary["release"] == "sum", summary["headline"]
    columns = {name: column["epsilon"] for name, column in summary["columns"].items()}
    reported, local = float(summary["epsilon"]), columns["local"]
    median = (summary["epsilon_quantiles"][headline] or {}).get("p50")
    middle = f" (median {number(median)})" if median is not None else ""
    whom = f"whoever sees {'only sums of reports' if summed else 'the shuffled reports'}"
    if summary["shuffler"] != "in-server":
        whom = towards(summary["release"], summary["shuffler"])
    other, setting, seen = "sum", "sum", "only sums of reports are seen"
    if summed:
        other, setting, seen = "proven", "reports", "single reports are seen, shuffled"
    attack = columns["sum_lower" if summed else "lower"]
    ratio = None if attack is None else proof_over_attack(reported, float(attack))
    gain = "" if ratio is None else f": a better proof gains at most {ratio:.3g} times"
    alone, of_alone = local, "proven, against whoever runs the server, which shuffles"
    of_alone += " (privacy.shuffler)"
    if hides_nobody(reported, local):
        # A summary of version 0.1 has no advice.
        advice = summary.get("advice")
        of_alone = "a client's own noise alone: shuffling hides nobody here"
        of_alone += f"; {advice}" if advice else ""
    elif summary["shuffler"] != "in-server":
        alone = None
    entries = [
        ("epsilon", reported, f"{_claim(summary)} at delta {summary['delta']:g}, most exposed of "
                              f"{summary['clients']} clients{middle}, against {whom}"),
        # No summary of version 0.1 has it.
        ("  removed", summary.get("sum_epsilon_add_remove") if headline == "sum" else None,
         ADD_REMOVE_WORDS),
        ("  reports" if summed else "  sums", columns[other],
         f'proven, if {seen} (privacy.release = "{setting}")'),
        ("  local", alone, of_alone),
        ("  attack", attack, f"reached for certain{gain}"),
        # Of shuffled reports: with sums it stands in the rounds' lines alone.
        ("  GSPA", None if summed else columns["gspa"],
         "as published, sqrt(T) composition: no guarantee"),
    ]  # fmt: skip
    if headline == "local":
        nothing = "nothing: nobody checks what clients' training adds"
        return [_entry(*entries[0]), f"{'  proven':<11}{'-':<8} {nothing}"]
    return [_entry(*entry) for entry in entries if entry[1] is not None]


def hiding_advice(config: Mapping[str, Any]) -> str:
    """Return what could let shuffling hide a client: only settings that are not set already.

    `config` is a resolved configuration, `Config.to_dict()`.
    """
    found = []
    budgets = config["budgets"]
    several = budgets["distribution"] != "constant" and budgets["levels"] != 1
    if config["privacy"]["personalization"] == "noise" and several:
        found.append("fewer noise scales (budgets.levels)")
        found.append('one noise scale (privacy.personalization = "clipping")')
    return f"{', '.join([*found, MORE_TO_HIDE_AMONG])} would change that"


def hides_nobody(epsilon: float | str | None, local: float | str | None) -> bool:
    """Whether the reported epsilon is no smaller, worth a word, than a client's own noise gives."""
    if epsilon is None or local is None:
        return False
    return float(epsilon) >= (1.0 - SAME) * float(local)


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
        indent = " " * (20 if line[:11].strip() in ENTRIES else 12 if margin else 4)
        found += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]  # fmt: skip
    return found


def number(value: float | str | None) -> str:
    """Four significant digits; `-` for a number that does not exist."""
    return "-" if value is None else f"{float(value):.4g}"


def say(*lines: str, out: TextIO | None = None) -> None:
    """Print lines of text (to stdout), wrapped between words where a terminal shows them."""
    out = sys.stdout if out is None else out
    print("\n".join(wrapped(lines, terminal_width(out))), file=out, flush=True)


def terminal_width(out: TextIO) -> int | None:
    """Characters in a line of the terminal behind `out`; None if there is none."""
    return shutil.get_terminal_size().columns if out.isatty() else None


def tell(text: str) -> None:
    """Say what is being done to whoever waits at the terminal; nothing of it is a result."""
    if text and sys.stderr.isatty():
        say(f"{text} ...", out=sys.stderr)


@contextmanager
def waiting() -> Iterator[Callable[[str], None]]:
    """Within it the returned function rewrites one line on the terminal for whoever waits; nothing
    of it is a result, nothing stays, and without a terminal nothing is written."""
    width = terminal_width(sys.stderr)

    def rewrite(text: str) -> None:
        if width is not None:
            shown = text[: width - 1].ljust(width - 1)
            print(f"\r{shown}", end="", file=sys.stderr, flush=True)

    try:
        yield rewrite
    finally:
        if width is not None:
            print("\r" + " " * (width - 1), end="\r", file=sys.stderr, flush=True)

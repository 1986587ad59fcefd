"""What a run says to a reader, in one wording for the screen, Flower's log and the report."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from fl_shuffle.configuration.sections import ERROR, ESTIMATED

if TYPE_CHECKING:
    from pathlib import Path

    from fl_shuffle.configuration.sections import Config
    from fl_shuffle.runs.events import RoundOutcome

WIDTHS = {
    "round": 9, "reports": 8, "accuracy": 9, "loss": 8,
    "GSPA": 8, "RDP": 8, "shuffled": 8, "sum": 8, "epsilon": 8,
}  # fmt: skip
"""Of the columns, by what stands above them: a row fits into 80 characters."""
NOT_PURE = ("gaussian", "discrete-gaussian", "declared")
"""Randomizers whose reports have no pure budget: their runs have no column RDP."""
HOPELESS = 10.0
"""More noise than this multiple of the clipping norm is a warning: hundreds of rounds would hardly
show a direction."""
MOST_ROWS = 20
"""Rounds that are printed where nothing is rewritten in place, besides the first and the last."""
NARROWEST = 40
"""Lines are not wrapped for terminals below this width: nothing would be left of them."""
ENTRIES = (
    "accuracy", "epsilon", "meaning", "sums", "add-remove", "reports", "local", "lower bound",
    "GSPA", "RDP",
)  # fmt: skip
"""What the final lines begin with; what does not fit stands below their third column."""
PROTECTS_NOBODY = (
    "This run protects nobody: clients' updates are neither clipped nor hidden by noise "
    "(privacy.randomizer = 'none'), and epsilon is infinite"
)
ENTRY_WIDTH = 14
"""Characters before the number of such a line."""
METRICS_STAY = (
    "metrics that clients return, and their evaluations, stay with them: they are exact numbers "
    "about private records"
)
MORE_TO_HIDE_AMONG = "more clients or smaller budgets"
LEFT_OUT = "lifetime"
"""The kind of note that says how many clients a round leaves out, because of their budgets."""
SAME = 0.02
"""A bound that is smaller by less than this share is no gain worth a word."""
RARE = 0.01
"""The factor of the odds is stated for evidence that occurs this often by chance."""
NO_LIMIT = 1e6
"""Odds that may rise by more than this factor are not limited in any useful sense."""


def odds_factor(epsilon: float, delta: float) -> float:
    """Return how much evidence that chance brings with probability `RARE` or more can raise odds:
    from P(A) <= e^epsilon P(B) + delta."""
    return math.exp(min(epsilon, 700.0)) + delta / RARE


def plain_words(
    epsilons: Mapping[str, float | str | None], *, headline: str, reports: int, rounds: int
) -> str:
    """Return what the run did for its most exposed client, in one sentence.

    `epsilons` are the columns' (nats, at the run's delta, of the most exposed client), `headline`
    is the column that holds for what is released, `reports` the fewest that a round had.
    """
    summed = headline == "sum"
    alone, bound = epsilons.get("local"), epsilons.get(headline)
    attack = epsilons.get("sum_lower" if summed else "shuffled_lower")
    over = "1 round" if rounds == 1 else f"{rounds:,} rounds"
    if headline == "none":
        return f"clients' updates were seen as they are, {over}: epsilon is infinite"
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
    """Return what is about to run, and what the numbers will not cover."""
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
    lines[:0] = [PROTECTS_NOBODY] * (config.privacy.randomizer == "none")
    notes = [f"note: {text}" for text in warnings if text != PROTECTS_NOBODY]
    return lines + [noise] * bool(noise) + notes


def noise_words(times: float, clients: int | None) -> str:
    """Return how much noise the mean report of this number of clients has, in units of the clipping
    norm (`Calibration.noise_of_mean`).

    None: of clients that declare their training, whose steps are over batches of a size that
    nobody says."""
    over = " over the records of a client's step" if clients is None else ""
    said = f"noise of the mean: {number(times)} times the clipping norm{over}"
    if times <= 1.0:
        return said
    enough = times if clients is None else clients * times**2
    who = "of them in each step" if clients is None else "clients"
    return f"{said}; about {float(f'{enough:.3g}'):,.0f} {who} would make it 1"


def shown_every(rounds: int) -> int:
    """Return k if every k-th of this many rounds is printed: 1, 2, 5, 10, 20, ..."""
    scale = 1
    while rounds > 5 * scale * MOST_ROWS:
        scale *= 10
    return next(step for step in (scale, 2 * scale, 5 * scale) if rounds <= step * MOST_ROWS)


def is_shown(number: int, rounds: int) -> bool:
    """Return whether this round is printed: the first, the last, and every k-th (`shown_every`)."""
    return number in (1, rounds) or number % shown_every(rounds) == 0


def shown_rounds(rounds: int, whole: str = "metrics.csv") -> list[str]:
    """Return a line that says which rounds are printed; none if all are. `whole` has all of
    them."""
    step = shown_every(rounds)
    ordinal = {2: "2nd"}.get(step, f"{step}th")
    return [f"every {ordinal} round is shown; {whole} has all of them"] if step > 1 else []


def headings(config: Config) -> dict[str, str]:
    """Return what stands above the lines of a run's rounds, by column."""
    if config.privacy.randomizer == "none":
        return {name: name for name in (*list(WIDTHS)[:4], "epsilon")}
    left_out = ("epsilon", "RDP") if config.privacy.randomizer in NOT_PURE else ("epsilon",)
    return {name: name for name in WIDTHS if name not in left_out}


def cells(outcome: RoundOutcome, config: Config) -> dict[str, str]:
    """Return one round's cells under the run's `headings`."""
    columns = outcome.spend.columns
    accuracy, loss = outcome.metrics.get("accuracy"), outcome.metrics.get("loss")
    texts = {
        "round": f"{outcome.round_number}/{config.run.rounds}",
        "reports": str(outcome.spend.num_reports),
        "accuracy": "" if accuracy is None else f"{accuracy:.2%}",
        "loss": "" if loss is None else f"{loss:.4f}",
        "epsilon": number(outcome.spend.headline),
        **{
            name: number(columns[name.lower()].worst) for name in ("GSPA", "RDP", "shuffled", "sum")
        },
    }
    return {name: texts[name] for name in headings(config)}


def estimates(outcome: RoundOutcome, config: Config) -> str:
    """Return what an evaluation round has estimated, in a line; empty for other rounds."""
    found = outcome.metrics
    told = [
        f"{name} {found[f'{ESTIMATED}{name}']:.3g} +- {found[f'{ESTIMATED}{name}{ERROR}']:.2g}"
        for name in config.privacy.metrics
        if f"{ESTIMATED}{name}" in found
    ]
    said = f"round {outcome.round_number}, estimated from private reports (+- standard error): "
    return f"{said}{', '.join(told)}" if told else ""


def row(texts: Mapping[str, str]) -> str:
    """Return cells in their columns."""
    return "  ".join(text.rjust(WIDTHS[name]) for name, text in texts.items()).rstrip()


def footer(summary: Mapping[str, Any], place: Path | str | None = None) -> list[str]:
    """Return the final numbers, each with its standing: at most ten lines but for what went wrong.

    `place` is what the run's folder is called, by default its whole path.
    """
    folder = shlex.quote(str(place or summary["run_directory"]))
    # A summary of version 0.1 does not say who was left out.
    wrong = summary["stopped_early"], summary.get("left_out")
    lines = [f"! {text}" for text in wrong if text]
    if summary["accuracy"] is not None:
        count = f"{summary['test_records']} " if summary["test_records"] else ""
        tested = f"on {count}{summary['test_data']} test records, after {summary['rounds']} rounds"
        shown = f"{summary['accuracy']:.2%}"
        lines.append(f"{'accuracy':<{ENTRY_WIDTH}}{shown:<8} {tested}")
    if summary["columns"]:
        lines += _epsilons(summary)
    if summary["records_not_covered"]:
        lines.append(
            f"! NOT COVERED: {summary['records_not_covered']} private records, whose use no "
            "epsilon counts (the notes say which)"
        )
    if summary["headline"] == "none":
        return [*lines, f"next: fl-shuffle report {folder}"]
    seeded = "simulation: noise is seeded, no guarantee for real data (run.entropy)"
    notes = f"{len(summary['assumptions'])} assumptions: fl-shuffle ledger {folder} --notes"
    lines.append(f"! {seeded}; {notes}" if summary["seeded"] else notes)
    lines.append(f"next: fl-shuffle report {folder}")
    return lines


def one_line(summary: Mapping[str, Any], place: Path | str) -> str:
    """Return the run in one line: `--quiet`."""
    accuracy = summary["accuracy"]
    shown = "" if accuracy is None else f"  accuracy {accuracy:.2%}"
    said = f"epsilon {number(summary['epsilon'])}"
    if summary["headline"] == "none":
        return f"{place}{shown}  epsilon inf: this run protects nobody (privacy.randomizer)"
    if summary["columns"]:
        whom, operator = _attackers(summary)
        said += f" against {whom}"
        if operator is not None:
            said += f", {number(summary['columns']['local']['epsilon'])} against {operator}"
    return (
        f"{place}{shown}  {said}; {_claim(summary)}, delta {summary['delta']:g}, "
        f"unit {summary['unit']}"
    )


def _attackers(summary: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the attacker of the headline, and the operator of a server that shuffles (None:
    another party does)."""
    # Inside: `fl-shuffle --help` reads this module, and shall not wait for NumPy.
    from fl_shuffle.accounting.rounds.threat_model import attackers

    shuffler = summary["shuffler"]
    whom, *others = attackers(summary["release"], shuffler, summary["headline"])
    return whom.who, others[0].who if others and shuffler == "server" else None


def _claim(summary: Mapping[str, Any]) -> str:
    """Return what the reported epsilon may claim."""
    column = summary["columns"].get(summary["headline"])
    return "proven" if column is None else str(column["status"])


def _entry(name: str, value: float | str | None, text: str) -> str:
    return f"{name:<{ENTRY_WIDTH}}{number(value):<8} {text}"


def _epsilons(summary: Mapping[str, Any]) -> list[str]:
    """Return the reported epsilon, what others see, what an attack reaches, what was published."""
    # Inside: `fl-shuffle --help` reads this module, and shall not wait for NumPy.
    from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS
    from fl_shuffle.accounting.guarantee import gain_at_most, proof_over_attack

    summed, headline = summary["release"] == "sum", summary["headline"]
    if headline == "none":
        return [_entry("epsilon", math.inf, "nobody is protected: neither clip nor noise")]
    columns = {name: column["epsilon"] for name, column in summary["columns"].items()}
    reported, local = float(summary["epsilon"]), columns["local"]
    median = (summary["epsilon_quantiles"][headline] or {}).get("p50")
    middle = f" (median {number(median)})" if median is not None else ""
    whom, operator = _attackers(summary)
    other, setting, seen = "sum", "sum", "only sums of reports are seen"
    if summed:
        other, setting, seen = "shuffled", "reports", "single reports are seen, shuffled"
    attack = columns["sum_lower" if summed else "shuffled_lower"]
    ratio = None if attack is None else proof_over_attack(reported, float(attack))
    gain = "" if ratio is None else f": a better proof gains at most {gain_at_most(ratio)} times"
    claim, nobody = _claim(summary), ""
    if hides_nobody(reported, local):
        # A summary of version 0.1 has no advice.
        advice = summary.get("advice")
        nobody = "shuffling hides nobody here" + (f"; {advice}" if advice else "")
    entries = [
        ("epsilon", reported, f"against {whom}, {claim} at delta "
                              f"{summary['delta']:g}; most exposed of {summary['clients']} "
                              f"clients{middle}"),
        # As large, and second: the operator of such a server could look, too.
        ("epsilon", None if operator is None else local,
         f"against {operator} (privacy.shuffler), {': '.join(filter(None, (claim, nobody)))}"),
        ("  meaning", *_meaning(summary)),
        # No summary of version 0.1 has it.
        ("  add-remove", summary.get("sum_epsilon_add_remove") if headline == "sum" else None,
         ADD_REMOVE_WORDS),
        ("  reports" if summed else "  sums", columns[other],
         f'proven, if {seen} (privacy.release = "{setting}")'),
        ("  local", local if nobody and operator is None else None,
         f"a client's own noise alone: {nobody}"),
        ("  lower bound", attack, f"reached for certain{gain}"),
        # Of shuffled reports: with sums it stands in the rounds' lines alone.
        ("  GSPA", None if summed else columns["gspa"],
         "as published, sqrt(T) composition: no guarantee"),
        ("  RDP", None if summed else columns.get("rdp"), _of_renyi(summary)),
    ]  # fmt: skip
    if headline == "local":
        nothing = "nothing: nobody checks what clients' training adds"
        return [_entry(*entries[0]), f"{'  proven':<{ENTRY_WIDTH}}{'-':<8} {nothing}"]
    lines = [_entry(*entry) for entry in entries if entry[1] is not None]
    missing = summed and columns["shuffled"] is None and summary["columns"]["shuffled"].get("note")
    if missing:
        lines.append(f"{'  reports':<{ENTRY_WIDTH}}{'-':<8} if {seen}: {missing}")
    return lines


def _meaning(summary: Mapping[str, Any]) -> tuple[float | str, str]:
    """Return the factor that the reported epsilon puts on an attacker's odds, and what it is."""
    # Inside: `fl-shuffle --help` reads this module, and shall not wait for NumPy.
    from fl_shuffle.accounting.guarantee import gain_at_most

    factor = odds_factor(float(summary["epsilon"]), float(summary["delta"]))
    if factor > NO_LIMIT:
        return math.inf, "this epsilon limits an attacker's odds in no useful sense"
    seen = "sums" if summary["release"] == "sum" else "shuffled reports"
    about = "data" if summary["unit"] == "client" else "record"
    # Rounded up: the line says "largest".
    return gain_at_most(factor), (
        f"largest factor by which the {seen} raise the odds between two guesses about a client's "
        f"{about}, rare evidence aside (delta); for every client"
    )


def left_out(notes: Iterable[tuple[int, str, str]]) -> str | None:
    """Return how many clients the last round that left some out did without, and since when.

    `notes` are (round, kind, text) of a ledger; None where no round left a client out.
    """
    found = [(number, text) for number, kind, text in notes if kind == LEFT_OUT]
    if not found:
        return None
    (first, _), (last, text) = found[0], found[-1]
    return f"round {last}: {text}; clients were left out since round {first}"


def _of_renyi(summary: Mapping[str, Any]) -> str:
    """Return what the column `rdp` may claim in this run."""
    column = summary["columns"].get("rdp")  # No summary of versions 0.1 and 0.2 has it.
    if column is not None and column["status"] == "proven":
        return "proven, by Renyi divergences of the shuffled pair"
    return "as published, by Renyi divergences: no guarantee"


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
    """Return whether the reported epsilon is no smaller, worth a word, than a client's own noise
    gives."""
    if epsilon is None or local is None:
        return False
    return float(epsilon) >= (1.0 - SAME) * float(local)


def wrapped(lines: Iterable[str], width: int | None) -> list[str]:
    """Return the lines, cut between words where they are wider than `width` (None: any width will
    do).

    What follows stands a little further in than its line; a word that is longer stays whole.
    """
    if width is None or width < NARROWEST:
        return list(lines)
    found: list[str] = []
    for line in lines:
        # The statement about a column stands below its notes.
        margin = len(line) - len(line.lstrip())
        indent = " " * (
            ENTRY_WIDTH + 9 if line[:ENTRY_WIDTH].strip() in ENTRIES else 12 if margin else 4
        )
        found += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]  # fmt: skip
    return found


def number(value: float | str | None) -> str:
    """Return four significant digits; `-` for a number that does not exist."""
    return "-" if value is None else f"{float(value):.4g}"


def say(*lines: str, out: TextIO | None = None) -> None:
    """Print lines of text (to stdout), wrapped between words where a terminal shows them."""
    out = sys.stdout if out is None else out
    print("\n".join(wrapped(lines, terminal_width(out))), file=out, flush=True)


def terminal_width(out: TextIO) -> int | None:
    """Return characters in a line of the terminal behind `out`; None if there is none."""
    return shutil.get_terminal_size().columns if out.isatty() else None


def tell(text: str) -> None:
    """Write progress to the terminal; nothing of it is a result."""
    if text and sys.stderr.isatty():
        say(f"{text} ...", out=sys.stderr)


@contextmanager
def waiting() -> Iterator[Callable[[str], None]]:
    """Yield a function that rewrites one progress line on the terminal; nothing of it is a result,
    nothing stays, and without a terminal nothing is written."""
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

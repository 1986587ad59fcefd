"""What a configuration will cost: the part of `fl-shuffle bound` and `simulate --dry-run`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS
from fl_shuffle.accounting.attendance import SURPRISE
from fl_shuffle.accounting.bounds.sum_release.honest import sum_assumption
from fl_shuffle.accounting.guarantee import ratio_line
from fl_shuffle.cli.options import CommandAnswer
from fl_shuffle.configuration.sections import Config
from fl_shuffle.planner.cost import Cost, TotalCost, cost_of, trade_off_of
from fl_shuffle.planner.target import SOLVABLE, solve_configuration
from fl_shuffle.randomizers.total_budgets import against_everybody, planned_reports, solved_words
from fl_shuffle.report.formats import aligned, short
from fl_shuffle.runs.console_messages import (
    HOPELESS,
    PROTECTS_NOBODY,
    hiding_advice,
    noise_words,
    tell,
)
from fl_shuffle.sweeps.points import Sweep, parse_grid

EXAMPLE = 10_000
"""Numbers of a small model, where the real one's size is not known."""
NEAR_TOTAL = 0.9
"""A client that ends below this share of its total is told of."""
SHOWN_CLASSES = 20
"""Classes of clients in the printed table; JSON has all."""


def said_of_cost(config: Config) -> CommandAnswer:
    """Return the cost of all rounds."""
    tell(f"counting {config.run.rounds:,} rounds of {config.data.clients:,} clients")
    return _said(config, cost_of(config, tell))


def said_of_target(config: Config, name: str, epsilon: float) -> CommandAnswer:
    """Return the most (or least) of a setting that keeps the most exposed client within `epsilon`,
    and the cost with it."""
    tell(f"looking for {name}")
    value, solved, found = solve_configuration(config, name, epsilon)
    key, costs = SOLVABLE[name]
    head = f"{key} {'<=' if costs else '>='} {value:.6g} for epsilon <= {epsilon:g}"
    body, lines = _said(solved, found)
    return {name: value, **body}, [head, *lines]


def said_of_grid(config: Config, grid: Sequence[str]) -> CommandAnswer:
    """Return the cost of each combination of settings, and what it gains and loses."""
    rows = []
    for point in Sweep.of(config.to_dict(), parse_grid(grid), 1).points:
        tell(", ".join(f"{key} = {value}" for key, value in point.settings.items()))
        rows.append({**point.settings, **trade_off_of(point.config)})
    kind = "declared" if config.privacy.randomizer == "declared" else "proven"
    return rows, [
        f"{config.run.rounds} rounds, unit = {config.privacy.unit}, {kind} epsilon (most exposed "
        "client, "
        f"median) at delta = {config.privacy.target_delta:.3g}",
        *aligned([list(rows[0]), *(map(short, row.values()) for row in rows)]),
    ]


def said_of_time(config: Config) -> CommandAnswer:
    """Return how long the rounds will take here."""
    from fl_shuffle.federation.launch import worker_count
    from fl_shuffle.planner.run_time import run_time_of

    tell("playing some requests")
    times = run_time_of(config, worker_count(config))
    each, seconds = times.round, times.round * config.run.rounds
    said = {"round_seconds": each, "seconds": seconds}
    said |= {"data_seconds": times.data, "first_seconds": times.first}
    return said, [
        f"before the first round: data and features {times.data:.2g} s, compiling "
        f"{times.first:.2g} s, as measured just now; what is kept on disk is read the next time",
        f"time: about {seconds:.3g} s, {each:.2g} s a round, estimated from requests played here "
        "just now (without start-up, messages, accounting and evaluation)"
    ]  # fmt: skip


def _said(config: Config, found: Cost) -> CommandAnswer:
    if found.status == "none":
        body = {**asdict(found), "epsilon": None, "release": config.privacy.release}
        return {**body, "status": found.status}, [PROTECTS_NOBODY]
    body = {**asdict(found), "release": config.privacy.release, "status": found.status}
    body["proven_over_lower"] = found.tightness  # as version 0.2 calls it
    tables = [] if found.declared else [*_table(config, found), *_totals_table(config, found)]
    return body, [*_lines(config, found), *tables]


def _lines(config: Config, found: Cost) -> list[str]:
    """Return the number, and what must be known to read it."""
    summed, privacy = config.privacy.release == "sum", config.privacy
    lines = [
        f"{found.status} cost of {found.rounds} rounds, unit = {found.unit}: epsilon <= "
        f"{found.epsilon:.6g} at delta = {found.delta:.3g} for the most exposed client"
    ]
    if found.declared:
        lines.append(
            "nothing is proven: no noise is added to what clients send, and nobody checks that "
            "their training adds privacy.declared_sigma in each of privacy.declared_steps"
        )
    if not found.certain:
        lines.append(
            "batches and attendance are drawn: a run costs more than that with probability "
            f"{SURPRISE:g} at most, and counts what it really was"
        )
    if found.sum_epsilon_add_remove is not None:
        lines.append(f"epsilon {found.sum_epsilon_add_remove:.6g}: {ADD_REMOVE_WORDS}")
    if found.tightness is not None:
        lines.append(ratio_line(found.tightness))
    lines += _noise_lines(config, found)
    if summed and not found.declared:
        lines.append(f"assumes {sum_assumption(privacy.min_reports, privacy.assumed_honest)}")
    if summed and privacy.randomizer == "laplace" and config.data.records_per_client:
        lines.append(
            "with data.records_per_client the data are not read: reports of any number of "
            "coordinates up to 10^9 are allowed for, and a run that knows theirs may count less"
        )
    if not summed and not found.declared and not any(each.credit for each in found.classes):
        lines.append(
            "shuffling adds nothing here: every class is left with its own noise; "
            f"{hiding_advice(config.to_dict())}"
        )
    return lines


def _table(config: Config, found: Cost) -> list[str]:
    """Return the classes with the largest epsilons."""
    alone = "by itself" if config.privacy.release == "sum" else "without shuffler"
    rows = [["clients", "hides among", "epsilon0", "noise", "epsilon", alone, "lower"]]
    ranked = sorted(found.classes, key=lambda each: -each.epsilon)
    for each in ranked[:SHOWN_CLASSES]:
        numbers = each.epsilon0, each.noise_scale, each.epsilon, each.local, each.lower or None
        rows.append([str(each.clients), str(each.anonymity), *map(short, numbers)])
    lines = [f"  {line}" for line in aligned(rows)]
    if len(ranked) > SHOWN_CLASSES:
        lines.append(f"  and {len(ranked) - SHOWN_CLASSES} classes with smaller epsilon")
    return lines


def _totals_table(config: Config, found: Cost) -> list[str]:
    """Return what is planned for each total, the strictest first."""
    if not found.totals:
        return []
    head = ["total", "clients", "clipping norm", "noise", "one report", "all rounds", "of total"]
    rows = [
        [short(each.total), str(each.clients)]
        + [short(v) for v in (each.clip_norm, each.noise_scale, each.report_epsilon, each.epsilon)]
        + [f"{each.epsilon / each.total:.1%}"]
        for each in found.totals[:SHOWN_CLASSES]
    ]
    planned = f"planned for {planned_reports(config):,} reports a round (budgets.expected_share)"
    if against_everybody(config):
        planned = "against everybody, who opens the reports as well (budgets.against)"
    after = "seen alone as well" if against_everybody(config) else "if every report arrives"
    lines = [
        f"totals of the run, {planned}; epsilon of one report seen alone, and after all rounds "
        f"{after}:",
        *(f"  {line}" for line in aligned([head, *rows])),
    ]
    if len(found.totals) > SHOWN_CLASSES:
        lines.append(f"  and {len(found.totals) - SHOWN_CLASSES} larger totals")
    totals = np.repeat(
        [each.total for each in found.totals], [each.clients for each in found.totals]
    )
    lines += [f"  {words}" for words in [solved_words(config, totals)] if words]
    return lines + [f"  {words}" for words in _limit_lines(config, found)]


def _limit_lines(config: Config, found: Cost) -> list[str]:
    """Return why clients end far below their total, or nobody hides them, and what would help."""
    lines = []
    short_of = [each for each in found.totals if each.epsilon < NEAR_TOTAL * each.total]
    jumping = [each for each in short_of if each.limited_by == "jump"]
    if jumping:
        lines.append(
            f"{_clients_of(jumping)} cannot come nearer: their epsilon jumps beyond it with any "
            "less noise, where a bound stops to hide them; more rounds, or a smaller total, would "
            "lie on this side of the jump"
        )
    others = [each for each in short_of if each.limited_by != "jump"]
    if others:
        shuffled = config.privacy.release == "reports"
        lines.append(
            f"{_clients_of(others)} end below {NEAR_TOTAL:.0%} of it: "
            f"{'fewer distinct totals, more clients or ' if shuffled else ''}"
            "a larger budgets.expected_share would change that"
        )
    alone = [each for each in found.totals if each.limited_by == "own noise"]
    if alone:
        common = config.privacy.personalization == "clipping"
        lines.append(
            f"{_clients_of(alone)} are hidden by nobody, so that their own noise alone keeps it: "
            f"more clients{'' if common else ' of one total, personalization = clipping'} or fewer "
            "rounds would change that"
        )
    return lines


def _clients_of(rows: Sequence[TotalCost]) -> str:
    """Return which clients these are, in words: how many, and of which totals."""
    clients, totals = sum(each.clients for each in rows), [each.total for each in rows]
    ends = f"{totals[0]:g}" if len(totals) == 1 else f"{totals[0]:.4g} to {totals[-1]:.4g}"
    return f"{clients:,} clients with a total of {ends}"


def _noise_lines(config: Config, found: Cost) -> list[str]:
    """Return how much noise a round's mean has beside what a client may add to it, and what a
    client sends."""
    times, reports = found.noise_of_mean, round(config.training.participation * config.data.clients)
    if times is None:
        lines = []
    elif found.dimension is None:
        words = noise_words(times * EXAMPLE**0.5, None if found.declared else reports)
        at = f"{EXAMPLE:,} numbers (it grows with their root; the model's size is not known here)"
        lines = [f"{words}, for a model of {at}"]
    else:
        said = f"{noise_words(times, reports)} ({found.dimension:,} numbers)"
        lines = [f"warning: {said}" if times > HOPELESS else said]
    return lines + _report_lines(config, found)


def _report_lines(config: Config, found: Cost) -> list[str]:
    """Return what rounding does to reports, and their size where it is not that of one report of
    float32."""
    times, rounding, lines = config.privacy.reports_per_round, found.rounding, []
    if rounding is not None:
        lines.append(
            f"reports of {config.privacy.report_bits} bits: a coordinate has "
            f"{max(0.0, rounding.added_variance):.2%} more variance, and its mean a bias of "
            f"at most {rounding.worst_bias:.2g} noise scales"
        )
    if found.round_bytes is not None and (times > 1 or rounding is not None):
        megabytes = 1e-6 * found.round_bytes
        reports = "1 report" if times == 1 else f"{times:,} reports"
        lines.append(
            f"a client sends {reports} a round, {megabytes:,.3g} MB, and "
            f"{megabytes * config.run.rounds:,.3g} MB over the run"
        )
    return lines

"""What a configuration will cost: the part of `fl-shuffle bound` and `simulate --dry-run`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fl_shuffle.run_words import say, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fl_shuffle.api.costs import Cost
    from fl_shuffle.configuration.sections import Config
    from fl_shuffle.planner.run_time import RunTime

EXAMPLE = 10_000
"""Numbers of a small model, where the real one's size is not known."""
SHOWN_CLASSES = 20
"""Classes of clients in the printed table; JSON has all."""


def show_cost(config: Config, *, as_json: bool, time_too: bool = False) -> None:
    """The cost, and with `time_too` how long the rounds will take here."""
    from fl_shuffle.api.costs import cost

    tell(f"counting {config.run.rounds:,} rounds of {config.data.clients:,} clients")
    found = cost(config)
    times = _times(config) if time_too else []
    if as_json:
        extra = {"time": [asdict(one) for one in times]} if time_too else {}
        print(json.dumps({**_body(config, found), **extra}))
    else:
        say(*_lines(config, found), *(_time_lines(config, times) if time_too else []))


def show_solved(config: Config, name: str, epsilon: float, *, as_json: bool) -> None:
    """The most (or least) of a setting that keeps the worst client within `epsilon`, and the cost
    with it."""
    from fl_shuffle.api.costs import cost
    from fl_shuffle.planner.target import SOLVABLE, solve_configuration

    tell(f"looking for {name}")
    value, solved = solve_configuration(config, name, epsilon)
    found = cost(solved)
    if as_json:
        print(json.dumps({name: value, **_body(solved, found)}))
        return
    key, costs = SOLVABLE[name]
    head = f"{key} {'<=' if costs else '>='} {value:.6g} for epsilon <= {epsilon:g}"
    say(head, *_lines(solved, found))


def _body(config: Config, found: Cost) -> dict[str, Any]:
    plain = ("epsilon", "delta", "rounds", "unit", "proven_over_lower", "dimension",
             "noise_of_mean")  # fmt: skip
    return {
        **{name: _json(getattr(found, name)) for name in plain},
        "sum_epsilon_add_remove": _json(found.sum_add_remove),
        "release": config.privacy.release,
        "status": _status(found),
        "classes": [
            {**{name: _json(value) for name, value in asdict(each).items()}, **kind}
            for each, kind in zip(found.classes, found.noise, strict=True)
        ],
    }


def _status(found: Cost) -> str:
    if found.declared:
        return "as declared by the clients"
    return "proven" if found.certain else "expected"


def _lines(config: Config, found: Cost) -> list[str]:
    from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS
    from fl_shuffle.accounting.bounds.sum_release.honest import sum_assumption
    from fl_shuffle.accounting.guarantee import ratio_line
    from fl_shuffle.planner.cost import SURPRISE
    from fl_shuffle.report.formats import aligned, short

    standing = "declared" if found.declared else _status(found)
    summed, privacy = config.privacy.release == "sum", config.privacy
    lines = [
        f"{standing} cost of {found.rounds} rounds, unit = {found.unit}: epsilon <= "
        f"{found.epsilon:.6g} at delta = {found.delta:.3g} for the worst client"
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
    if found.sum_add_remove is not None:
        lines.append(f"epsilon {found.sum_add_remove:.6g}: {ADD_REMOVE_WORDS}")
    if found.proven_over_lower is not None:
        lines.append(ratio_line(found.proven_over_lower))
    lines += _noise_lines(config, found)
    if found.declared:
        return lines
    if summed:
        lines.append(f"assumes {sum_assumption(privacy.min_reports, privacy.assumed_honest)}")
    if summed and privacy.randomizer == "laplace" and config.data.records:
        lines.append(
            "with data.records the data are not read: reports of any number of coordinates up "
            "to 10^9 are allowed for, and a run that knows theirs may count less"
        )
    if not summed and not any(each.credit for each in found.classes):
        lines.append(
            "shuffling adds nothing here: every class is left with its own noise (fewer noise "
            "scales hide clients among each other: budgets.levels, privacy.personalization)"
        )
    ranked = sorted(zip(found.classes, found.noise, strict=True), key=lambda pair: -pair[0].epsilon)
    rows = [["clients", "hides among", "epsilon0", "noise", "epsilon",
             "by itself" if summed else "without shuffler", "lower"]]  # fmt: skip
    for each, kind in ranked[:SHOWN_CLASSES]:
        numbers = (kind["epsilon0"], kind["noise_scale"], each.epsilon, each.local)
        lower = f"{each.lower:.4g}" if each.lower else "-"
        rows.append([str(each.clients), str(each.anonymity), *map(short, numbers), lower])
    lines += [f"  {line}" for line in aligned(rows)]
    if len(ranked) > SHOWN_CLASSES:
        lines.append(f"  and {len(ranked) - SHOWN_CLASSES} classes with smaller epsilon")
    return lines


def _noise_lines(config: Config, found: Cost) -> list[str]:
    """How much noise a round's mean has beside what a client may add to it."""
    from fl_shuffle.run_words import HOPELESS, noise_words

    clips, reports = found.noise_of_mean, round(config.training.participation * config.data.clients)
    if clips is None:
        return []
    if found.dimension is None:
        clips *= EXAMPLE**0.5
        words = noise_words(clips, None if found.declared else reports)
        at = f"{EXAMPLE:,} numbers (it grows with their root; the model's size is not known here)"
        return [f"{words}, for a model of {at}"]
    said = f"{noise_words(clips, reports)} ({found.dimension:,} numbers)"
    lines = [f"warning: {said}" if clips > HOPELESS else said]
    times = config.privacy.reports_per_round
    if times > 1:
        megabytes = 4e-6 * times * found.dimension
        lines.append(
            f"a client sends {times:,} reports a round, {megabytes:,.3g} MB, and "
            f"{megabytes * config.run.rounds:,.3g} MB over the run"
        )
    return lines


def show_grid(config: Config, grid: Sequence[str], *, as_json: bool) -> None:
    """The cost of each combination of settings, and what it gains and loses."""
    from fl_shuffle.planner.cost import trade_off_of
    from fl_shuffle.sweeps.points import Sweep, parse_axis

    plan = Sweep.of(config.to_dict(), [parse_axis(text) for text in grid], 1)
    rows = []
    for point in plan.points:
        tell(", ".join(f"{key} = {value}" for key, value in point.settings.items()))
        rows.append({**point.settings, **trade_off_of(point.config)})
    if as_json:
        print(json.dumps([{name: _json(value) for name, value in row.items()} for row in rows]))
        return
    from fl_shuffle.report.formats import aligned, short

    heads = {
        "cohorts": "cohorts",
        "least_anonymity": "hides among: least",
        "median_anonymity": "median",
        "budget_lost": "budget lost",
        "worst_epsilon": "epsilon",
        "median_epsilon": "median",
    }
    keys = [axis.key for axis in plan.axes]
    cells = [[*keys, *heads.values()]]
    for row in rows:
        row["budget_lost"] = f"{row['budget_lost']:.1%}"
        cells.append([short(row[name]) for name in (*keys, *heads)])
    kind = "declared" if config.privacy.randomizer == "declared" else "proven"
    say(
        f"{config.run.rounds} rounds, unit = {config.privacy.unit}, {kind} epsilon (worst client, "
        f"median) at delta = {config.privacy.target_delta:.3g}",
        *aligned(cells),
    )


def _times(config: Config) -> list[RunTime]:
    from fl_shuffle.planner.run_time import estimate_run_time
    from fl_shuffle.simulation.launch import worker_count

    tell("playing some requests")
    return estimate_run_time(config, worker_count(config))


def _time_lines(config: Config, times: Sequence[RunTime]) -> list[str]:
    """For both values of `run.noise`."""
    lines = [
        f"time of {config.run.rounds} rounds, estimated from requests played on this machine just "
        "now (without start-up, messages, accounting and evaluation):"
    ]
    for one in times:
        said = one.reason
        if one.round_seconds is not None and one.seconds is not None:
            said = f"about {one.seconds:.3g} s, {one.round_seconds:.2g} s a round"
        lines.append(f"  run.noise = {one.mode:<11} {said}")
    return lines


def _json(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

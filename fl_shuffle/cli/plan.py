"""`fl-shuffle plan`: before a run, the noise a target needs or what a configuration will cost."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fl_shuffle.cli.bound import add_release_arguments
from fl_shuffle.cli.overrides import add_overrides
from fl_shuffle.errors import ConfigError
from fl_shuffle.simulation.progress import say, tell
from fl_shuffle.tasks.cost import SURPRISE, cost_of, trade_off_of

if TYPE_CHECKING:
    from fl_shuffle.accounting.queries.planned_noise import NoisePlan
    from fl_shuffle.configuration.sections import Config
    from fl_shuffle.tasks.run_time import RunTime

SUMMARY = "Before a run: the noise that reaches a privacy target, or what a configuration costs."

SHOWN_CLASSES = 20
"""Lines of the table; the JSON output has all classes."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG.toml", nargs="?", help="cost of this run")
    add_overrides(parser)
    parser.add_argument("--clients", type=int, metavar="N", help="reports in each round")
    parser.add_argument("--rounds", type=int, metavar="T", help="number of rounds")
    parser.add_argument("--epsilon", type=float, metavar="E", help="target over the whole run")
    parser.add_argument("--delta", type=float, metavar="D", help="target delta")
    parser.add_argument("--unit", choices=("client", "record"), help="what neighbours change")
    parser.add_argument("--records", type=int, metavar="B", help="records averaged in one report")
    parser.add_argument("--randomizer", choices=("gaussian", "laplace"), help="kind of noise")
    parser.add_argument("--clip", type=float, metavar="C", help="norm every report is clipped to")
    parser.add_argument(
        "--classes",
        metavar="SHARE:COUNT,...",
        help="personal clips under one common noise: share of the clip and number of clients",
    )
    parser.add_argument(
        "--participation",
        type=float,
        metavar="Q",
        help="each client takes part in a round by its own coin, and who did stays secret (1)",
    )
    add_release_arguments(parser)
    parser.add_argument(
        "--levels",
        metavar="K,K,...",
        help="with CONFIG: what rounding the budgets down to K levels would gain and lose",
    )
    parser.add_argument(
        "--time",
        action="store_true",
        help="with CONFIG: how long its rounds will take, for both values of run.noise: an "
        "estimate from requests played on this machine, which reads the data",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


TARGET_FLAGS = (
    *("clients", "epsilon", "delta", "unit", "records", "randomizer", "clip", "classes"),
    *("participation", "release", "assumed_honest"),
)


def run(arguments: argparse.Namespace) -> int:
    given = [name for name in TARGET_FLAGS if getattr(arguments, name) is not None]
    if arguments.config:
        if given:
            raise ConfigError(
                f"--{given[0]} belongs to a target, CONFIG to a cost; give one of the two "
                "(a configuration is changed with --set)"
            )
        if arguments.levels is not None and arguments.time:
            raise ConfigError("--time belongs to the cost of one configuration; leave out --levels")
        return _cost(arguments) if arguments.levels is None else _levels(arguments)
    if arguments.set or arguments.levels is not None or arguments.time:
        name = "--set" if arguments.set else "--time" if arguments.time else "--levels"
        raise ConfigError(f"{name} changes a configuration; name one")
    return _noise(arguments)


def _noise(arguments: argparse.Namespace) -> int:
    from fl_shuffle.accounting.bounds.participation import ASSUMPTION
    from fl_shuffle.accounting.bounds.sum_release.honest import sum_assumption
    from fl_shuffle.api.plans import noise_for

    if arguments.epsilon is None or arguments.delta is None or arguments.rounds is None:
        raise ConfigError("a target needs --epsilon, --delta and --rounds (or name a CONFIG.toml)")
    if (arguments.clients is None) == (arguments.classes is None):
        raise ConfigError("give exactly one of --clients and --classes")
    clients: Any = arguments.clients
    if arguments.classes is not None:
        clients = parse_classes(arguments.classes)
    options = {
        "noise": arguments.randomizer,
        "clip": arguments.clip,
        "unit": arguments.unit,
        "records": arguments.records,
        "participation": arguments.participation,
        "release": arguments.release,
        "assumed_honest": arguments.assumed_honest,
    }
    tell("looking for the noise")
    plan = noise_for(
        arguments.epsilon,
        arguments.delta,
        arguments.rounds,
        clients,
        {name: value for name, value in options.items() if value is not None},
    )
    if arguments.json:
        body = {**asdict(plan), "proven_over_lower": plan.proven_over_lower}
        print(json.dumps({name: _json(value) for name, value in body.items()}))
    else:
        _print_plan(plan, arguments.rounds)
        if arguments.participation not in (None, 1.0):
            say(f"assumes {ASSUMPTION}")
        if plan.release == "sum":
            words = sum_assumption(plan.reports, arguments.assumed_honest)
            say(f"assumes {words}")
    return 0


def parse_classes(text: str) -> list[tuple[float, int]]:
    """The (share, count) pairs of "SHARE:COUNT,SHARE:COUNT"."""
    classes = []
    for part in text.split(","):
        share, separator, count = part.partition(":")
        try:
            if not separator:
                raise ValueError
            classes.append((float(share), int(count)))
        except ValueError:
            raise ConfigError(
                f"--classes {text!r}: must look like SHARE:COUNT,..., e.g. 1:5000,0.2:5000"
            ) from None
    return classes


def _print_plan(plan: NoisePlan, rounds: int) -> None:
    from fl_shuffle.accounting.guarantee import ratio_line

    name = "sigma" if plan.noise == "gaussian" else "scale b"
    say(f"noise per coordinate: {plan.noise} {name} = {plan.scale:.6g}")
    say(f"  one report: standard deviation {plan.deviation:.4g} per coordinate")
    say(f"  mean of all reports: {plan.average_deviation:.4g} per coordinate")
    budget = f"epsilon0 = {plan.report_epsilon:.4g}"
    if plan.report_delta:
        budget += f", delta0 = {plan.report_delta:.3g}"
    say(f"  local budget of one report: {budget}")
    say(
        f"proven for the worst client over {rounds} rounds: epsilon <= {plan.epsilon:.6g} "
        f"at delta = {plan.delta:.3g}"
    )
    if plan.proven_over_lower is not None:
        say(ratio_line(plan.proven_over_lower))
    if plan.credit:
        hidden = "if reports were seen" if plan.release == "sum" else "without the shuffler"
        say(
            f"{hidden}: epsilon {plan.local_epsilon:.4g}, or "
            f"{plan.scale_without_shuffler / plan.scale:.3g} times the noise for the same target"
        )
    elif plan.release == "sum":
        say("adding up reports gains nothing here: no other noise counts")
    else:
        say(
            "shuffling adds nothing here: at the noise this target needs, other clients' reports "
            "do not hide this one better than its own noise does"
        )


def _config(arguments: argparse.Namespace, *more: str) -> Config:
    from fl_shuffle.api.configs import configured

    overrides = [*arguments.set, *more]
    if arguments.rounds is not None:
        overrides.append(f"run.rounds={arguments.rounds}")
    return configured(arguments.config, overrides)


def _levels(arguments: argparse.Namespace) -> int:
    """Fewer budget levels make larger cohorts and cost budget: both, side by side."""
    try:
        levels = [int(part) for part in arguments.levels.split(",")]
    except ValueError:
        levels = []
    if not levels or min(levels) < 1:
        raise ConfigError(
            f"--levels {arguments.levels!r}: must be whole numbers >= 1, e.g. --levels 5,10,20"
        )
    rows = []
    for level in [0, *sorted(set(levels), reverse=True)]:
        tell(f"counting with {level or 'as many'} levels")
        config = _config(arguments, f"budgets.levels={level}")
        rows.append({"levels": level, **trade_off_of(config)})
    if arguments.json:
        print(json.dumps([{name: _json(value) for name, value in row.items()} for row in rows]))
        return 0
    say(
        f"budgets rounded down to K levels (budgets.levels = K), {config.run.rounds} rounds, "
        f"unit = {config.privacy.unit}, proven epsilon (worst client, median) at "
        f"delta = {config.privacy.target_delta:.3g}"
    )
    say(
        f"{'K':>9}{'cohorts':>9}{'hides among: least':>20}{'median':>8}{'budget lost':>13}"
        f"{'epsilon':>9}{'median':>8}"
    )
    for row in rows:
        say(
            f"{row['levels'] or 'as given':>9}{row['cohorts']:9d}{row['least_anonymity']:20d}"
            f"{row['median_anonymity']:8d}{row['budget_lost']:13.1%}"
            f"{row['worst_epsilon']:9.4g}{row['median_epsilon']:8.4g}"
        )
    return 0


def _cost(arguments: argparse.Namespace) -> int:
    from fl_shuffle.accounting.guarantee import ratio_line
    from fl_shuffle.accounting.queries.planned_cost import cost_over_attack

    config = _config(arguments)
    tell(f"counting {config.run.rounds:,} rounds of {config.data.clients:,} clients")
    costs, kinds = cost_of(config)
    ratio = cost_over_attack(costs)
    worst = max(costs, key=lambda cost: cost.epsilon)
    if arguments.json:
        rows = [
            {**{name: _json(value) for name, value in asdict(cost).items()}, **kinds[cost.index]}
            for cost in costs
        ]
        body = {
            "epsilon": _json(worst.epsilon),
            "delta": config.privacy.target_delta,
            "rounds": config.run.rounds,
            "unit": config.privacy.unit,
            "release": config.privacy.release,
            "status": "proven" if config.training.participation == 1.0 else "expected",
            "proven_over_lower": ratio,
            "classes": rows,
        }
        if arguments.time:
            body["time"] = [asdict(one) for one in _times(config)]
        print(json.dumps(body))
        return 0
    certain = config.training.participation == 1.0
    say(
        f"{'proven' if certain else 'expected'} cost of {config.run.rounds} rounds, unit = "
        f"{config.privacy.unit}: epsilon <= {worst.epsilon:.6g} at delta = "
        f"{config.privacy.target_delta:.3g} for the worst client"
    )
    if not certain:
        say(
            f"batches and attendance are drawn: a run costs more than that with probability "
            f"{SURPRISE:g} at most, and counts what it really was"
        )
    if ratio is not None:
        say(ratio_line(ratio))
    summed = config.privacy.release == "sum"
    if summed:
        from fl_shuffle.accounting.bounds.sum_release.honest import sum_assumption

        words = sum_assumption(config.privacy.min_reports, config.privacy.assumed_honest)
        say(f"assumes {words}")
        if config.privacy.randomizer == "laplace" and config.data.records:
            say(
                "with data.records the data are not read: reports of any number of coordinates up "
                "to 10^9 are allowed for, and a run that knows theirs may count less"
            )
    elif not any(cost.credit for cost in costs):
        say("shuffling adds nothing here: every class is left with its own noise")
    alone = "         by itself" if summed else "  without shuffler"
    say(f"  clients  hides among  epsilon0     noise  epsilon{alone}    lower")
    ranked = sorted(costs, key=lambda cost: -cost.epsilon)
    for cost in ranked[:SHOWN_CLASSES]:
        kind = kinds[cost.index]
        say(
            f"{cost.clients:9d}{cost.anonymity:13d}{kind['epsilon0']:10.4g}"
            f"{kind['noise_scale']:10.4g}{cost.epsilon:9.4g}{cost.local:18.4g}"
            f"{_lower(cost.lower):>9}"
        )
    if len(ranked) > SHOWN_CLASSES:
        say(f"  and {len(ranked) - SHOWN_CLASSES} classes with smaller epsilon")
    if arguments.time:
        _print_times(_times(config), config.run.rounds)
    return 0


def _times(config: Config) -> list[RunTime]:
    from fl_shuffle.simulation.launch import worker_count
    from fl_shuffle.tasks.run_time import estimate_run_time

    return estimate_run_time(config, worker_count(config))


def _print_times(times: list[RunTime], rounds: int) -> None:
    say(
        f"time of {rounds} rounds, estimated from requests played on this machine just now "
        "(without start-up, messages, accounting and evaluation):"
    )
    for one in times:
        if one.round_seconds is None or one.seconds is None:
            say(f"  run.noise = {one.mode:<11} {one.reason}")
        else:
            each = f"{one.round_seconds:.2g} s a round"
            say(f"  run.noise = {one.mode:<11} about {one.seconds:.3g} s, {each}")


def _lower(value: float) -> str:
    return f"{value:.4g}" if value else "-"


def _json(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

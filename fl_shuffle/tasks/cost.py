"""What a configured run will cost each class of clients, before it is run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_shuffle.accounting.bounds.report_class import ReportClass
    from fl_shuffle.accounting.rounds.planning import ClassCost
    from fl_shuffle.configuration.sections import Config


def trade_off_of(config: Config) -> dict[str, Any]:
    """Anonymity, lost budget and proven epsilon of a configuration, over its clients.

    `budget_lost` is the mean share of its epsilon0 that a client gives up to be rounded down.
    """
    import numpy as np

    from fl_shuffle.budgets import make_budgets

    costs, _ = cost_of(config)
    clients = [cost.clients for cost in costs]

    def each(values: list[float]) -> Any:
        return np.repeat(np.array(values), clients)

    rounded = make_budgets(config.budgets, config.data.clients).epsilon
    exact = make_budgets(replace(config.budgets, levels=0), config.data.clients).epsilon
    anonymity, epsilon = each([c.anonymity for c in costs]), each([c.epsilon for c in costs])
    return {
        "cohorts": len(costs),
        "least_anonymity": int(anonymity.min()),
        "median_anonymity": int(np.median(anonymity)),
        "budget_lost": float(np.mean(1.0 - rounded / exact)),
        "worst_epsilon": float(epsilon.max()),
        "median_epsilon": float(np.median(epsilon)),
    }


def cost_of(config: Config) -> tuple[list[ClassCost], list[dict[str, float]]]:
    """Cost per class if all reports that are asked for arrive; and each class's noise.

    With partial participation batches and rounds are drawn: the cost is then that of batches as
    small, and of a client drawn as often, as happens with probability `SURPRISE` at most. It is the
    cost towards whom `privacy.release` names, of `privacy.assumed_honest` reports.
    """
    import numpy as np

    from fl_shuffle.accounting.bounds.report_class import NOISES, ReportClass
    from fl_shuffle.accounting.bounds.sum_release.honest import honest_reports
    from fl_shuffle.accounting.rounds.planning import plan_cost
    from fl_shuffle.accounting.rounds.sum_planning import drawn_sum_cost, sum_cost
    from fl_shuffle.budgets import make_budgets
    from fl_shuffle.errors import NotApplicableError
    from fl_shuffle.randomizer_plan import make_plan

    if config.data.records:
        records = np.full(config.data.clients, config.data.records, dtype=np.int64)
    else:
        from fl_shuffle.tasks.data import load_records, make_partition

        source = load_records(config.data)
        parts = make_partition(config.data, source.train_labels, source.classes)
        records = parts.sizes
    plan = make_plan(config, make_budgets(config.budgets, config.data.clients), records)
    counts = np.bincount(plan.class_of, minlength=len(plan.classes)).tolist()
    if any(kind.noise not in NOISES for kind in plan.classes):
        raise NotApplicableError(
            f"privacy.randomizer = {config.privacy.randomizer!r} has no known law to plan with; "
            "only its declared local budgets count"
        )
    share, delta = config.training.participation, config.privacy.target_delta
    rounds = rounds_taken(config.run.rounds, share, config.data.clients)
    classes = [
        ReportClass(kind.noise, kind.scale, kind.radius, kind.sensitivity, count)
        for kind, count in zip(plan.classes, counts, strict=True)
    ]
    kinds = [{"epsilon0": kind.epsilon0, "noise_scale": kind.scale} for kind in plan.classes]
    if config.training.schedule == "sequential":
        # Each report is answered by a model of its own, so the server sees it in its place.
        alone = [replace(kind, count=1) for kind in classes]
        costs = [plan_cost([kind], rounds, delta)[0] for kind in alone]
        return [replace(c, index=i, clients=counts[i]) for i, c in enumerate(costs)], kinds
    assumed = config.privacy.assumed_honest
    if config.privacy.release == "sum":
        if share == 1.0:
            return sum_cost(classes, rounds, delta, assumed_honest=assumed), kinds
        drawn = drawn_sum_cost(
            classes,
            config.run.rounds,
            delta,
            taken=rounds,
            participation=share,
            rare=0.5 * SURPRISE,
            assumed_honest=assumed,
        )
        return drawn, kinds
    present, seen_as = drawn_batch(classes, config.run.rounds, share)
    arrived = sum(kind.count for kind in present)
    colluders = arrived - honest_reports(assumed, arrived)
    costs = plan_cost(present, rounds, delta, colluders=colluders)
    found = {cost.index: cost for cost in costs}
    return [
        replace(found[seen], index=index, clients=counts[index])
        for index, seen in enumerate(seen_as)
        if counts[index]
    ], kinds


SURPRISE = 0.01


def rounds_taken(rounds: int, participation: float, clients: int) -> int:
    """So many rounds at most any of the clients takes part in, but for half of `SURPRISE`."""
    from scipy.stats import binom

    if participation == 1.0:
        return rounds
    return max(1, int(binom.isf(0.5 * SURPRISE / clients, rounds, participation)))


def drawn_batch(
    classes: list[ReportClass], rounds: int, participation: float
) -> tuple[list[ReportClass], list[int]]:
    """A batch no larger than any round's, but for half of `SURPRISE`; and each class's place in it.

    Classes too small to be sure of a report are pooled with the others of their noise, at the
    largest of their radii and sensitivities.
    """
    from scipy.stats import binom

    if participation == 1.0:
        return classes, list(range(len(classes)))
    cohorts: dict[tuple[str, float], list[int]] = {}
    for index, kind in enumerate(classes):
        cohorts.setdefault((kind.noise, kind.scale), []).append(index)
    rare = 0.5 * SURPRISE / (rounds * (len(classes) + len(cohorts)))

    def sure(count: int) -> int:
        return max(0, int(binom.ppf(rare, count, participation)))

    present = [replace(kind, count=sure(kind.count)) for kind in classes]
    seen_as = list(range(len(classes)))
    for members in cohorts.values():
        pooled = [index for index in members if not present[index].count]
        if pooled:
            rest = sure(sum(classes[index].count for index in members))
            rest -= sum(present[index].count for index in members)
            largest = replace(
                classes[pooled[0]],
                radius=max(classes[index].radius for index in pooled),
                sensitivity=max(classes[index].sensitivity for index in pooled),
                count=max(1, rest),
            )
            for index in pooled:
                seen_as[index] = len(present)
            present.append(largest)
    return present, seen_as

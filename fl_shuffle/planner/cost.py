"""What a configured run will cost each class of clients, before it is run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_shuffle.accounting.queries.planned_cost import ClassCost
    from fl_shuffle.accounting.reports import ReportClass
    from fl_shuffle.configuration.sections import Config
    from fl_shuffle.randomizer_plan import RandomizerPlan


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

    names = _names(config)
    rounded = make_budgets(config.budgets, config.data.clients, names).epsilon
    exact = make_budgets(replace(config.budgets, levels=0), config.data.clients, names).epsilon
    anonymity, epsilon = each([c.anonymity for c in costs]), each([c.epsilon for c in costs])
    return {
        "cohorts": len(costs),
        "least_anonymity": int(anonymity.min()),
        "median_anonymity": int(np.median(anonymity)),
        "budget_lost": float(np.mean(1.0 - rounded / exact)),
        "worst_epsilon": float(epsilon.max()),
        "median_epsilon": float(np.median(epsilon)),
    }


def plan_of(config: Config) -> tuple[RandomizerPlan, int | None]:
    """Every client's randomizer, and how many numbers a report has; None where only the run knows:
    of models of an app's own, and where data are not read."""
    import numpy as np

    from fl_shuffle.budgets import make_budgets
    from fl_shuffle.data.partitions import make_partition
    from fl_shuffle.data.sources import load_records
    from fl_shuffle.randomizer_plan import make_plan

    dimension = None
    if config.data.records or config.app.custom_client:
        records = np.full(config.data.clients, config.data.records or 1, dtype=np.int64)
    else:
        source = load_records(config.data)
        parts = make_partition(
            config.data, source.train_labels, source.classes, source.train_clients
        )
        records = parts.sizes
        dimension = _dimension(config, source.train_images.shape[1:], source.size)
    budgets = make_budgets(config.budgets, config.data.clients, _names(config))
    return make_plan(config, budgets, records), dimension


def cost_of(
    config: Config, planned: tuple[RandomizerPlan, int | None] | None = None
) -> tuple[list[ClassCost], list[dict[str, float]]]:
    """Cost per class if all reports that are asked for arrive; and each class's noise.

    With partial participation batches and rounds are drawn: the cost is then that of batches as
    small, and of a client drawn as often, as happens with probability `SURPRISE` at most; `lower`
    is what an attack on the reports reaches against a client drawn as often. It is the cost towards
    whom `privacy.release` names, of `privacy.assumed_honest` reports. Of clients that declare their
    training it is what they declare.
    """
    import numpy as np

    from fl_shuffle.accounting.bounds.sum_release.honest import honest_reports
    from fl_shuffle.accounting.queries.planned_cost import (
        ClassCost,
        client_class,
        proven_costs,
        with_lower,
    )
    from fl_shuffle.accounting.queries.planned_sums import drawn_sum_cost, sum_cost
    from fl_shuffle.accounting.reports import NOISES, ReportClass
    from fl_shuffle.accounting.rounds.local_guarantees import local_epsilon
    from fl_shuffle.errors import NotApplicableError

    plan, dimension = planned or plan_of(config)
    counts = np.bincount(plan.class_of, minlength=len(plan.classes))
    share, delta = config.training.participation, config.privacy.target_delta
    rounds = rounds_taken(config.run.rounds, share, config.data.clients)
    kinds = [{"epsilon0": kind.epsilon0, "noise_scale": kind.scale} for kind in plan.classes]
    if config.privacy.randomizer == "declared":
        alone = [local_epsilon(kind, rounds, delta) for kind in plan.classes]
        pairs = zip(alone, counts.tolist(), strict=True)
        return [
            ClassCost(index, count, 1, epsilon, epsilon, credit=False)
            for index, (epsilon, count) in enumerate(pairs)
        ], kinds
    if any(kind.noise not in NOISES for kind in plan.classes):
        raise NotApplicableError(
            f"privacy.randomizer = {config.privacy.randomizer!r} has no known law to plan with; "
            "only its declared local budgets count"
        )
    rounds *= config.privacy.reports_per_round  # each report is in a batch of its own
    classes = [
        ReportClass(kind.noise, kind.scale, kind.radius, kind.sensitivity, count)
        for kind, count in zip(plan.classes, counts.tolist(), strict=True)
    ]
    if config.training.schedule == "sequential":
        # Each report is answered by a model of its own, so the server sees it in its place.
        one = np.ones(1, dtype=np.int64)
        found = dict(
            enumerate(proven_costs([kind], one, rounds, delta)[0] for kind in plan.classes)
        )
        seen_as = list(range(len(plan.classes)))
    else:
        assumed = config.privacy.assumed_honest
        if config.privacy.release == "sum":
            if share == 1.0:
                costs = sum_cost(
                    classes, rounds, delta, assumed_honest=assumed, dimension=dimension
                )
                return costs, kinds
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
        if share < 1.0:
            present = [_as_accounted(kind, present) for kind in present]
        sizes = np.array([kind.count for kind in present], dtype=np.int64)
        seen = [client_class(kind) for kind in present]
        found = {cost.index: cost for cost in proven_costs(seen, sizes, rounds, delta, colluders)}
    costs = [
        replace(found[at], index=index, clients=int(counts[index]))
        for index, at in enumerate(seen_as)
        if counts[index]
    ]
    return with_lower(costs, plan.classes, counts, rounds, delta, dimension), kinds


def _names(config: Config) -> list[str] | None:
    """The clients' names, read only where a budgets file may call them so."""
    from fl_shuffle.data.partitions import client_names
    from fl_shuffle.data.sources import load_records

    if config.budgets.distribution != "file" or config.data.partition != "natural":
        return None
    return client_names(config.data, load_records(config.data).train_clients)


def _dimension(config: Config, shape: tuple[int, ...], classes: int) -> int | None:
    """How many coordinates a report has; None where own features decide it from the data."""
    from fl_shuffle.data.features import make_features
    from fl_shuffle.data.features.maps import FeatureMap
    from fl_shuffle.data.models import build_model

    features = make_features(config.data, shape)
    if isinstance(features, FeatureMap):
        shape = (features.dimension,)
    elif config.data.features != "none":
        return None
    model = build_model(config.model, shape, classes, config.run.seed)
    return sum(parameter.numel() for parameter in model.parameters())


SURPRISE = 0.01
"""How probable it may be that a drawn run costs more than what is planned."""


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


def _as_accounted(kind: ReportClass, present: list[ReportClass]) -> ReportClass:
    """Batches that are much alike share a curve, which takes up to the root of their size."""
    from fl_shuffle.accounting.reports import ROUND_EXACT_REPORTS

    cohort = (kind.noise, kind.scale)
    size = sum(other.count for other in present if (other.noise, other.scale) == cohort)
    if size <= ROUND_EXACT_REPORTS:
        return kind
    kept = math.floor(kind.count * (1.0 - 1.0 / math.sqrt(size)))
    return replace(kind, count=max(kept, min(kind.count, 1)))

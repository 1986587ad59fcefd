"""What a configured run will cost each class of clients, before it is run."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from fl_shuffle._internal.arrays import Counts, Vector
from fl_shuffle._internal.renamed import renamed_attribute
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.add_remove import add_remove_of
from fl_shuffle.accounting.attendance import SURPRISE, rounds_taken, surely
from fl_shuffle.accounting.bounds.sum_release.gaussian import drawn_variance, sum_epsilons
from fl_shuffle.accounting.bounds.sum_release.honest import honest_reports
from fl_shuffle.accounting.client_classes import ROUND_EXACT_REPORTS, ClientClass
from fl_shuffle.accounting.guarantee import proof_over_attack
from fl_shuffle.accounting.lower_bounds.certain_loss import certain_losses
from fl_shuffle.accounting.lower_bounds.sum_attack import sum_lower_column
from fl_shuffle.accounting.round_off import ROUND_UP
from fl_shuffle.accounting.rounds.local_guarantees import accounted_locally, local_epsilons
from fl_shuffle.accounting.rounds.sum_account import SumAccount, SumTable
from fl_shuffle.accounting.rounds.threat_model import ThreatModel
from fl_shuffle.budgets import make_budgets, require_readable
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import NotApplicableError
from fl_shuffle.randomizers.calibration import Calibration, make_plan
from fl_shuffle.randomizers.few_bits import RoundingCost
from fl_shuffle.randomizers.total_budgets import (
    Tell,
    against_everybody,
    beside_a_jump,
    searched,
    silent,
)


@dataclass(frozen=True)
class ClassCost:
    """What a run costs the clients of one class.

    Attributes
    ----------
    index : int
        Number of the class.
    clients : int
        Number of clients in it.
    anonymity : int
        Number of reports like theirs, their own included.
    epsilon0 : float
        Local budget of one report, in nats.
    noise_scale : float
        Noise scale of a report for that budget.
    epsilon : float
        What the release costs over all rounds, in nats; proven.
    local : float
        What their own noise says over all rounds, in nats; proven.
    lower : float
        What an attack certainly reaches, in nats (0: none that is known, or not looked for).
    credit : bool
        Whether the shuffler contributes at all.

    Notes
    -----
    All epsilons are at the same delta.
    """

    index: int
    clients: int
    anonymity: int
    epsilon0: float
    noise_scale: float
    epsilon: float
    local: float
    lower: float
    credit: bool


@dataclass(frozen=True)
class TotalCost:
    """What is planned for the clients of one total: how their reports are made, and their epsilon.

    Attributes
    ----------
    total : float
        What each of them may spend in the run.
    clients : int
        Number of clients with this total.
    clip_norm : float
        Norm that its update (or its records) are clipped to.
    noise_scale : float
        Noise scale of a report.
    report_epsilon : float
        Epsilon of one report against an attacker who sees it alone.
    epsilon : float
        What all rounds cost if all reports arrive that are asked for; with
        `budgets.against = "everybody"`, seen alone.
    limited_by : str
        What keeps shuffled reports from less noise: "total", "jump" (with less, epsilon jumps
        beyond the total), or "own noise" (nobody hides the client, so that its own noise alone
        keeps the total).

    Notes
    -----
    All epsilons are in nats, at the run's delta.
    """

    total: float
    clients: int
    clip_norm: float
    noise_scale: float
    report_epsilon: float
    epsilon: float
    limited_by: str = "total"


@dataclass(frozen=True)
class Cost:
    """What a run will cost, for replacing one `unit` of the most exposed client.

    Attributes
    ----------
    epsilon : float
        Epsilon of the most exposed client, in nats at `delta`; infinite without any privacy.
    delta : float
        The target delta.
    rounds : int
        Number of rounds.
    unit : {"record", "client"}
        What neighbors replace.
    certain : bool
        Whether every client takes part in every round, so that `epsilon` is proven beforehand.
        Otherwise it is exceeded with probability `SURPRISE` at most, and the run counts what really
        happened.
    tightness : float or None
        `epsilon` over what an attack certainly reaches (None: no attack is known).
    classes : tuple of ClassCost
        Costs of each class of clients; empty without any privacy.
    dimension : int or None
        Number of coordinates of a report (None: only the run knows).
    noise_of_mean : float or None
        Length of the noise of a round's mean report over its clipping norm, for `dimension` numbers
        (where that is None, for one number).
    sum_epsilon_add_remove : float or None
        `epsilon` for add-remove neighbors, to compare with accountants of central DP-SGD: no
        guarantee (None: reports are seen, or it does not apply).
    declared : bool
        Whether clients train privately themselves: then nothing of it is proven, and the noise is
        that of steps over one record each.
    totals : tuple of TotalCost
        What is planned for each distinct total of the run, smallest first (empty: budgets are of
        reports).
    round_bytes : int or None
        Bytes of a client's reports in a round (None: only the run knows the size of a report).
    rounding : RoundingCost or None
        What `privacy.report_bits` does to a coordinate of a report (None: reports are float32).
    """

    epsilon: float
    delta: float
    rounds: int
    unit: str
    certain: bool
    tightness: float | None
    classes: tuple[ClassCost, ...]
    dimension: int | None
    noise_of_mean: float | None
    sum_epsilon_add_remove: float | None
    declared: bool
    totals: tuple[TotalCost, ...] = ()
    round_bytes: int | None = None
    rounding: RoundingCost | None = None

    proven_over_lower = renamed_attribute("proven_over_lower", "tightness")

    @property
    def status(self) -> str:
        """What `epsilon` is, in one word."""
        if not self.classes:
            return "none"
        return "declared" if self.declared else "proven" if self.certain else "expected"


def cost_of(config: Config, tell: Tell = silent) -> Cost:
    """Return what a configuration will cost if all reports that are asked for arrive.

    With partial participation batches and rounds are drawn: the cost is then that of batches as
    small, and of a client drawn as often, as happens with probability `SURPRISE` at most; `lower`
    is what an attack on the reports reaches against a client drawn as often. It is the cost towards
    whom `privacy.release` names, of `privacy.assumed_honest` reports. Of clients that declare their
    training it is what they declare. Raises `FlShuffleError`.
    """
    plan, dimension = plan_of(config, tell)
    if config.privacy.randomizer == "none":
        return Cost(
            math.inf, config.privacy.target_delta, config.run.rounds, config.privacy.unit,
            certain=True, tightness=None, classes=(), dimension=dimension,
            noise_of_mean=0.0, sum_epsilon_add_remove=None, declared=False,
        )  # fmt: skip
    classes = _class_costs(config, plan, dimension)
    if plan.totals is not None:
        # No client takes part in a round that would take it above its total.
        most = dict(zip(plan.class_of.tolist(), plan.totals.tolist(), strict=True))
        classes = [replace(each, epsilon=min(each.epsilon, most[each.index])) for each in classes]
    aggregate, summed = config.training.schedule == "aggregate", config.privacy.release == "sum"
    share, delta = config.training.participation, config.privacy.target_delta
    epsilon, lower = (max(getattr(each, name) for each in classes) for name in ("epsilon", "lower"))
    return Cost(
        epsilon=epsilon,
        delta=delta,
        rounds=config.run.rounds,
        unit=config.privacy.unit,
        certain=share == 1.0,
        tightness=proof_over_attack(epsilon, lower or None),
        classes=tuple(classes),
        dimension=dimension,
        noise_of_mean=plan.noise_of_mean(dimension or 1, share) if aggregate else None,
        sum_epsilon_add_remove=add_remove_of(config.to_dict(), epsilon, delta) if summed else None,
        declared=config.privacy.randomizer == "declared",
        totals=_total_costs(config, plan, classes),
        round_bytes=None if dimension is None else plan.round_bytes(dimension),
        rounding=None if plan.few_bits is None else plan.few_bits.cost,
    )


def _total_costs(
    config: Config, plan: Calibration, classes: list[ClassCost]
) -> tuple[TotalCost, ...]:
    """Return a row for each distinct total.

    Where its clients differ, in records, the row holds the largest numbers.
    """
    if plan.totals is None:
        return ()
    cost = {each.index: each for each in classes}
    reports, spent = plan.classes.epsilon0[plan.class_of], plan.class_of.tolist()
    alone = against_everybody(config)
    after = np.array([cost[kind].local if alone else cost[kind].epsilon for kind in spent])
    hidden = np.array([cost[kind].credit for kind in spent])
    shuffled, jumps = searched(config), np.zeros(len(plan.totals), dtype=bool)
    if shuffled:
        jumps = beside_a_jump(config, plan.totals, int(plan.classes.records[plan.class_of[0]]))
    values, inverse = np.unique(plan.totals, return_inverse=True)
    rows = []
    for place, total in enumerate(values.tolist()):
        own = inverse == place
        clip, scale, report, spent_then = (
            float(each[own].max()) for each in (plan.clip, plan.scale, reports, after)
        )
        limit = "jump" if jumps[own].any() else "total"
        if shuffled and not hidden[own].any():
            limit = "own noise"
        rows.append(TotalCost(total, int(own.sum()), clip, scale, report, spent_then, limit))
    return tuple(rows)


def trade_off_of(config: Config) -> dict[str, Any]:
    """Return anonymity, lost budget and proven epsilon of a configuration, over its clients.

    `budget_lost` is the mean share of its epsilon0 that a client gives up to be rounded down.
    """
    costs = cost_of(config).classes
    if not costs:
        raise NotApplicableError("privacy.randomizer = 'none' has an infinite epsilon: no --grid")
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


def plan_of(config: Config, tell: Tell = silent) -> tuple[Calibration, int | None]:
    """Return every client's randomizer, and how many numbers a report has.

    The second is None where only the run knows: of models of an app's own, and where data are not
    read.
    """
    from fl_shuffle.data.partitions import make_partition
    from fl_shuffle.data.sources import load_records

    require_readable(config)
    dimension = None
    if config.data.records_per_client or config.app.custom_client:
        records = np.full(config.data.clients, config.data.records_per_client or 1, dtype=np.int64)
    else:
        source = load_records(config.data)
        parts = make_partition(
            config.data, source.train_labels, source.classes, source.train_clients
        )
        records = parts.sizes
        dimension = _dimension(config, source.train_images.shape[1:], source.size)
    budgets = make_budgets(config.budgets, config.data.clients, _names(config))
    return make_plan(config, budgets, records, tell), dimension


def _class_costs(config: Config, plan: Calibration, dimension: int | None) -> list[ClassCost]:
    classes, privacy, share = plan.classes, config.privacy, config.training.participation
    if bool(classes.is_noise("user").any()):
        raise NotApplicableError(
            f"privacy.randomizer = {privacy.randomizer!r} has no known distribution to compute "
            "with; only its declared local budgets count"
        )
    counts = np.bincount(plan.class_of, minlength=len(classes))
    rounds = rounds_taken(config.run.rounds, share, config.data.clients)
    rounds *= privacy.reports_per_round  # each report is in a batch of its own
    every = np.arange(len(classes))
    taken = np.full(len(classes), rounds)
    local = local_epsilons(accounted_locally(classes), every, taken, privacy.target_delta)
    anonymity, epsilon = np.ones_like(every), local
    # In a sequential schedule each report is answered by a model of its own: seen in its place.
    if privacy.randomizer != "declared" and config.training.schedule != "sequential":
        batch = [
            replace(kind, count=count) for kind, count in zip(classes, counts.tolist(), strict=True)
        ]
        if privacy.release == "sum" and share < 1.0:
            anonymity, epsilon = _of_drawn_sums(config, batch, rounds)
        else:
            anonymity, epsilon = _of_batches(config, batch, rounds, dimension)
    lower = np.zeros(len(classes))
    # As in a run, no attack on rounded reports is known to reach as much (`ROUNDED_LESS`).
    attacked = privacy.release == "reports" and not privacy.report_bits
    if attacked and privacy.randomizer != "declared":
        times = dict.fromkeys(np.flatnonzero(counts).tolist(), rounds)
        alone = dict(enumerate(local.tolist()))
        certain = certain_losses(classes, counts, times, alone, privacy.target_delta, dimension)
        lower[list(certain)] = list(certain.values())
        if share == 1.0:
            # A sum is computed from the shuffled reports: an attack on it is one on them.
            for index, value in _sums_reach(config, plan, rounds, dimension).items():
                lower[index] = max(lower[index], value)
    columns = (counts, anonymity, classes.epsilon0, classes.scale, epsilon, local, lower)
    rows = zip(*(each.tolist() for each in columns), strict=True)
    return [
        ClassCost(index, count, hidden, budget, scale, min(cost, alone), alone, low, cost < alone)
        for index, (count, hidden, budget, scale, cost, alone, low) in enumerate(rows)
        if count
    ]


def _sums_reach(
    config: Config, plan: Calibration, rounds: int, dimension: int | None
) -> dict[int, float]:
    """Return what the attack on the sums reaches against each class, if all are in every sum."""
    account = SumAccount.start(
        plan.classes,
        plan.class_of,
        schedule=config.training.schedule,
        assumed_honest=config.privacy.assumed_honest,
        dimension=dimension,
    ).after(np.ones(len(plan.class_of), dtype=bool), rounds)
    present = np.unique(plan.class_of).tolist()
    return dict(sum_lower_column(account, config.privacy.target_delta, present).epsilon)


def _of_batches(
    config: Config, batch: list[ClientClass], rounds: int, dimension: int | None
) -> tuple[Counts, Vector]:
    """Return for each class among how many it hides, and its epsilon, by the run's own accountant.

    To that it is one round in which several reports of every client leave, each in a batch of its
    own.
    """
    share, trust = config.training.participation, ThreatModel.of(config.to_dict())
    present, seen_as = drawn_batch(batch, config.run.rounds, share)
    arrived = sum(kind.count for kind in present)
    lost = arrived - honest_reports(trust.assumed_honest, arrived)
    if share < 1.0:
        alike = _reports_alike(present)
        present = [_as_accounted(kind, size) for kind, size in zip(present, alike, strict=True)]
    sizes = np.array([kind.count for kind in present])
    clients = int(sizes.sum())
    account = Accountant(
        present,
        np.repeat(np.arange(len(present)), sizes),
        unit=config.privacy.unit,
        schedule="aggregate",
        delta=config.privacy.target_delta,
        dimension=dimension,
        threat_model=replace(
            trust, assumed_honest=max(1, clients - lost), reports_per_round=rounds
        ),
    )
    each = account.preview(1, np.ones(clients, dtype=bool)).client_epsilons()
    epsilon = each[np.minimum(np.cumsum(sizes) - sizes, clients - 1)][seen_as]
    if trust.release == "sum":
        return np.full(len(batch), arrived - lost), epsilon
    return np.maximum(np.array(_reports_alike(present))[seen_as] - lost, 1), epsilon


def _of_drawn_sums(config: Config, batch: list[ClientClass], rounds: int) -> tuple[Counts, Vector]:
    """Return the same of `rounds` sums of Gaussian reports of clients drawn by public coins.

    Some of the sums hide less with probability half of `SURPRISE` at most.
    """
    if config.privacy.randomizer not in ("gaussian", "discrete-gaussian"):
        raise NotApplicableError(
            "sum: with training.participation < 1, this is computed for Gaussian reports only"
        )
    share, rare = config.training.participation, 0.5 * SURPRISE / config.run.rounds
    table = SumTable.of(batch, None)
    counts = np.array([kind.count for kind in batch])
    assumed = config.privacy.assumed_honest
    honest = honest_reports(assumed, surely(int(counts.sum()), share, rare) or 1)
    if assumed is None:
        variance = drawn_variance(table.scale, table.grid, counts, share, rare)
        mu = table.shift / np.sqrt(variance) * ROUND_UP
    else:
        # For every draw, the honest ones' noise is at least the smallest of everybody's.
        mu = table.mu(counts, honest)
    epsilon = sum_epsilons(config.privacy.target_delta, mu * math.sqrt(rounds))
    return np.full(len(batch), honest), epsilon


def _names(config: Config) -> list[str] | None:
    """Return the clients' names, read only where a budgets file may call them so."""
    from fl_shuffle.data.partitions import client_names
    from fl_shuffle.data.sources import load_records

    if config.budgets.distribution != "file" or config.data.partition != "natural":
        return None
    return client_names(config.data, load_records(config.data).train_clients)


def _dimension(config: Config, shape: tuple[int, ...], classes: int) -> int | None:
    """Return how many coordinates a report has; None where own features decide it from the data."""
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


def drawn_batch(
    classes: list[ClientClass], rounds: int, participation: float
) -> tuple[list[ClientClass], list[int]]:
    """Return a batch no larger than any round's, and each class's place in it.

    Some round's is smaller with probability half of `SURPRISE` at most. Classes too small to be
    sure of a report are pooled with the others of their noise, at the largest of their radii and
    sensitivities.
    """
    if participation == 1.0:
        return classes, list(range(len(classes)))
    cohorts: dict[tuple[str, float, float], list[int]] = {}
    for index, kind in enumerate(classes):
        cohorts.setdefault((kind.noise, kind.scale, kind.step), []).append(index)
    rare = 0.5 * SURPRISE / (rounds * (len(classes) + len(cohorts)))
    sure = cache(partial(surely, participation=participation, rare=rare))  # few counts differ
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


def _as_accounted(kind: ClientClass, size: int) -> ClientClass:
    """Let batches that are much alike share a curve, which takes up to the root of their size."""
    if size <= ROUND_EXACT_REPORTS:
        return kind
    kept = math.floor(kind.count * (1.0 - 1.0 / math.sqrt(size)))
    return replace(kind, count=max(kept, min(kind.count, 1)))


def _reports_alike(present: list[ClientClass]) -> list[int]:
    """Return how many reports of the batch have the noise of each class, counted in one pass."""
    sizes = Counter[tuple[str, float, float]]()
    for kind in present:
        sizes[kind.noise, kind.scale, kind.step] += kind.count
    return [sizes[kind.noise, kind.scale, kind.step] for kind in present]

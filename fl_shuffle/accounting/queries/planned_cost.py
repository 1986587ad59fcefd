"""Before a run: what given reports will cost over many rounds, by the run's own accounting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.attacks.certain_loss import CertainLoss, most_exposed
from fl_shuffle.accounting.guarantee import proof_over_attack
from fl_shuffle.accounting.limits import MAX_ROUNDS
from fl_shuffle.accounting.reports import ReportClass
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.accounting.rounds.local_guarantees import accounted_locally, local_epsilon
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.accounting.rounds.shuffled_view import ShuffledView
from fl_shuffle.errors import InvalidValueError, require_integer, require_open_unit


@dataclass(frozen=True)
class ClassCost:
    """What a run costs the clients of one class; `anonymity` counts reports like theirs.

    `epsilon` is the smaller of the shuffled and the local guarantee over all rounds, `local` the
    latter, both proven; `lower` is what an attack certainly reaches (0: none that is known, or not
    looked for). All at the same delta. `credit` says whether the shuffler contributes at all.
    """

    index: int
    clients: int
    anonymity: int
    epsilon: float
    local: float
    credit: bool
    lower: float = 0.0


def cost_over_attack(costs: Sequence[ClassCost]) -> float | None:
    """The worst client's proven epsilon over what an attack certainly reaches; None without one."""
    lower = max((cost.lower for cost in costs), default=0.0)
    return proof_over_attack(max((cost.epsilon for cost in costs), default=None), lower or None)


def plan_cost(
    classes: Sequence[ReportClass],
    rounds: int,
    delta: float,
    *,
    colluders: int = 0,
    dimension: int | None = None,
) -> list[ClassCost]:
    """The proven cost of `rounds` equal rounds for each class of a batch that arrives whole.

    It is the number a run over such rounds would print. So many `colluders`' reports hide nobody:
    for each client those that would hide it best. Classes with no clients are left out. `dimension`
    of the reports sharpens `lower` only. Raises `InvalidValueError` if there is none.
    """
    known = [client_class(kind) for kind in classes]
    counts = np.array([kind.count for kind in classes], dtype=np.int64)
    costs = proven_costs(known, counts, rounds, delta, colluders)
    return with_lower(costs, known, counts, rounds, delta, dimension)


def proven_costs(
    classes: Sequence[ClientClass],
    counts: NDArray[np.int64],
    rounds: int,
    delta: float,
    colluders: int = 0,
) -> list[ClassCost]:
    """`plan_cost` without `lower`, in the order of the classes."""
    require_integer("rounds", rounds, minimum=1, maximum=MAX_ROUNDS)
    require_open_unit("delta", delta)
    members = np.flatnonzero(counts)
    if not members.size:
        raise InvalidValueError("classes", len(classes), "must hold at least one client")
    present = [classes[index] for index in members.tolist()]
    class_of = np.repeat(np.arange(len(present)), counts[members])
    view = ShuffledView(present, class_of, schedule="aggregate", unit="client")
    kinds = view.kinds(counts[members], colluders)
    library = RoundLibrary()
    costs = []
    alone = accounted_locally(ClassTable.of(present))
    for index, own, kind in zip(members.tolist(), alone, kinds, strict=True):
        local = local_epsilon(own, rounds, delta)
        credit = library.curve(kind).credit
        epsilon = min(local, library.epsilon({kind: rounds}, delta)) if credit else local
        size = 1 + sum(count for _, count in kind.others)
        costs.append(ClassCost(index, int(counts[index]), size, epsilon, local, credit))
    return costs


def with_lower(
    costs: Sequence[ClassCost],
    classes: Sequence[ClientClass],
    counts: NDArray[np.int64],
    rounds: int,
    delta: float,
    dimension: int | None,
) -> list[ClassCost]:
    """`costs` with what an attack on batches of everybody (`counts`) certainly reaches."""
    table = ClassTable.of(classes)
    worst = most_exposed(table, {cost.index: rounds for cost in costs})
    certain = CertainLoss(table, counts, dimension, delta)
    return [
        replace(
            cost,
            lower=certain.epsilon(
                cost.index, rounds, local=cost.local, recognition_only=cost.index != worst
            ),
        )
        for cost in costs
    ]


def client_class(kind: ReportClass) -> ClientClass:
    """The same reports as a run's accountant sees them; no budget was asked for."""
    budget = kind.ratio if math.isfinite(kind.ratio) else 0.0
    return ClientClass(kind.noise, kind.scale, kind.radius, kind.sensitivity, budget, 0.0, 1)

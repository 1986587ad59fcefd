"""The guarantee of a client's own noise, the shuffler ignored; and when nothing better exists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_epsilons
from fl_shuffle.accounting.rounds.class_table import ClassTable, distinct_rows
from fl_shuffle.accounting.rounds.declared_round import declared_local_epsilon
from fl_shuffle.accounting.rounds.events import ClientClass

LOCAL_LAWS = 256
"""With more distinct Laplace exposures, or declared epsilons, than this they are rounded up ..."""
LOCAL_LADDER = 0.01
"""... by this share at most ..."""
LOCAL_RUNGS = 1000
"""... or to what lies so many rungs below the largest."""

Vector = NDArray[np.float64]


def local_epsilon(client: ClientClass, rounds: int, delta: float) -> float:
    """Epsilon at `delta` of `rounds` reports of one client, the shuffler ignored; proven.

    Gaussian noise: mu = sensitivity / scale, T-fold mu sqrt(T), exact conversion (Dong, Roth, Su
    2022). Laplace noise: the exact T-fold composition of the worst pair. A randomizer without a
    known law: the same for the worst pair within the declared (epsilon0, delta0).
    """
    if rounds == 0:
        return 0.0
    if client.noise in ("gaussian", "declared"):
        return gaussian_epsilon(delta, client.exposure * math.sqrt(rounds))
    if client.noise == "laplace":
        return laplace_epsilon(delta, client.exposure, rounds)
    return declared_local_epsilon(client.epsilon0, client.delta0, rounds, delta)


def accounted_locally(classes: ClassTable) -> ClassTable:
    """The classes with at most some hundred distinct local laws, none of them better.

    Where Laplace exposures, or declared epsilons, are many, they are rounded up to a ladder that
    hangs on the largest of them, by 1% at most: over many rounds each costs a convolution. Gaussian
    noise needs none: its rounds are a closed formula.
    """
    laplace, user = classes.is_noise("laplace"), classes.is_noise("user")
    exposure, epsilon0 = _ladder(classes.exposure[laplace]), _ladder(classes.epsilon0[user])
    if exposure is None and epsilon0 is None:
        return classes
    changed = replace(classes, sensitivity=classes.sensitivity.copy(), radius=classes.radius.copy(),
                      epsilon0=classes.epsilon0.copy())  # fmt: skip
    if exposure is not None:
        move = np.minimum(classes.sensitivity, 2.0 * classes.radius)[laplace]
        changed.sensitivity[laplace] = np.maximum(exposure * classes.scale[laplace], move)
        # A move counts as at most twice the radius.
        np.maximum(changed.radius, 0.5 * changed.sensitivity, out=changed.radius, where=laplace)
    if epsilon0 is not None:
        changed.epsilon0[user] = epsilon0
    return changed


def _ladder(values: Vector) -> Vector | None:
    """The values rounded up to a ladder below their largest; None where they are few."""
    if np.unique(values).size <= LOCAL_LAWS:
        return None
    largest, step = float(values.max()), math.log1p(LOCAL_LADDER)
    # What is almost nothing beside the largest may be raised by more.
    at_least = np.maximum(values, largest * math.exp(-step * LOCAL_RUNGS))
    rungs = np.floor(np.log(largest / at_least) / step)
    # Round-off of a logarithm must not lower anybody.
    return np.maximum(largest * np.exp(-step * rungs), at_least)


def local_epsilons(
    classes: Sequence[ClientClass],
    class_of: NDArray[np.int64],
    rounds: NDArray[np.int64],
    delta: float,
) -> Vector:
    """`local_epsilon` of every client [n], each with its own number of rounds [n]."""
    table = ClassTable.of(classes)
    values = np.zeros(len(class_of))
    gaussian = _gaussian(table)[class_of]
    mu = table.exposure[class_of[gaussian]] * np.sqrt(rounds[gaussian])
    values[gaussian] = gaussian_epsilons(delta, mu)
    rest = np.flatnonzero(~gaussian)
    if rest.size:
        alike = _local_laws(table)[class_of[rest]] * (int(rounds.max()) + 1) + rounds[rest]
        _, first, inverse = np.unique(alike, return_index=True, return_inverse=True)
        found = [
            local_epsilon(table[int(class_of[client])], int(rounds[client]), delta)
            for client in rest[first].tolist()
        ]
        values[rest] = np.array(found)[inverse.reshape(-1)]
    return values


def _gaussian(table: ClassTable) -> NDArray[np.bool_]:
    """Which classes [classes] compose as Gaussian mechanisms do."""
    return np.asarray(table.is_noise("gaussian") | table.is_noise("declared"))


def _local_laws(table: ClassTable) -> NDArray[np.int64]:
    """A number [classes] for each class, the same where `local_epsilon` is."""
    user = table.is_noise("user")
    delta0 = np.where(user, table.delta0, 0.0)
    return distinct_rows(table.noise, table.exposure, delta0).inverse


def worst_local_epsilons(
    classes: Sequence[ClientClass],
    class_of: NDArray[np.int64],
    rounds: NDArray[np.int64],
    group_of: NDArray[np.int64],
    groups: int,
    delta: float,
) -> Vector:
    """The largest `local_epsilon` among the clients of each group [groups]; 0 for an empty group.

    Only clients that may be the worst are evaluated: in each group those that no other client of
    the same kind of noise surpasses in both exposure and rounds.
    """
    table = ClassTable.of(classes)
    gaussian = _gaussian(table)[class_of]
    worst = np.zeros(groups)
    if gaussian.any():
        mu = np.zeros(groups)
        exposure = table.exposure[class_of[gaussian]]
        np.maximum.at(mu, group_of[gaussian], exposure * np.sqrt(rounds[gaussian]))
        worst = gaussian_epsilons(delta, mu)
    rest = np.flatnonzero(~gaussian & (rounds > 0))
    if rest.size:
        # Clients of one law, group and number of rounds are alike.
        laws = _local_laws(table)[class_of[rest]]
        clients = rest[distinct_rows(group_of[rest], laws, rounds[rest]).first]
        sizes, times = table.exposure[class_of[clients]], rounds[clients]
        most: dict[int, float] = {}
        for position in np.lexsort((-sizes, -times)):
            client = int(clients[position])
            group, own = int(group_of[client]), table[int(class_of[client])]
            if own.noise == "laplace":
                # Fewer rounds and no more exposure than one already seen: not the worst.
                if sizes[position] <= most.get(group, 0.0):
                    continue
                most[group] = float(sizes[position])
            epsilon = local_epsilon(own, int(times[position]), delta)
            worst[group] = max(worst[group], epsilon)
    return worst

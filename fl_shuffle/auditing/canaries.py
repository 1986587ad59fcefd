"""Canaries for the audit: clients whose data makes the worst reports their clipping allows.

A canary's model has d parameters of which one is used: logits (w_0 x, 0) for a record x. At w = 0 a
record's gradient is -x/2 on the first axis for label 0 and +x/2 for label 1, and every x used here
is long enough to be clipped. So gradients, clipping, averaging and noise are computed by what real
clients run (`Federation`), with the run's own plan and the dimension of its own model.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from fl_shuffle._internal.arrays import Ids, Vector
from fl_shuffle.accounting.bounds.sum_release.honest import honest_reports
from fl_shuffle.auditing.findings import Clipping
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.models import flatten_parameters
from fl_shuffle.data.task import Task, load_task
from fl_shuffle.federation.parts import AggregateFederation, Federation
from fl_shuffle.randomizers.additive import NOISES
from fl_shuffle.randomizers.aggregate_noise import AggregateNoise
from fl_shuffle.randomizers.calibration import Calibration, noise_bits
from fl_shuffle.randomizers.personal import NoiseSource, PersonalRandomizer
from fl_shuffle.randomizers.seeds import SeedTree
from fl_shuffle.shuffler.aggregate import PURPOSE

LONG = 1e4
"""Raw gradients of canaries are about this many times longer than the clip."""
NEARLY = 0.01
"""The other clients stand far from the target if its report can then be told with this error."""


@dataclass(frozen=True)
class Scene:
    """Two neighboring datasets, known to the adversary but for which of the two it is.

    All means lie on the first axis (a canary's gradient is one coordinate), in units of reports,
    that is after a client's weight. `others` [n] holds everybody's mean, the target's entry unused;
    the target's is `zero` in one dataset and `one` > zero in the other. `scales` [n] are the
    clients' noise scales as they show in reports, `noise` is its distribution, `dimension` the
    length of a report.
    """

    target: int
    others: Vector
    zero: float
    one: float
    scales: Vector
    noise: str
    dimension: int

    @property
    def own_scale(self) -> float:
        """The target's noise scale."""
        return float(self.scales[self.target])

    @property
    def means(self) -> Vector:
        """Everybody's mean [n] in the first dataset."""
        return np.where(self.hiding, self.others, self.zero)

    @property
    def hiding(self) -> NDArray[np.bool_]:
        """The other clients [n]."""
        return np.asarray(np.arange(len(self.scales)) != self.target)


class CanaryModel(nn.Module):
    """`dimension` parameters; the first one times the input is the only logit that moves."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dimension))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits [N, 2] of inputs [N, 1]."""
        moving = inputs[:, :1] * self.weight[:1]
        return torch.cat([moving, torch.zeros_like(moving)], dim=1)


@dataclass(frozen=True)
class CanaryTask(Task):
    """A task whose model is the canary model."""

    dimension: int = 1

    def model(self, config: Config) -> nn.Module:
        return CanaryModel(self.dimension)


class Canaries:
    """Reports of a configuration's canaries, drawn by the code that real clients run.

    `seed` is of the canaries' noise, which has the run's word size. `dimension` is that of the
    run's own model unless given. Noise is drawn as `plan` says: the
    configuration's own unless another is given, to see whether a wrong one would be caught.

    `release` is what the adversary sees, "reports" or "sum": the target is the client most exposed
    to it. Of the clients only `privacy.assumed_honest` are played, those that hide the target
    worst: the others collude, and their reports are known. `target` names another client than the
    most exposed one. With `absent` half of the clients send nothing in any round: those that would
    hide the target best in sums. `claimant` is the plan of all clients and the target's number
    among them, to ask an accountant about; `present` [clients] is who reports.
    """

    def __init__(
        self, config: Config, *, seed: int = 0, dimension: int | None = None,
        plan: Calibration | None = None, release: str = "reports", target: int | None = None,
        absent: bool = False,
    ) -> None:  # fmt: skip
        run = replace(config.run, entropy="seeded", seed=seed, noise="per-report")
        self.config, self.seeds = replace(config, run=run), SeedTree(seed).child("audit")
        self.noise_is_pooled = config.run.aggregate_noise
        task = load_task(config)
        if dimension is None:
            dimension = sum(p.numel() for p in task.model(config).parameters())
        whole, self._budgets, self._sizes = plan or task.plan, task.budgets, np.diff(task.offsets)
        arrived = (len(whole) + 1) // 2 if absent else len(whole)
        honest = min(arrived, honest_reports(config.privacy.assumed_honest, arrived))
        scale = whole.weight * whole.scale
        if target is None:
            target = most_exposed(whole, config.privacy.unit, honest if release == "sum" else 0)
        if release == "sum":
            hides = scale
        else:
            # Reports of the target's own noise scale hide it best, and those of small balls.
            order = np.lexsort((-whole.radius, scale == scale[target]))
            hides = np.argsort(order).astype(np.float64)
        self.claimant, self.present = (whole, target), np.zeros(len(whole), dtype=bool)
        self.present[_least(scale, target, arrived)] = True
        played = _least(hides, target, honest)
        self._sizes, self.plan = self._sizes[played], _restricted(whole, played)
        self._source = NoiseSource(seed, noise_bits(config))
        target = int(np.searchsorted(played, target))
        # Far: every other client at the opposite end. Near: all where the target may be, too.
        self.scene = self._scene(target, dimension, far=True)
        by_record = config.privacy.unit == "record" and whole.noise in NOISES
        if by_record and position_error(self.scene) > NEARLY:
            self.scene = self._scene(target, dimension, far=False)
        self._randomize = self._randomizer_of(self.plan)

    def play(self, number: int) -> tuple[Tensor, Tensor]:
        """Return batch `number`: all reports float32 [n, d] with the target in dataset zero, and
        the target's report [d] in dataset one with the same noise. A round has several where
        clients send several reports."""
        rows, everyone = self._rows(self._unweighted), np.arange(len(self.plan))
        target, other = np.array([self.scene.target]), self._rows(self._ends[1:])
        # Noise does not depend on which clients one request names.
        return (
            self._batch(self._randomize, rows, everyone, number),
            self._batch(self._randomize, other, target, number)[0],
        )

    def clones(self, number: int, count: int, side: int) -> Tensor:
        """Return `count` independent reports [count, d] of clients like the target, in dataset
        `side`."""
        # Clones have the target's id only in the plan: their noise is theirs alone. Among clients
        # that differ weights and scales go another way than where all are equal.
        other = np.flatnonzero(self.plan.class_of != self.plan.class_of[self.scene.target])[:1]
        mixed = np.append(np.full(count, self.scene.target), other)
        randomize = self._randomizer_of(_restricted(self.plan, mixed))
        means = np.zeros(len(mixed), dtype=np.float32)
        means[:count] = self._ends[side]
        return self._batch(randomize, self._rows(means), np.arange(len(mixed)), number)[:count]

    def pooled(self, number: int, side: int) -> Vector:
        """Round `number`'s sum [d] in dataset `side`, as the server of a run with pooled noise has
        it; both have the same noise."""
        plan, scene = self.plan, self.scene
        total = np.zeros(scene.dimension)
        total[0] = scene.means.sum() + side * (scene.one - scene.zero)
        noise = AggregateNoise(plan.noise, plan.weight * plan.scale, plan.step)
        generator = self.seeds.numpy_generator(number, PURPOSE)
        return noise.add_to(total, np.ones(len(plan), dtype=bool), generator)

    def _rows(self, means: NDArray[np.float32]) -> Tensor:
        """Return unweighted means of these first coordinates, float32 [n, d]."""
        rows = torch.zeros((len(means), self.scene.dimension))
        rows[:, 0] = torch.from_numpy(means)
        return rows

    def _batch(
        self, randomize: PersonalRandomizer, rows: Tensor, clients: Ids, number: int
    ) -> Tensor:
        """Return these clients' reports [k, d] to batch `number`, from those of its whole round."""
        round_number, batch = divmod(number - 1, self.plan.reports_per_round)
        reports = randomize(rows, clients, round_number + 1)
        return reports[batch * len(clients) : (batch + 1) * len(clients)]

    def _randomizer_of(self, plan: Calibration) -> PersonalRandomizer:
        """Return the randomizer of clients with this plan, whatever their records; in a run with
        pooled noise that of the reports that the sums stand for."""
        return PersonalRandomizer(plan.local, self._source, plan.reports_per_round)

    def _scene(self, target: int, dimension: int, *, far: bool) -> Scene:
        """Return means by the real client code: one client stands for all of its clip, radius and
        size."""
        plan, sizes = self.plan, self._sizes
        table = np.stack([plan.clip, plan.radius, sizes.astype(float)], axis=1)
        _, first, kind_of = np.unique(table, axis=0, return_index=True, return_inverse=True)
        zero, one, still = self.records_of(target)
        share = zero / int(sizes[target])
        plus = np.zeros(len(first)) if far else np.round(share * sizes[first])
        task = self.task_of(
            np.append(first, [target, target]),
            np.append(plus, [zero, one]),
            np.append(np.full(len(first), 0 if far else still), [still, still]),
            dimension,
        )
        clip, asked = Federation(self.config, task).clipper, np.arange(len(first) + 2)
        means = clip(torch.zeros(dimension), asked, 1)[:, 0].cpu().numpy().copy()
        self._unweighted, self._ends = means[kind_of.reshape(-1)], means[-2:]
        self._unweighted[target] = means[-2]
        weight = plan.weight.astype(np.float32)
        others = (weight * self._unweighted).astype(np.float64)
        low, high = (weight[target] * self._ends).astype(np.float64).tolist()
        return Scene(target, others, low, high, plan.weight * plan.scale, plan.noise, dimension)

    def records_of(self, target: int) -> tuple[int, int, int]:
        """Return how many of the target's records point up in either dataset, and how many have no
        gradient.

        A whole client changes all of them. One record's change is made where a second clip leaves
        most of it, and as far up as the target's mean can be, away from the others.
        """
        size = int(self._sizes[target])
        if self.config.privacy.unit == "client":
            return 0, size, 0
        if self.config.clipping == "average":
            return 0, 1, 0
        reach = float(self.plan.radius[target] / self.plan.clip[target])
        moves = []
        for still in {0, min(1, size - 1)}:
            up = np.arange(size - still + 1)
            gains = np.diff(np.clip((2.0 * up - (size - still)) / size, -reach, reach))
            top = int(np.flatnonzero(gains >= gains.max() * (1.0 - 1e-9))[-1]) + 1
            moves.append((round(float(gains.max()), 9), -still, top))
        _, minus_still, top = max(moves)
        return top - 1, top, -minus_still

    def task_of(self, clients: Ids, plus: Vector, still: Ids, dimension: int) -> CanaryTask:
        """Return the data of these clients, in this order (ids may repeat), with this number of
        records up, that number without a gradient, and the rest down."""
        sizes = self._sizes[clients]
        # Of the records of each client, one after the other.
        place = np.concatenate([np.arange(size) for size in sizes])
        # Without a clip of each record, one of them decides where the average points.
        average = self.config.clipping == "average"
        moving = np.repeat(np.ones_like(sizes) if average else sizes - still, sizes)
        long = np.where(place < moving, LONG * np.repeat(self.plan.clip[clients], sizes), 0.0)
        inputs = torch.from_numpy(long.astype(np.float32)[:, None])
        labels = torch.from_numpy((place < np.repeat(plus, sizes)).astype(np.int64))
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return CanaryTask(
            inputs=inputs, labels=labels, offsets=offsets, test_inputs=inputs[:0],
            test_labels=labels[:0], classes=2, features_use_data=False, fingerprint="canaries",
            budgets=self._budgets, plan=_restricted(self.plan, clients), dimension=dimension,
        )  # fmt: skip


def one_of_each_kind(plan: Calibration, most: int) -> list[int]:
    """Return a client of every class, of at most this number: in the order of their weights and
    noise, evenly spaced, the ends among them."""
    _, first = np.unique(plan.class_of, return_index=True)
    order = first[np.lexsort((plan.scale[first], plan.weight[first]))]
    places = np.linspace(0, len(order) - 1, min(most, len(order))).astype(np.int64)
    return [int(client) for client in order[np.unique(places)]]


def check_clipping(config: Config) -> Clipping:
    """Return how far the run's own model and gradient code let hostile records move a mean.

    The most exposed client's real records, as they are and 10,000 times larger, against the same
    with one record (or all, for the client unit) turned around or given another label, at the
    model's initial parameters. Raises as loading the data does.
    """
    task = load_task(config)
    target = most_exposed(task.plan, config.privacy.unit)
    own = slice(int(task.offsets[target]), int(task.offsets[target + 1]))
    x, y, size = task.inputs[own], task.labels[own], own.stop - own.start
    turned, relabelled = x.clone(), y.clone()
    changed = slice(size if config.privacy.unit == "client" else 1)
    turned[changed] *= -1.0
    relabelled[changed] = y[changed] - LONG if task.regression else (y[changed] + 1) % task.classes
    inputs = [scale * each for scale in (1.0, LONG) for each in (x, turned, x)]
    hostile = replace(
        task, inputs=torch.cat(inputs), labels=torch.cat([y, y, relabelled] * 2),
        offsets=np.arange(len(inputs) + 1, dtype=np.int64) * size,
        plan=_restricted(task.plan, np.full(len(inputs), target)),
    )  # fmt: skip
    parameters = flatten_parameters(task.model(config)).to(config.run.device)
    if config.run.aggregate_noise:
        add_up, weight = AggregateFederation(config, hostile).sum_of_means, task.plan.weight[target]
        # Of one client each: the sum of its weighted mean alone.
        alone = [add_up(parameters, np.array([k]), 1) for k in range(len(inputs))]
        means = torch.stack(alone).cpu() / weight
    else:
        clip = Federation(config, hostile).clipper
        means = torch.cat([clip(parameters, np.array([k]), 1) for k in range(len(inputs))])
        means = means.double().cpu()
    moves = torch.stack([means[b] - means[a] for a, b in ((0, 1), (0, 2), (3, 4), (3, 5))])
    largest, farthest = (
        float(torch.linalg.vector_norm(each, ord=task.plan.norm, dim=1).max())
        for each in (means, moves)
    )
    radius, sensitivity = task.plan.radius[target], task.plan.sensitivity[target]
    return Clipping(largest / float(radius), farthest / float(sensitivity))


def _restricted(plan: Calibration, clients: Ids) -> Calibration:
    """Return the plan of these clients only, in this order; ids may repeat."""
    every = {each.name: getattr(plan, each.name) for each in fields(plan)}
    own: dict[str, Any] = {k: v[clients] for k, v in every.items() if isinstance(v, np.ndarray)}
    custom = None if plan.custom is None else plan.custom.restricted(clients)
    bits = plan.few_bits
    few_bits = None if bits is None else replace(bits, half=bits.half[clients])
    return replace(plan, **own, custom=custom, few_bits=few_bits)


def most_exposed(plan: Calibration, unit: str, summed: int = 0) -> int:
    """Return the client whose report moves furthest, in widths of the noise that hides it.

    That is its own; for the client unit that of its noise scale's cohort; of sums, in which the
    noise of `summed` clients counts, its own and the smallest others'.
    """
    if plan.noise not in NOISES:
        return 0
    power, hides = (plan.weight * plan.scale) ** 2, np.ones_like(plan.scale)
    if summed:
        smallest = np.sort(power)
        # A client whose own noise is among the smallest adds no more than these.
        hidden = smallest[: summed - 1].sum() + np.maximum(power, smallest[summed - 1])
        hides = hidden / power
    elif unit == "client":
        _, cohort, counts = np.unique(power, return_inverse=True, return_counts=True)
        hides = counts[cohort.reshape(-1)].astype(np.float64)
    reach = np.minimum(plan.sensitivity, 2.0 * plan.radius) / plan.scale
    return int(np.argmax(reach / np.sqrt(hides)))


def _least(values: Vector, target: int, count: int) -> Ids:
    """Return the target and the others with the least `values`, ascending [count]."""
    values = values.copy()
    values[target] = -1.0
    return np.sort(np.argsort(values, kind="stable")[:count])


def position_error(scene: Scene) -> float:
    """Return the chance that the target cannot be told as the one report beyond a point on the
    axis.

    The exact tails of the noise on both sides of the best such point, added over all clients.
    """
    others, scales = scene.others[scene.hiding], scene.scales[scene.hiding]
    if not len(others):
        return 0.0
    tail = stats.laplace.sf if scene.noise == "laplace" else stats.norm.sf
    wrong = [
        tail((point - others) / scales).sum() + tail((scene.zero - point) / scene.own_scale)
        for point in np.linspace(float(others.max()), scene.zero, 33)
    ]
    return float(min(1.0, *wrong))


def size_error(scene: Scene) -> float:
    """Return the chance that, in one round, any report at all is taken for one of the target's
    noise scale that is not, or the other way round, by its length off the axis.

    That depends on the noise alone: its l2 norm for Gaussian noise, l1 for Laplace noise, whose
    exact chi and gamma distributions are added over all clients. The bar to a neighboring scale
    stands where both are as likely.
    """
    own, free = scene.own_scale, scene.dimension - 1
    levels, counts = np.unique(scene.scales, return_counts=True)
    if free == 0:
        return float(len(levels) > 1)
    laplace = scene.noise == "laplace"
    law, power = (stats.gamma(free), 1.0) if laplace else (stats.chi(free), 2.0)
    growth = power * free * np.diff(np.log(levels))
    bars = (growth / -np.diff(levels**-power)) ** (1.0 / power)
    place = int(np.searchsorted(levels, own))
    low, high = [0.0, *bars, np.inf][place : place + 2]
    wrong = np.minimum(law.sf(low / levels), law.cdf(high / levels))
    wrong[place] = law.cdf(low / own) + law.sf(high / own)
    return min(1.0, float((counts * wrong).sum()))

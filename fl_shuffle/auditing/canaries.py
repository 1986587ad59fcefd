"""Canaries for the audit: clients whose data makes the worst reports their clipping allows.

A canary's model has d parameters of which one is used: logits (w_0 x, 0) for a record x. At w = 0 a
record's gradient is -x/2 on the first axis for label 0 and +x/2 for label 1, and every x used here
is long enough to be clipped. So gradients, clipping, averaging and noise are computed by what real
clients run (`Federation`), with the run's own plan and the dimension of its own model.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.accounting.rounds.sum_account import honest_reports
from fl_shuffle.auditing.findings import Clipping
from fl_shuffle.auditing.scenes import Scene, position_error
from fl_shuffle.budgets import Budgets, make_budgets
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.models import flatten_parameters
from fl_shuffle.data.task import Task, load_task
from fl_shuffle.federation import Federation
from fl_shuffle.randomizer_plan import RandomizerPlan, make_plan, noise_bits
from fl_shuffle.randomizers.additive import NOISES
from fl_shuffle.randomizers.aggregate_noise import AggregateNoise
from fl_shuffle.randomizers.personal import NoiseSource, Randomizer, make_randomizer

Ids = NDArray[np.int64]

LONG = 1e4
"""Raw gradients of canaries are about this many times longer than the clip."""
NEARLY = 0.01
"""The other clients stand far from the target if its report can then be told with this error."""


class CanaryModel(nn.Module):
    """`dimension` parameters; the first one times the input is the only logit that moves."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dimension))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [N, 2] of inputs [N, 1]."""
        moving = inputs[:, :1] * self.weight[:1]
        return torch.cat([moving, torch.zeros_like(moving)], dim=1)


@dataclasses.dataclass(frozen=True)
class CanaryTask(Task):
    """A task whose model is the canary model."""

    dimension: int = 1

    def model(self, config: Config) -> nn.Module:
        return CanaryModel(self.dimension)


class Canaries:
    """Reports of a configuration's canaries, drawn by the code that real clients run.

    `seed` is of the canaries' noise, which has the run's word size. `dimension` is that of the
    run's own model unless given (then no data is loaded). Noise is drawn as `plan` says: the
    configuration's own unless another is given, to see whether a wrong one would be caught.

    `release` is what the adversary sees, "reports" or "sum": the target is the client most exposed
    to it. Of the clients only `privacy.assumed_honest` are played, those that hide the target
    worst: the others collude, and their reports are known. `target` names another client than the
    most exposed one. With `absent` half of the clients send nothing in any round: those that would
    hide the target best in sums. `claimant` is the plan of all clients and the target's number
    among them, to ask an accountant about; `present` [clients] is who reports.
    """

    def __init__(
        self,
        config: Config,
        *,
        seed: int = 0,
        dimension: int | None = None,
        plan: RandomizerPlan | None = None,
        release: str = "reports",
        target: int | None = None,
        absent: bool = False,
    ) -> None:
        self._config = dataclasses.replace(
            config, run=dataclasses.replace(config.run, entropy="seeded", seed=seed)
        )
        self._bits = noise_bits(config)
        if dimension is None:
            task = load_task(config)
            self._budgets = task.budgets
            dimension = sum(p.numel() for p in task.model(config).parameters())
            sizes = np.diff(task.offsets)
        else:
            self._budgets = make_budgets(config.budgets, config.data.clients)
            sizes = np.full(config.data.clients, max(1, config.data.records), dtype=np.int64)
        self._dimension, self.unit = dimension, config.privacy.unit
        whole = plan or make_plan(config, self._budgets, sizes)
        arrived = (len(whole) + 1) // 2 if absent else len(whole)
        honest = min(arrived, honest_reports(config.privacy.assumed_honest, arrived))
        if release == "sum":
            target = most_exposed_in_sums(whole, honest) if target is None else target
            played = _smallest_noise(whole, target, honest)
        else:
            target = _most_exposed(whole, unit=self.unit) if target is None else target
            played = _least_helpful(whole, target, honest)
        self.claimant = whole, target
        self.present = np.ones(len(whole), dtype=bool)
        if absent:
            self.present = np.isin(np.arange(len(whole)), _smallest_noise(whole, target, arrived))
        if len(played) < len(whole):
            whole, target = _restricted(whole, played), int(np.searchsorted(played, target))
            sizes = sizes[played]
            self._budgets = Budgets(self._budgets.epsilon[played], self._budgets.delta[played])
        self._sizes, self.plan = sizes, whole
        # Far: every other client at the opposite end. Near: all where the target may be, too.
        self.scene = self._scene(target, far=True)
        if self.unit == "record" and whole.noise in NOISES and position_error(self.scene) > NEARLY:
            self.scene = self._scene(target, far=False)
        self._rows = torch.zeros((len(self.plan), dimension))
        self._rows[:, 0] = torch.from_numpy(self._unweighted)
        # Two nodes share the clients, as in a federation: noise must not hang on the packing.
        halves = [part for part in np.array_split(np.arange(len(whole)), 2) if len(part)]
        self._nodes = [(part, self._randomizer_of(self.plan)) for part in halves]
        # Clones have the target's id only in the plan: their noise is theirs alone.
        self._clones: tuple[int, int, Randomizer] | None = None

    def play(self, number: int) -> tuple[Tensor, Tensor]:
        """Batch `number`: all reports float32 [n, d] with the target in dataset zero, and the
        target's report [d] in dataset one with the same noise. A round has several where clients
        send several reports."""
        rows = self._rows.clone()
        for clients, randomize in self._nodes:
            own = slice(int(clients[0]), int(clients[-1]) + 1)
            rows[own] = self._batch(randomize, rows[own], clients, number)
        other = torch.zeros((1, self._dimension))
        other[0, 0] = float(self._target_means[1])
        target = np.array([self.scene.target])
        return rows, self._batch(self._nodes[0][1], other, target, number)[0]

    def clones(self, number: int, count: int, *, one: bool) -> Tensor:
        """`count` independent reports [count, d] of clients like the target, in either dataset."""
        if self._clones is None or self._clones[0] != count:
            target = self.scene.target
            # Among clients that differ weights and scales go another way than where all are equal.
            other = np.flatnonzero(self.plan.class_of != self.plan.class_of[target])[:1]
            mixed = np.append(np.full(count, target), other)
            self._clones = count, len(mixed), self._randomizer_of(_restricted(self.plan, mixed))
        _, drawn, randomize = self._clones
        rows = torch.zeros((drawn, self._dimension))
        rows[:count, 0] = float(self._target_means[int(one)])
        return self._batch(randomize, rows, np.arange(drawn), number)[:count]

    def _batch(self, randomize: Randomizer, rows: Tensor, clients: Ids, number: int) -> Tensor:
        """These clients' reports [k, d] to batch `number`, from those of its whole round."""
        round_number, batch = divmod(number - 1, self.plan.reports_per_round)
        reports = randomize(rows, clients, round_number + 1)
        return reports[batch * len(clients) : (batch + 1) * len(clients)]

    @property
    def noise_is_pooled(self) -> bool:
        """Whether the audited run makes no reports."""
        return self._config.run.noise == "pooled"

    def pooled(self, generator: np.random.Generator, *, one: bool) -> NDArray[np.float64]:
        """A round's sum [d] in either dataset, as the run's server has it."""
        plan, scene = self.plan, self.scene
        total = np.zeros(self._dimension)
        rest = float(np.sum(np.delete(scene.others, scene.target)))
        total[0] = rest + (scene.one if one else scene.zero)
        noise = AggregateNoise(plan.noise, plan.weight * plan.scale, plan.step)
        everyone = np.ones(len(plan), dtype=bool)
        return noise.add_to(total, everyone, generator)

    def _randomizer_of(self, plan: RandomizerPlan) -> Randomizer:
        """That of clients with this plan, whatever their records; in a run with pooled noise that
        of the reports that the sums stand for."""
        source = NoiseSource(self._config.run.seed, self._bits)
        return make_randomizer(_with_reports(self._config), plan, source)

    def _scene(self, target: int, *, far: bool) -> Scene:
        """Means by the real client code: one client stands for all of its clip, radius and size."""
        table = np.stack([self.plan.clip, self.plan.radius, self._sizes.astype(float)], axis=1)
        _, first, kind_of = np.unique(table, axis=0, return_index=True, return_inverse=True)
        zero, one, still = self._records_of(target)
        share = zero / int(self._sizes[target])
        plus = [0 if far else round(share * int(size)) for size in self._sizes[first]]
        rests = [0 if far else still] * len(first)
        means = self._means(
            np.append(first, [target, target]), [*plus, zero, one], [*rests, still, still]
        )
        self._unweighted = means[kind_of.reshape(-1)]
        self._target_means = means[-2:]
        self._unweighted[target] = means[-2]
        weight = self.plan.weight.astype(np.float32)
        others = (weight * self._unweighted).astype(np.float64)
        ends = (weight[target] * self._target_means).astype(np.float64)
        scales = self.plan.weight * self.plan.scale
        zero, one = ends.tolist()
        return Scene(target, others, zero, one, scales, self.plan.noise, self._dimension)

    def _records_of(self, target: int) -> tuple[int, int, int]:
        """How many of the target's records point up in either dataset, and how many have no
        gradient.

        A whole client changes all of them. One record's change is made where a second clip leaves
        most of it, and as far up as the target's mean can be, away from the others.
        """
        size = int(self._sizes[target])
        if self._config.privacy.unit == "client":
            return 0, size, 0
        if self._config.clip == "average":
            return 0, 1, 0
        reach = float(self.plan.radius[target] / self.plan.clip[target])
        moves = []
        for still in {0, min(1, size - 1)}:
            means = np.clip(
                (2.0 * np.arange(size - still + 1) - (size - still)) / size, -reach, reach
            )
            gains = np.diff(means)
            top = int(np.flatnonzero(gains >= gains.max() * (1.0 - 1e-9))[-1]) + 1
            moves.append((round(float(gains.max()), 9), -still, top))
        _, minus_still, top = max(moves)
        return top - 1, top, -minus_still

    def _means(self, clients: Ids, plus: list[int], still: list[int]) -> NDArray[np.float32]:
        """First coordinates [k] of the clipped means of these clients, with so many records up, so
        many without a gradient, and the rest down."""
        inputs, labels = [], []
        for client, count, rest in zip(clients.tolist(), plus, still, strict=True):
            size = int(self._sizes[client])
            long = torch.full((size, 1), LONG * float(self.plan.clip[client]))
            # Without a clip of each record, one of them decides where the average points.
            long[1 if self._config.clip == "average" else size - rest :] = 0.0
            inputs.append(long)
            labels.append((torch.arange(size) < count).long())
        offsets = np.concatenate([[0], np.cumsum(self._sizes[clients])]).astype(np.int64)
        budgets = Budgets(self._budgets.epsilon[clients], self._budgets.delta[clients])
        task = self._task(
            _restricted(self.plan, clients), budgets, torch.cat(inputs), torch.cat(labels), offsets
        )
        clip = Federation(_with_reports(self._config), task).clipper
        rows = clip(torch.zeros(self._dimension), np.arange(len(clients)))
        return np.asarray(rows[:, 0].cpu().numpy().copy())

    def _task(
        self, plan: RandomizerPlan, budgets: Budgets, inputs: Tensor, labels: Tensor, offsets: Ids
    ) -> CanaryTask:
        return CanaryTask(
            inputs=inputs,
            labels=labels,
            offsets=offsets,
            test_inputs=inputs[:0],
            test_labels=labels[:0],
            classes=2,
            features_use_data=False,
            fingerprint="canaries",
            budgets=budgets,
            plan=plan,
            dimension=self._dimension,
        )


def one_of_each_kind(plan: RandomizerPlan, most: int) -> list[int]:
    """A client of every class, of at most so many: in the order of their weights and noise, evenly
    spaced, the ends among them."""
    _, first = np.unique(plan.class_of, return_index=True)
    order = first[np.lexsort((plan.scale[first], plan.weight[first]))]
    places = np.linspace(0, len(order) - 1, min(most, len(order))).astype(np.int64)
    return [int(client) for client in order[np.unique(places)]]


def check_clipping(config: Config) -> Clipping:
    """How far the run's own model and gradient code let hostile records move a mean.

    The most exposed client's real records, as they are and 10,000 times larger, against the same
    with one record (or all, for the client unit) turned around or given another label, at the
    model's initial parameters. Raises as loading the data does.
    """
    task = load_task(config)
    parameters = flatten_parameters(task.model(config))
    target = _most_exposed(task.plan, unit=config.privacy.unit)
    own = slice(int(task.offsets[target]), int(task.offsets[target + 1]))
    inputs, labels = task.inputs[own], task.labels[own]
    size = len(labels)
    changed = size if config.privacy.unit == "client" else 1
    sets = []
    for scale in (1.0, LONG):
        turned, relabelled = scale * inputs, labels.clone()
        turned[:changed] *= -1.0
        if task.regression:
            relabelled[:changed] -= LONG
        else:
            relabelled[:changed] = (labels[:changed] + 1) % task.classes
        sets += [(scale * inputs, labels), (turned, labels), (scale * inputs, relabelled)]
    same = np.full(len(sets), target)
    hostile = dataclasses.replace(
        task,
        inputs=torch.cat([part for part, _ in sets]),
        labels=torch.cat([part for _, part in sets]),
        offsets=np.arange(len(sets) + 1, dtype=np.int64) * size,
        plan=_restricted(task.plan, same),
        budgets=Budgets(task.budgets.epsilon[same], task.budgets.delta[same]),
    )
    clip, norm = Federation(config, hostile).clipper, task.plan.norm
    parameters = parameters.to(config.run.device)
    if config.run.noise == "pooled":
        sums = [clip(parameters, np.array([k])).cpu() for k in range(len(sets))]
        means = torch.stack(sums) / torch.from_numpy(hostile.plan.weight[:, None])
    else:
        means = clip(parameters, np.arange(len(sets))).double().cpu()
    largest = float(torch.linalg.vector_norm(means, ord=norm, dim=1).max())
    moves = torch.stack([means[b] - means[a] for a, b in ((0, 1), (0, 2), (3, 4), (3, 5))])
    farthest = float(torch.linalg.vector_norm(moves, ord=norm, dim=1).max())
    return Clipping(
        largest / float(task.plan.radius[target]), farthest / float(task.plan.sensitivity[target])
    )


def _with_reports(config: Config) -> Config:
    """The same run, each of its clients making reports."""
    return dataclasses.replace(config, run=dataclasses.replace(config.run, noise="per-report"))


def _restricted(plan: RandomizerPlan, clients: Ids) -> RandomizerPlan:
    """The plan of these clients only, in this order; ids may repeat."""
    return dataclasses.replace(
        plan,
        **{
            name: getattr(plan, name)[clients]
            for name in ("clip", "radius", "sensitivity", "scale", "weight", "step", "class_of")
        },
        custom=None if plan.custom is None else plan.custom.restricted(clients),
    )


def _most_exposed(plan: RandomizerPlan, *, unit: str) -> int:
    """The largest local mu; for the client unit, over the root of its noise scale's cohort."""
    if plan.noise not in NOISES:
        return 0
    reach = plan.sensitivity / plan.scale
    if unit == "client":
        _, inverse, counts = np.unique(
            plan.weight * plan.scale, return_inverse=True, return_counts=True
        )
        reach = reach / np.sqrt(counts[inverse.reshape(-1)])
    return int(np.argmax(reach))


def most_exposed_in_sums(plan: RandomizerPlan, honest: int) -> int:
    """The client whose report moves a sum furthest, in widths of `honest` clients' noise: its own
    and the smallest others."""
    if plan.noise not in NOISES:
        return 0
    reach = plan.weight * np.minimum(plan.sensitivity, 2.0 * plan.radius)
    power = (plan.weight * plan.scale) ** 2
    order = np.argsort(power, kind="stable")
    among = np.empty(len(plan), dtype=bool)
    among[order] = np.arange(len(plan)) < honest
    below = np.concatenate([[0.0], np.cumsum(power[order])])
    hidden = np.where(among, below[honest], below[honest - 1] + power)
    return int(np.argmax(reach / np.sqrt(hidden)))


def _smallest_noise(plan: RandomizerPlan, target: int, honest: int) -> Ids:
    """The target and those of the others whose noise is the smallest, ascending [honest]."""
    scale = plan.weight * plan.scale
    scale[target] = -1.0
    return np.sort(np.argsort(scale, kind="stable")[:honest])


def _least_helpful(plan: RandomizerPlan, target: int, honest: int) -> Ids:
    """The target and those of the others that hide it worst, ascending [honest]: out go reports of
    the target's noise scale first, those of the smallest balls before others."""
    scale, radius = plan.weight * plan.scale, plan.weight * plan.radius
    others = np.lexsort((radius, scale != scale[target]))
    others = others[others != target]
    return np.sort(np.append(others[len(plan) - honest :], target))

"""Patched copies of the product, each wrong in one way that breaks a guarantee."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, MetricRecord

import fl_shuffle.apps.client
import fl_shuffle.planned_noise
from fl_shuffle.aggregation.shuffler import ReportBatch
from fl_shuffle.randomizer_plan import RandomizerPlan
from fl_shuffle.runs import Run
from fl_shuffle.seeds import SeedTree
from fl_shuffle.tasks.worker import Worker

Patch = Callable[[pytest.MonkeyPatch], None]
Permutation = Callable[[int, np.random.Generator], np.ndarray]


def noise_times(factor: float) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = fl_shuffle.planned_noise.randomize_rows_

        def wrong(*arguments: Any, scale: Any, step: Any) -> torch.Tensor:
            return right(*arguments, scale=factor * scale, step=step)

        monkeypatch.setattr(fl_shuffle.planned_noise, "randomize_rows_", wrong)

    return patch


def clip_times(factor: float) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = Worker.__init__

        def wrong(self: Worker, config: Any, task: Any, **options: Any) -> None:
            plan = dataclasses.replace(task.plan, clip=factor * task.plan.clip)
            right(self, config, dataclasses.replace(task, plan=plan), **options)

        monkeypatch.setattr(Worker, "__init__", wrong)

    return patch


def weight_forgotten(client: int) -> Patch:
    """One client adds noise to its mean, but forgets the weight of its report."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = Worker.__init__

        def wrong(self: Worker, config: Any, task: Any, **options: Any) -> None:
            weight = task.plan.weight.copy()
            weight[client] = 1.0
            plan = dataclasses.replace(task.plan, weight=weight)
            right(self, config, dataclasses.replace(task, plan=plan), **options)

        monkeypatch.setattr(Worker, "__init__", wrong)

    return patch


def accounted_without_weights(plan: RandomizerPlan) -> RandomizerPlan:
    """The accountant is told what reports are before they are weighted."""
    weights = np.zeros(len(plan.classes))
    weights[plan.class_of] = plan.weight
    classes = tuple(
        dataclasses.replace(
            own, scale=own.scale / w, radius=own.radius / w, sensitivity=own.sensitivity / w
        )
        for own, w in zip(plan.classes, weights.tolist(), strict=True)
    )
    return dataclasses.replace(plan, classes=classes)


def noise_of_clients(clients_of: Callable[[np.ndarray], np.ndarray]) -> Patch:
    """Every client draws the noise of the client that `clients_of` names."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = fl_shuffle.planned_noise.randomize_rows_

        def wrong(noise: str, rows: Any, ids: Any, *rest: Any, **options: Any) -> torch.Tensor:
            own = np.arange(ids, ids + len(rows)) if isinstance(ids, int) else ids
            return right(noise, rows, clients_of(own), *rest, **options)

        monkeypatch.setattr(fl_shuffle.planned_noise, "randomize_rows_", wrong)

    return patch


def noise_of_rounds(round_of: Callable[[int], int]) -> Patch:
    """Every round draws the noise of the round that `round_of` names."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = SeedTree.key

        def wrong(self: SeedTree, *path: int | str) -> bytes:
            if path[-1] == "noise":
                path = (round_of(int(path[0])), *path[1:])
            return right(self, *path)

        monkeypatch.setattr(SeedTree, "key", wrong)

    return patch


def order(permutation: Permutation) -> Patch:
    """The run's permutations, of batches and of one report after another, are these."""

    class Wrong:
        def __init__(self, generator: np.random.Generator) -> None:
            self._generator = generator

        def permutation(self, items: Any) -> np.ndarray:
            ids = np.arange(items) if isinstance(items, int) else np.asarray(items)
            return np.asarray(ids[permutation(len(ids), self._generator)])

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = SeedTree.numpy_generator

        def wrong(self: SeedTree, *path: int | str) -> Any:
            found = right(self, *path)
            return Wrong(found) if path[-1] == "permutation" else found

        monkeypatch.setattr(SeedTree, "numpy_generator", wrong)

    return patch


def batch_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shuffler itself forgets to permute."""

    def wrong(self: ReportBatch, generator: np.random.Generator) -> torch.Tensor:
        assert self._rows is not None
        return torch.cat([self._rows[position] for position in sorted(self._rows)])

    monkeypatch.setattr(ReportBatch, "release", wrong)


def unchanged(n: int, _: np.random.Generator) -> np.ndarray:
    return np.arange(n)


def rotation(n: int, generator: np.random.Generator) -> np.ndarray:
    return np.roll(np.arange(n), int(generator.integers(n)))


def within_halves(n: int, generator: np.random.Generator) -> np.ndarray:
    return np.concatenate(
        [generator.permutation(n // 2), n // 2 + generator.permutation(n - n // 2)]
    )


def blocks_of_three(n: int, generator: np.random.Generator) -> np.ndarray:
    blocks = np.array_split(np.arange(n), n // 3)
    chosen = [blocks[index] for index in generator.permutation(len(blocks))]
    return np.concatenate([generator.permutation(block) for block in chosen])


def always_the_same(n: int, _: np.random.Generator) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(1)).permutation(n)


def last_stays_last(n: int, generator: np.random.Generator) -> np.ndarray:
    return np.append(generator.permutation(n - 1), n - 1)


# --- What is published ------------------------------------------------------------------------


def hash_in_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    from fl_shuffle.tasks.task import load_task

    right = Run.finish

    def wrong(self: Run, *arguments: Any, **options: Any) -> None:
        digest = hashlib.sha256(load_task(self.config).inputs.numpy().tobytes())
        self.ledger.set_meta("digest", digest.hexdigest())
        right(self, *arguments, **options)

    monkeypatch.setattr(Run, "finish", wrong)


def size_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose name and times are as ever, and whose length tells."""
    from fl_shuffle.tasks.task import load_task

    right = Run.finish

    def wrong(self: Run, *arguments: Any, **options: Any) -> None:
        ones = int(load_task(self.config).labels.sum())
        (self._directory.path / "padding.bin").write_bytes(bytes(ones))
        right(self, *arguments, **options)

    monkeypatch.setattr(Run, "finish", wrong)


def loss_in_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fl_shuffle.apps.client.reply_with_reports

    def wrong(message: Message, reports: np.ndarray) -> Message:
        (_, _, worker) = fl_shuffle.apps.client._workers[0]
        total = float(torch.nan_to_num(worker._task.inputs).double().sum())
        reply = right(message, reports)
        reply.content["metrics"] = MetricRecord({"loss": total})
        return reply

    monkeypatch.setattr(fl_shuffle.apps.client, "reply_with_reports", wrong)


def nonfinite_clients_send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Worker.reports

    def wrong(self: Worker, request: Any, parameters: Any) -> np.ndarray:
        reports = right(self, request, parameters)
        for row, client in enumerate(request.clients):
            own = slice(int(self._task.offsets[client]), int(self._task.offsets[client + 1]))
            if not bool(torch.isfinite(self._task.inputs[own]).all()):
                reports[row] = np.nan
        return reports

    monkeypatch.setattr(Worker, "reports", wrong)


def record_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that stumbles over a record: its client's node answers with an error."""
    right = Worker.reports

    def wrong(self: Worker, request: Any, parameters: Any) -> np.ndarray:
        if not bool(torch.isfinite(self._task.inputs).all()):
            raise ValueError(f"cannot compute with {self._task.inputs[0]}")
        return right(self, request, parameters)

    monkeypatch.setattr(Worker, "reports", wrong)

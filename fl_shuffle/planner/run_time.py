"""How long a run's rounds will take on this machine: a request of each kind, timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fl_shuffle._internal.arrays import Ids
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.models import flatten_parameters
from fl_shuffle.data.task import Task, load_task
from fl_shuffle.federation.parts import AggregateFederation, Federation
from fl_shuffle.gradients.clipper import HELD_NUMBERS
from fl_shuffle.shuffler.exact_sums import ExactSum

REPEATS = 3
"""The median of this number is not spoiled by one that was stalled."""
PIECE_RECORDS = 20_000
"""Largest number of records in a timed request, or one client: about a second of a network."""


class RunTime(NamedTuple):
    """Seconds, as measured or estimated here and now: to read the data and compute their features,
    for what the first request takes longer than the next ones (it compiles), and for a round."""

    data: float
    first: float
    round: float


def run_time_of(config: Config, jobs: int) -> RunTime:
    """Return how long the parts of a run take, from requests played and timed here and now.

    Features that are kept on disk, and loops that were compiled before, take the time that reading
    them takes. Timed of a round are gradients, clipping, noise and adding up, with `jobs` threads
    side by side, as in the run. Not in it: start-up, messages, accounting, evaluation. The data are
    read, and some clients' reports made and thrown away. Raises as `load_task` does.
    """
    began = time.perf_counter()
    task = load_task(config)
    data = time.perf_counter() - began
    parameters = flatten_parameters(task.model(config))
    dimension, clients = parameters.numel(), len(task.plan)
    in_turn = config.training.schedule == "sequential"
    jobs = 1 if in_turn else max(1, min(jobs, clients))
    most = 1 if in_turn else -(-clients // jobs)
    if not config.run.aggregate_noise:
        most = min(most, max(1, HELD_NUMBERS // dimension))
    # Clients may hold very different numbers of records: as many of them as fit, each thread's own.
    within = int(np.searchsorted(task.offsets[1:], jobs * PIECE_RECORDS, side="right")) // jobs
    most = max(1, min(most, within))
    pieces = [np.arange(index * most, (index + 1) * most) for index in range(jobs)]
    work = _aggregate_work(config, task) if config.run.aggregate_noise else _work(config, task)

    def play(clients: Ids) -> None:
        work(parameters, clients)

    seconds = []
    with ThreadPoolExecutor(jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        # The first time compiles.
        for _ in range(1 + REPEATS):
            started = time.perf_counter()
            list(pool.map(play, pieces))
            seconds.append(time.perf_counter() - started)
    timed = int(task.offsets[min(jobs * most, clients)])
    share = config.training.participation * float(task.offsets[-1]) / timed
    usual = statistics.median(seconds[1:])
    return RunTime(data, max(0.0, seconds[0] - usual), usual * share)


def _work(config: Config, task: Task) -> Callable[[Tensor, Ids], None]:
    """Return what is done for some clients in a round: their reports, and the sum of these."""
    federation, plan = Federation(config, task), task.plan
    clip, randomize = federation.clipper, federation.randomizer

    def work(parameters: Tensor, clients: Ids) -> None:
        reports = randomize(clip(parameters, clients, 1), clients, 1)
        ExactSum(len(parameters), plan.group).add(reports, plan.largest[clients])

    return work


def _aggregate_work(config: Config, task: Task) -> Callable[[Tensor, Ids], None]:
    """Return the same where no client makes a report: the sum of their means."""
    sum_of_means = AggregateFederation(config, task).sum_of_means

    def work(parameters: Tensor, clients: Ids) -> None:
        sum_of_means(parameters, clients, 1)

    return work

"""How long a run's rounds will take on this machine: a request of each kind, timed."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.models import flatten_parameters
from fl_shuffle.data.task import load_task
from fl_shuffle.federation import Federation
from fl_shuffle.gradients.clipper import HELD_NUMBERS
from fl_shuffle.randomizers.base import Ids
from fl_shuffle.shuffler.exact_sums import ExactSum

REPEATS = 3
"""The median of so many is not spoiled by one that was stalled."""
PIECE_RECORDS = 20_000
"""A timed request holds at most so many records, or one client: about a second of a network."""


def seconds_of_round(config: Config, jobs: int) -> float:
    """Seconds that a round is estimated to take, from requests played and timed here and now.

    Timed are gradients, clipping, noise and adding up, with `jobs` threads side by side, as in the
    run. Not in it: start-up, messages, accounting, evaluation. The data are read, and some clients'
    reports made and thrown away. Raises as `load_task` does.
    """
    task = load_task(config)
    pooled = config.run.noise == "pooled"
    parameters = flatten_parameters(task.model(config))
    dimension, clients = parameters.numel(), len(task.plan)
    in_turn = config.training.schedule == "sequential"
    jobs = 1 if in_turn else max(1, min(jobs, clients))
    most = 1 if in_turn else -(-clients // jobs)
    if not pooled:
        most = min(most, max(1, HELD_NUMBERS // dimension))
    # Clients may hold very different numbers of records: as many of them as fit, each thread's own.
    within = int(np.searchsorted(task.offsets[1:], jobs * PIECE_RECORDS, side="right")) // jobs
    most = max(1, min(most, within))
    pieces = [np.arange(index * most, (index + 1) * most) for index in range(jobs)]
    federation = Federation(config, task)
    clip, randomize = federation.clipper, federation.randomizer

    def play(clients: Ids) -> None:
        reports = randomize(clip(parameters, clients), clients, 1)
        if not pooled:
            ExactSum(dimension, task.plan.group).add(reports, task.plan.largest[clients])

    seconds = []
    with ThreadPoolExecutor(jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        # The first time compiles.
        for _ in range(1 + REPEATS):
            started = time.perf_counter()
            list(pool.map(play, pieces))
            seconds.append(time.perf_counter() - started)
    timed = int(task.offsets[min(jobs * most, clients)])
    share = config.training.participation * float(task.offsets[-1]) / timed
    return statistics.median(seconds[1:]) * share

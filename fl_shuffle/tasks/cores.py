"""Independent pieces of array work, side by side on the machine's cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


def on_all_cores(work: Callable[[Part], Result], parts: Iterable[Part]) -> list[Result]:
    """`[work(part) for part in parts]`, in that order, one thread per core.

    Each thread computes with one torch thread, so that a part's result has the same bits on every
    machine. The first part that raises ends it with that error.
    """
    with ThreadPoolExecutor(
        os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        return list(pool.map(work, parts))

"""One thread each for torch and for NumPy's linear algebra, while something of ours is computed.

Clients are spread over processes and threads already. How many threads share a product decides its
last bits, which nothing here may depend on; and OpenBLAS waits for ever where a process forks in
the midst of a product of several threads, as Ray's start does beside a ServerApp.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from importlib import import_module
from typing import ParamSpec, TypeVar

from fl_shuffle._internal.plugins import installed

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread of each inside; the caller's own numbers after."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _one_blas_thread():
            yield
    finally:
        torch.set_num_threads(before)


def keep_one_thread() -> None:
    """Use one thread of each from now on, in a process that is a run's own."""
    import torch

    torch.set_num_threads(1)
    _one_blas_thread()


def on_all_cores(work: Callable[[T], R], parts: Iterable[T]) -> list[R]:
    """Return `[work(part) for part in parts]`, in that order, one thread per core.

    Each thread computes with one torch thread, so that a part's result has the same bits on every
    machine. The first part that raises ends it with that error.
    """
    import torch

    with ThreadPoolExecutor(
        os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        return list(pool.map(work, parts))


def with_one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Return the same function, computed in one thread of NumPy's linear algebra."""

    @wraps(function)
    def alone(*arguments: P.args, **options: P.kwargs) -> R:
        with _one_blas_thread():
            return function(*arguments, **options)

    return alone


def _one_blas_thread() -> AbstractContextManager[object]:
    """Keep to one thread from the call on, until the context is left."""
    import_module("numpy")  # what is loaded later would not be limited
    if not installed("threadpoolctl"):
        # The accountant alone, with NumPy and SciPy: other last digits at most.
        return nullcontext()
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1, user_api="blas")
    return limits

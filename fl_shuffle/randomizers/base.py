"""What a local randomizer is, and how to write one of your own.

A client's clipped mean becomes a report here, before anything leaves it. `LocalRandomizer` is the
class to subclass; `OfOneMean` makes one of a function of a single mean.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle._internal.arrays import FloatArray, Ids
from fl_shuffle._internal.plugins import load_attribute, load_function
from fl_shuffle.errors import ConfigError, InvalidValueError, text_of
from fl_shuffle.randomizers.noise import NoiseStream

log = logging.getLogger("fl_shuffle.client")


OwnFunction = Callable[[NDArray[np.float32], float, float, np.random.Generator], object]
"""(mean [d], epsilon, delta, generator) -> report [d]."""

SMALLEST, LARGEST = 1e-12, 1e12
"""Limits of radii, noise scales and bounds, so that float32 arithmetic neither overflows nor
vanishes."""
SINGLE_REACH = 1e3
"""Reports of a function of one mean are cut at this multiple of the largest clip."""


class Noise:
    """Randomness for k clients in one round: every row's stream is its client's own.

    Parameters
    ----------
    stream : NoiseStream
        Noise of one round.
    clients : ndarray of int64, shape (k,)
        Numbers of the clients.

    Notes
    -----
    Rows depend on the run's key, the round and the client alone, never on who else is asked.
    """

    def __init__(self, stream: NoiseStream, clients: Ids) -> None:
        self._stream = stream
        self._clients = clients

    def normal(self) -> FloatArray:
        """Return standard normal variates, [k, d]; the same at every call."""
        return self._stream.rows("normal", self._clients)

    def laplace(self) -> FloatArray:
        """Return Laplace variates of scale 1, [k, d]; the same at every call."""
        return self._stream.rows("laplace", self._clients)

    def uniform(self, count: int) -> FloatArray:
        """Return `count` numbers in (0, 1) for each client, [k, count].

        They are the same at every call with that count.
        """
        return self._stream.uniform(self._clients, count)

    def generators(self) -> list[np.random.Generator]:
        """Return a NumPy generator for each client."""
        return [self._stream.numpy_generator(client) for client in self._clients.tolist()]

    def keys(self) -> list[bytes]:
        """Return 16 bytes for each client, for exact samplers; the same at every call."""
        return [self._stream.words_key(client) for client in self._clients.tolist()]


class LocalRandomizer(ABC):
    """What every client does to its clipped mean before anything leaves it.

    One object stands for all clients of a run; client i has the local budget (epsilon[i],
    delta[i]). Subclass it, and name the class in the configuration: ``privacy.randomizer =
    "module:Class"``. You promise two things that nobody can check:

    1. For client i, any two means x, y with norm at most radius[i] and any set S of reports,
       P[report(x) in S] <= exp(epsilon[i]) P[report(y) in S] + delta[i].
    2. Row k of what `randomize` returns depends on row k of `means`, on the budget and radius of
       clients[k] and on row k of the noise; on nothing else. Clients of one budget are treated
       alike, or they would not hide one another.

    Parameters
    ----------
    epsilon, delta : ndarray of float, shape (clients,)
        Local budgets; epsilon in nats. All of this is public.
    radius : ndarray of float, shape (clients,)
        Norm that bounds each client's mean.

    Raises
    ------
    ConfigError
        For budgets that have no such randomizer.

    Notes
    -----
    Reports are then cut to `bound` and rounded to a public grid, which is post-processing and makes
    sums exact. The accountant counts a report at (epsilon[i], delta[i]), and amplifies it as any
    local randomizer of that budget.

    Examples
    --------
    >>> class Signs(LocalRandomizer):
    ...     '''The sign of every coordinate, by randomized response with a d-th of the budget.'''
    ...
    ...     def bound(self):
    ...         return self.radius
    ...
    ...     def randomize(self, means, clients, noise):
    ...         each = self.epsilon[clients, None] / means.shape[1]
    ...         kept = noise.uniform(means.shape[1]) < 1 / (1 + np.exp(-each))
    ...         return self.radius[clients, None] * np.where((means >= 0) == kept, 1.0, -1.0)
    """

    norm: ClassVar[int] = 2
    """The norm in which means are clipped: 2, or 1."""
    on_device: ClassVar[bool] = False
    """Whether `reports` takes means on a device other than the processor."""

    def __init__(self, epsilon: FloatArray, delta: FloatArray, radius: FloatArray) -> None:
        """Calibrate for these arrays [clients], all public: see the class."""
        self.epsilon = epsilon
        self.delta = delta
        self.radius = radius

    @abstractmethod
    def bound(self) -> FloatArray:
        """Return what no coordinate of an honest report exceeds in size.

        Returns
        -------
        ndarray of float, shape (clients,)
            What is beyond is cut off at the client, and refused by the shuffler.
        """

    @abstractmethod
    def randomize(self, means: NDArray[np.float32], clients: Ids, noise: Noise) -> FloatArray:
        """Return the reports of some clients.

        It must not raise, nor return what is not finite, because of what a mean holds: such a
        client sends no report, and everybody sees who did not. Where it raises for clients
        together, they are asked one by one.

        Parameters
        ----------
        means : ndarray of float32, shape (k, d)
            Clipped means, one row for each client.
        clients : ndarray of int64, shape (k,)
            Numbers of the clients.
        noise : Noise
            Randomness, one row for each client.

        Returns
        -------
        ndarray of float, shape (k, d)
            The reports.
        """

    def grid(self) -> FloatArray:
        """Return the step of each client's public grid.

        Returns
        -------
        ndarray of float, shape (clients,)
            The smallest power of two that is at least 2^-22 of the client's bound.

        Raises
        ------
        ConfigError
            For bounds that are none.
        """
        bound = np.asarray(self.bound(), dtype=np.float64)
        if bound.shape != self.radius.shape or not bool(
            ((bound >= SMALLEST) & (bound <= LARGEST)).all()
        ):
            raise ConfigError(
                f"privacy.randomizer: {type(self).__name__}.bound() must return a number in "
                f"[{SMALLEST:g}, {LARGEST:g}] for each of the {len(self.radius)} clients"
            )
        mantissa, exponent = np.frexp(bound * 2.0**-22)
        return np.asarray(np.ldexp(1.0, exponent - (mantissa == 0.5)), dtype=np.float64)

    def largest(self) -> FloatArray:
        """Return what no coordinate of a report on the grid exceeds in size, shape (clients,)."""
        # Rounded to a grid of at most 2^-21 of the bound.
        return np.asarray((1.0 + 2.0**-20) * self.bound(), dtype=np.float64)

    def reports(self, means: Tensor, clients: Ids, stream: NoiseStream) -> Tensor:
        """Return what leaves the clients in place of their means, float32 [k, d].

        That is what `randomize` makes of these, cut to the bound and rounded to the grid; NaN for
        clients for whom it raises, or returns what is not finite: they send no report. A randomizer
        that knows how may do all of it in one pass.
        """
        rows = means.numpy()
        reports = np.full(rows.shape, np.nan)
        try:
            reports[:] = self._made(rows.copy(), clients, stream)
        except Exception:
            # One client's mean must not decide over other clients' reports.
            for row in range(len(clients)):
                one = slice(row, row + 1)
                try:
                    reports[one] = self._made(rows[one].copy(), clients[one], stream)
                except Exception as error:
                    what = f"{type(error).__name__}: {text_of(error)}"
                    log.warning("a client's randomizer raised, and it sends no report: %s", what)
        reports[~np.isfinite(reports).all(axis=1)] = np.nan
        bound = np.asarray(self.bound())[clients, None]
        step = self.grid()[clients, None]
        reports = np.rint(np.clip(reports, -bound, bound) / step) * step
        return means.copy_(torch.from_numpy(reports))

    def _made(self, means: NDArray[np.float32], clients: Ids, stream: NoiseStream) -> FloatArray:
        made = np.asarray(self.randomize(means, clients, Noise(stream, clients)), np.float64)
        if made.shape != means.shape:
            raise InvalidValueError(
                "reports of the user's randomizer", f"shape {made.shape}", f"must be {means.shape}"
            )
        return made

    def restricted(self, clients: Ids) -> LocalRandomizer:
        """Return the randomizer of these clients alone, in this order; ids may repeat."""
        return _OfSome(self, clients)


class _OfSome(LocalRandomizer):
    def __init__(self, whole: LocalRandomizer, clients: Ids) -> None:
        super().__init__(whole.epsilon[clients], whole.delta[clients], whole.radius[clients])
        self._whole = whole
        self._clients = clients

    def bound(self) -> FloatArray:
        return np.asarray(self._whole.bound()[self._clients])

    def randomize(self, means: NDArray[np.float32], clients: Ids, noise: Noise) -> FloatArray:
        return self._whole.randomize(means, self._clients[clients], noise)


class OfOneMean(LocalRandomizer):
    """A function of one client's mean, `function(mean, epsilon, delta, generator) -> report`.

    It gets a float32 copy of the mean [d], the client's budget and a NumPy generator of its own.
    """

    def __init__(
        self, function: OwnFunction, epsilon: FloatArray, delta: FloatArray, radius: FloatArray
    ) -> None:
        super().__init__(epsilon, delta, radius)
        self._function = function

    def bound(self) -> FloatArray:
        """Return a bound so far beyond every mean that only nonsense is cut."""
        return np.full(len(self.radius), SINGLE_REACH * float(self.radius.max()))

    def randomize(self, means: NDArray[np.float32], clients: Ids, noise: Noise) -> FloatArray:
        """Randomize one client at a time."""
        reports = np.empty(means.shape)
        for row, (client, generator) in enumerate(
            zip(clients.tolist(), noise.generators(), strict=True)
        ):
            budget = float(self.epsilon[client]), float(self.delta[client])
            report = np.asarray(self._function(means[row].copy(), *budget, generator), float)
            if report.shape != means[row].shape:
                raise InvalidValueError(
                    "report of the user's randomizer",
                    f"shape {report.shape}",
                    f"must be {means.shape[1]} finite numbers",
                )
            reports[row] = report
        return reports


Maker = Callable[[FloatArray, FloatArray, FloatArray], LocalRandomizer]
"""(epsilon, delta, radius), each [clients] -> their randomizer."""


def load_randomizer(path: str) -> tuple[Maker, int]:
    """Return what makes the randomizer at `module:attribute`, and the norm in which it wants means.

    The attribute is a subclass of `LocalRandomizer`, or a function of one mean. Raises
    `ConfigError` if it is neither.
    """
    field = "privacy.randomizer"
    found = load_attribute(path, field=field)
    if isinstance(found, type) and issubclass(found, LocalRandomizer):
        return found, found.norm
    function = load_function(path, "mean", "epsilon0", "delta0", "generator", field=field)
    return partial(OfOneMean, function), OfOneMean.norm

"""Classes of clients as arrays: a run may have a million personal budgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import Mask, Vector
from fl_shuffle.accounting.client_classes import (
    DISCRETE_GAUSSIAN,
    NO_NOISE,
    NOISE_KINDS,
    ClientClass,
)
from fl_shuffle.accounting.report_grid import (
    LEAST_STEPS,
    grid_steps,
    hiding_scale,
    revealing_scale,
)
from fl_shuffle.errors import InvalidValueError

COLUMNS = ("scale", "radius", "sensitivity", "epsilon0", "delta0")


@dataclass(frozen=True, eq=False)
class ClassTable(Sequence[ClientClass]):
    """The columns of many `ClientClass`, each an array [classes]; row i is the class `table[i]`.

    `noise` indexes `NOISE_KINDS`. Raises `InvalidValueError` for what a `ClientClass` refuses.
    """

    noise: NDArray[np.int8]
    scale: Vector
    radius: Vector
    sensitivity: Vector
    epsilon0: Vector
    delta0: Vector
    records: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in (*COLUMNS, "records"):
            if getattr(self, name).shape != self.noise.shape:
                raise InvalidValueError(name, getattr(self, name).shape, "one number per class")
        # All rows at once: a run may have a million. `__getitem__` then builds the first row that
        # is refused, for its message.
        with np.errstate(invalid="ignore"):
            bare = self.is_noise(NO_NOISE)
            good = (self.scale > 0.0) | (self.scale == 0.0) & (self.is_noise("user") | bare)
            for name in COLUMNS:
                values = getattr(self, name)
                good &= np.isfinite(values) & (values >= 0.0) | bare & (name == "epsilon0")
            # Without noise epsilon0 has to be infinite, as `ClientClass` demands; `<=` of masks
            # is an implication.
            good &= bare <= np.isinf(self.epsilon0)
            good &= self.delta0 <= 1.0
            good &= self.scale >= LEAST_STEPS * self.step
        for index in np.flatnonzero(~good)[:1]:
            self[int(index)]  # says what is wrong with it

    @classmethod
    def of(cls, classes: Iterable[ClientClass]) -> ClassTable:
        """Return the table of these classes, in their order."""
        if isinstance(classes, ClassTable):
            return classes
        rows = list(classes)
        return cls.of_columns(
            np.array([NOISE_KINDS.index(row.noise) for row in rows], dtype=np.int8),
            [np.array([getattr(row, name) for row in rows], dtype=float) for name in COLUMNS],
            np.array([row.records for row in rows], dtype=np.int64),
        )

    @classmethod
    def of_columns(
        cls, noise: NDArray[np.int8], numbers: Sequence[Vector], records: NDArray[np.int64]
    ) -> ClassTable:
        """Return the table from the arrays; `numbers` are those of `COLUMNS`, in that order."""
        return cls(noise, **dict(zip(COLUMNS, numbers, strict=True)), records=records)

    @overload
    def __getitem__(self, index: int) -> ClientClass: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ClientClass]: ...
    def __getitem__(self, index: int | slice) -> ClientClass | Sequence[ClientClass]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        noise, records = NOISE_KINDS[self.noise[index]], int(self.records[index])
        scale, radius, sensitivity, epsilon0, delta0 = (
            float(getattr(self, name)[index]) for name in COLUMNS
        )
        return ClientClass(noise, scale, radius, sensitivity, epsilon0, delta0, records)

    def __len__(self) -> int:
        return int(self.noise.size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClassTable):
            return NotImplemented
        names = ("noise", *COLUMNS, "records")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def is_noise(self, noise: str) -> Mask:
        """Return which classes [classes] add this noise."""
        return np.asarray(self.noise == NOISE_KINDS.index(noise))

    @cached_property
    def exposure(self) -> Vector:
        """`ClientClass.exposure` of each class."""
        # No move in noise standard deviations is known of these: the local budget takes its
        # place.
        user = self.is_noise("user") | self.is_noise(NO_NOISE)
        return np.where(user, self.epsilon0, self.move / np.where(user, 1.0, self.hiding_scale))

    @property
    def move(self) -> Vector:
        """How far replacing one unit moves a mean of each class [classes]."""
        # Two means lie in one ball, so no unit moves a mean by more than its diameter.
        return np.minimum(self.sensitivity, 2.0 * self.radius)

    @cached_property
    def step(self) -> Vector:
        """`ClientClass.step` of each class."""
        steps, discrete = np.zeros(len(self)), self.is_noise(DISCRETE_GAUSSIAN)
        # Of continuous noise the step is a matter of the sum's account (`SumTable.grid`):
        # shuffled reports of one scale share a grid.
        steps[discrete] = grid_steps(self.scale[discrete], self.radius[discrete])
        return steps

    @cached_property
    def hiding_scale(self) -> Vector:
        """`ClientClass.hiding_scale` of each class."""
        scale, discrete = self.scale.copy(), self.is_noise(DISCRETE_GAUSSIAN)
        scale[discrete] = hiding_scale(self.scale[discrete], self.step[discrete])
        return scale

    @cached_property
    def attacked(self) -> ClassTable:
        """The classes as an attack on continuous noise finds them; without discrete noise the same.

        An attacker who adds some noise to discrete Gaussian reports has continuous ones. Their
        means are points of the grid: along an axis they reach, and move, a whole number of steps.
        """
        discrete = self.is_noise(DISCRETE_GAUSSIAN)
        if not discrete.any():
            return self
        step = self.step[discrete]
        noise, scale = self.noise.copy(), self.scale.copy()
        radius, sensitivity = self.radius.copy(), self.sensitivity.copy()
        noise[discrete] = NOISE_KINDS.index("gaussian")
        scale[discrete] = revealing_scale(scale[discrete], step)
        # Rounded down to whole steps, on which the means lie: an attack may claim only what data
        # reach (docs/research/proofs, section 14, "From below").
        for lengths in (radius, sensitivity):
            lengths[discrete] = np.floor(lengths[discrete] / step) * step
        return replace(self, noise=noise, scale=scale, radius=radius, sensitivity=sensitivity)


def largest_of_classes(values: NDArray[Any], class_of: NDArray[np.int64], size: int) -> Any:
    """Return the largest of the clients' `values` [n] >= 0 in each class [size]; 0 for an empty
    one."""
    # One class is the usual case, and a plain maximum is faster than an indexed one.
    if size == 1:
        return values.max(initial=0, keepdims=True)
    largest = np.zeros(size, dtype=values.dtype)
    np.maximum.at(largest, class_of, values)
    return largest


class DistinctRows(NamedTuple):
    """`first` [rows]: where each distinct row stands first; `inverse` [n]: which row each is."""

    first: NDArray[np.int64]
    inverse: NDArray[np.int64]


def distinct_rows(*columns: NDArray[Any]) -> DistinctRows:
    """Return the distinct rows of columns [n] of numbers, in lexicographic order."""
    # Constant columns do not tell rows apart, and each column costs a part of the sort.
    varying = [values for values in columns if values.size and bool((values != values[0]).any())]
    if not varying:
        size = columns[0].size
        return DistinctRows(np.zeros(min(1, size), np.int64), np.zeros(size, np.int64))
    # `lexsort` takes its last key first.
    order = np.lexsort(varying[::-1])
    new = np.zeros(order.size, dtype=bool)
    new[0] = True
    for values in varying:
        placed = values[order]
        new[1:] |= placed[1:] != placed[:-1]
    inverse = np.empty(order.size, dtype=np.int64)
    inverse[order] = np.cumsum(new) - 1
    # The sort is stable: the first of equal rows is the first there is.
    return DistinctRows(order[new], inverse)

"""The general check: made-up records, who is computed together, and what must be the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fl_shuffle.errors import InvalidValueError

POOL = 6
"""Made-up records: four ordinary ones, one of large and one of small numbers."""
SIZES = 1.0, 1.0, 1.0, 1.0, 30.0, 0.03
"""By what the numbers of each made-up record are multiplied."""
COMPANIES: tuple[tuple[int, ...], ...] = (
    (0, 1),
    (1, 0, 2),
    (0, 4),
    (5, 4, 3, 2, 1, 0),
    (2, 2, 5, 4, 0, 1, 3, 3, 0, 2, 1, 4, 2),
)
"""Who is computed together: pairs, all of them backwards, and records that occur twice."""
CROWD = tuple(i * 7 % POOL for i in range(50))
"""The same for code that costs little: as many as some code treats in another way."""
ALONE = "every record's result must depend on that record alone"
KEEP_NOTHING = "compute it anew in every call, or from constants when the object is made"


class Subject(NamedTuple):
    """What is tried, as an error calls it: `field` = `value`."""

    field: str
    value: object

    def refused(self, why: str, remedy: str = "") -> InvalidValueError:
        """Return the error that says why it may not be used."""
        return InvalidValueError(self.field, self.value, why, remedy)


class Found(NamedTuple):
    """What a company has got: `rows` [N, ...], one for each record; `total`, which is the sum of
    what the first and the last record contribute."""

    rows: Tensor
    total: Tensor


Compute = Callable[[Sequence[int]], Found]
"""(indices of made-up records that are computed together) -> what they get."""


def made_up(shape: tuple[int, ...], kind: str = "normal") -> Tensor:
    """Return the pool's records, float64 [POOL, ...]: always the same. `kind`: numbers about zero
    ("normal"), whole ones as of classes or tokens ("bits"), or from 0 to 1 ("uniform")."""
    draw = torch.Generator().manual_seed(0)
    size = (POOL, *shape)
    if kind == "bits":
        return torch.randint(0, 2, size, generator=draw).double()
    if kind == "uniform":
        return torch.rand(size, generator=draw, dtype=torch.float64)
    scale = torch.tensor(SIZES, dtype=torch.float64).view(-1, *[1] * len(shape))
    return torch.randn(size, generator=draw, dtype=torch.float64) * scale


def made_up_labels(size: int, numbers: int) -> Tensor:
    """Return labels of the pool: some of `size` classes that occur several times, int64 [POOL], or
    float32 [POOL, numbers] from 0 to 1, two records having the same ones."""
    if numbers:
        given = torch.rand(POOL, numbers, generator=torch.Generator().manual_seed(1))
        given[1] = given[0]
        return given
    return torch.tensor([0, 0, 1, 0, size - 1, 1]) % size


def differs(compute: Compute, rounding: float, companies: Sequence[Sequence[int]]) -> str:
    """Return in what a record's result differs: "again" in a second call, "company" beside others,
    or "" in nothing. Not finite is equal to not finite of the same kind."""
    alone = [compute([i]) for i in range(POOL)]
    for i, first in enumerate(alone):
        if not _close(compute([i]), first, alone, rounding):
            return "again"
    for company in companies:
        ends = alone[company[0]].total + alone[company[-1]].total
        expected = Found(torch.cat([alone[i].rows for i in company]), ends)
        if not _close(compute(company), expected, alone, rounding):
            return "company"
    return ""


def _close(found: Found, expected: Found, alone: Sequence[Found], rounding: float) -> bool:
    """Return whether both agree: each row to a share of itself or, if that is more, of an ordinary
    one."""
    if found.rows.shape != expected.rows.shape or found.total.shape != expected.total.shape:
        return False
    usual = max(size_of(each.rows) for each in alone[:4])
    in_all = max(size_of(each.total) for each in alone[:4])
    pairs = [(*each, usual) for each in zip(found.rows, expected.rows, strict=True)]
    pairs.append((found.total, expected.total, in_all))
    return all(
        torch.allclose(
            mine, wanted, rtol=0.0, atol=rounding * max(size_of(wanted), least), equal_nan=True
        )
        for mine, wanted, least in pairs
    )


def size_of(values: Tensor) -> float:
    """Return the largest finite number in size; 0 of none."""
    return float(torch.nan_to_num(values, 0.0, 0.0, 0.0).abs().max()) if values.numel() else 0.0


def copies_of(thing: Any) -> tuple[Any, Any]:
    """Return two copies, as unused as it is, where it can be copied."""
    try:
        return copy.deepcopy(thing), copy.deepcopy(thing)
    except Exception:
        # Somebody's object, with a lock or a file in it: changes of one object show as well.
        return thing, thing


def try_rows(
    compute: Callable[[Sequence[int]], np.ndarray[Any, Any]],
    subject: Subject,
    *,
    rounding: float,
    remedy: str,
) -> None:
    """Have `compute` make rows of companies of the pool's records, which it takes by their index.

    Raises `InvalidValueError` where a record's row changes with those beside it, or in a second
    call.
    """

    def found(company: Sequence[int]) -> Found:
        rows = torch.from_numpy(np.array(compute(company), dtype=np.float64))
        return Found(rows, torch.zeros(()))

    how = differs(found, rounding, (*COMPANIES, CROWD))
    if how == "again":
        raise subject.refused("gives the same record another row in a second call", remedy)
    if how:
        raise subject.refused(
            f"mixes records: a record's row changes with those beside it; {ALONE}", remedy
        )

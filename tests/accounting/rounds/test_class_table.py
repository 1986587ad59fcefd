"""Classes as arrays are the classes, row by row."""

from __future__ import annotations

import numpy as np
import pytest

from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.accounting.rounds.local_guarantees import accounted_locally, local_epsilons
from fl_shuffle.errors import InvalidValueError


def some_classes(count: int, noises: tuple[str, ...]) -> list[ClientClass]:
    rng = np.random.default_rng(count)
    return [
        ClientClass(noises[i % len(noises)], *rng.uniform(0.1, 2.0, 4).tolist(), 1e-5, i + 1)
        for i in range(count)
    ]


def test_rows_are_the_classes() -> None:
    rows = some_classes(9, ("gaussian", "laplace", "user"))
    table = ClassTable.of(rows)
    assert list(table) == rows and len(table) == 9 and table[2:4] == rows[2:4]
    assert table.exposure.tolist() == [row.exposure for row in rows]
    assert table == ClassTable.of(rows) and table != ClassTable.of(rows[::-1])
    assert ClassTable.of(table) is table


def test_a_wrong_class_is_named_as_alone() -> None:
    rows = some_classes(3, ("gaussian",))
    table = ClassTable.of(rows)
    for name, value in (("scale", 0.0), ("radius", -1.0), ("delta0", 1.5), ("epsilon0", np.nan)):
        columns = {name: getattr(table, name).copy() for name in ("scale", "radius", "sensitivity",
                   "epsilon0", "delta0")}  # fmt: skip
        columns[name][1] = value
        with pytest.raises(InvalidValueError, match=name):
            ClassTable(table.noise, *columns.values(), table.records)


@pytest.mark.parametrize("noise", ["laplace", "user"])
def test_many_local_laws_are_rounded_up_a_little(noise: str) -> None:
    """Nobody is accounted better than its own noise allows, and the most exposed exactly."""
    few, many = (ClassTable.of(some_classes(count, (noise,))) for count in (100, 400))
    assert accounted_locally(few) is few
    rounded = accounted_locally(many)
    assert np.all(rounded.exposure >= many.exposure)
    assert np.all(rounded.exposure <= many.exposure * 1.0101)
    assert rounded.exposure.max() == pytest.approx(many.exposure.max(), rel=1e-15)
    assert len(np.unique(rounded.exposure)) < 400 and np.array_equal(rounded.scale, many.scale)
    clients = np.array([int(np.argmax(many.exposure)), 0, 1])
    own, accounted = (
        local_epsilons(table, clients, np.array([1, 1, 1]), 1e-3) for table in (many, rounded)
    )
    assert accounted[0] == pytest.approx(own[0], rel=1e-13) and np.all(accounted >= own)

"""What parties send one another: nothing is read that is not what it says of itself."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from flwr.app import Array

from fl_shuffle.flower.messages import float32_array


def saved(values: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
WHOLE: dict[str, Any] = {
    "dtype": "float32", "shape": (2, 3), "stype": "numpy.ndarray", "data": saved(VALUES)
}  # fmt: skip


@pytest.mark.parametrize("shape", [(2, 3), (6,), (1, 2, 3), (0, 3), ()])
def test_whole_float32_arrays_are_read(shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    found = float32_array(Array(**{**WHOLE, "shape": shape, "data": saved(values)}))
    assert found is not None and found.dtype == np.float32 and np.array_equal(found, values)
    found[...] = 7.0  # a copy: the message stays as it came


@pytest.mark.parametrize(
    "lie",
    [
        {"shape": (3, 2)},
        {"shape": (6,)},
        {"shape": (2, 3, 1)},
        {"shape": (200, 300)},
        {"dtype": "float64"},
        {"stype": "pickle"},
        {"data": saved(VALUES)[:-1]},
        {"data": saved(VALUES) + b"\0"},
        {"data": saved(VALUES.astype(np.float64))},
        {"data": saved(VALUES.astype(">f4"))},
        {"data": saved(np.asfortranarray(VALUES))},
        {"data": b""},
    ],
    ids=" ".join,
)
def test_an_array_that_is_not_what_it_says_is_none(lie: dict[str, Any]) -> None:
    """Shape, type, order, and length agree in what is declared, in the header, and in the bytes."""
    assert float32_array(Array(**{**WHOLE, **lie})) is None

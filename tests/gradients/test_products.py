"""Products of small matrices in vector registers, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from fl_shuffle.compiled import kernel, products


@kernel(products)
def _product(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    products.product(left, right, out)


@pytest.mark.parametrize(
    ("rows", "columns"), [(5, 16), (7, 45), (10, 60), (64, 16), (4, 33), (9, 15), (1, 1)]
)
def test_each_number_is_its_own_row_times_its_own_column(rows: int, columns: int) -> None:
    """Of views, too; and its bits do not hang on where among the others it lies."""
    rng = np.random.default_rng(rows)
    left = rng.standard_normal((rows, 40)).astype(np.float32)[:, 3:30]
    right = rng.standard_normal((27, columns)).astype(np.float32)
    out, turned = np.full((2, rows, columns), np.nan, np.float32)
    _product(left, right, out.reshape(-1))
    sizes = np.abs(left).astype(float) @ np.abs(right).astype(float)
    assert np.all(np.abs(out - left.astype(float) @ right.astype(float)) <= 27 * 2.0**-24 * sizes)
    _product(left[::-1], np.ascontiguousarray(right[:, ::-1]), turned.reshape(-1))
    assert np.array_equal(turned[::-1, ::-1], out)

"""Products of small float32 matrices, a piece of kernels: five rows by sixteen columns at a time.

Compiled loops keep no vector in a register, and BLAS takes longer to begin than a few dozen rows
take: the sums of a pooled round of softmax regression took 1.3 to 1.6 times as long with either.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fl_shuffle._internal.compiled import piece

LANES = 16
"""Numbers of float32 in one vector of AVX-512, or two of AVX2."""
ROWS = 5
_VECTOR, _INDEX = ir.VectorType(ir.FloatType(), LANES), ir.IntType(32)


def _write_block(_: Any, left: Any, row: Any, right: Any, column: Any, out: Any) -> Any:
    """Return the `ROWS` rows from `row` and `LANES` columns from `column` of `product`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, row, _, column, _ = arguments
        left, right, out = (
            (
                signature.args[i],
                context.make_array(signature.args[i])(context, builder, arguments[i]),
            )
            for i in (0, 2, 4)
        )

        def place(array: Any, *indices: Any) -> Any:
            return cgutils.get_item_pointer(context, builder, *array, indices, wraparound=False)

        def vector_at(array: Any, *indices: Any) -> Any:
            return builder.bitcast(place(array, *indices), _VECTOR.as_pointer())

        def in_all_lanes(number: Any) -> Any:
            first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, _INDEX(0))
            nowhere = ir.Constant(ir.VectorType(_INDEX, LANES), None)
            return builder.shuffle_vector(first, first, nowhere)

        rows = [builder.add(row, row.type(k)) for k in range(ROWS)]
        sums = [cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, None)) for _ in rows]
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        with cgutils.for_range(builder, cgutils.unpack_tuple(builder, right[1].shape)[0]) as loop:
            numbers = builder.load(vector_at(right, loop.index, column), align=4)
            for own, total in zip(rows, sums, strict=True):
                factor = in_all_lanes(builder.load(place(left, own, loop.index)))
                builder.store(builder.call(add, [factor, numbers, builder.load(total)]), total)
        width = cgutils.unpack_tuple(builder, right[1].shape)[1]
        for own, total in zip(rows, sums, strict=True):
            start = builder.add(builder.mul(own, width), column)
            builder.store(builder.load(total), vector_at(out, start), align=4)
        return context.get_dummy_value()

    return types.void(left, types.intp, right, types.intp, out), generate


write_block: Any = intrinsic(_write_block)


@piece
def product(left: Any, right: Any, out: Any) -> None:
    """Compute the first m n numbers of `out`, row by row: left [m, k] times right [k, n], float32,
    the rows of `right` contiguous.

    Each number is one chain of fused multiply-adds over k, if there are `ROWS` by `LANES` at least:
    it depends on its own row and column alone. (Reshaping took longer than a product of a client's
    few records.)
    """
    rows, columns = left.shape[0], right.shape[1]
    if rows >= ROWS and columns >= LANES:
        # The last rows and columns again, of the same bits, where fewer are left.
        for row in range(0, rows, ROWS):
            for column in range(0, columns, LANES):
                write_block(left, min(row, rows - ROWS), right, min(column, columns - LANES), out)
        return
    for row in range(rows):
        line = out[row * columns : (row + 1) * columns]
        for column in range(columns):
            line[column] = np.float32(0.0)
        for k in range(right.shape[0]):
            factor, numbers = left[row, k], right[k]
            for column in range(columns):
                line[column] += factor * numbers[column]

"""Products of small matrices as pieces of kernels: a few vector registers, one fused multiply-add.

Every number of a result is one chain of fused multiply-adds in a fixed order, whichever lane of a
vector, and whichever of these pieces, computes it: its bits depend on its own terms alone.

Loops in Python with a fused multiply-add have the same bits, but keep no vector in a register:
logits of 64 records of 784 features took 94 microseconds, not 27; clients' products 1.3 to 2.3
times as long.

Matrices are C-contiguous, and float32 unless something else is said. Nothing is checked: the caller
stays inside them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
"""Numbers of float32 in one vector of AVX-512, or two of AVX2."""
FETCHED_AHEAD, CACHE_LINE = 1 << 13, 64
"""Bytes: records so far ahead are asked for while others are worked on. Left to itself a processor
fetches short rows late: beside other work, that has had the caches, rounds took 7% longer."""
_FLOAT, _DOUBLE, _INT = ir.FloatType(), ir.DoubleType(), ir.IntType(32)


class _Vectors:
    """Vectors of `lanes` float32 (or `real`) in the function that is being built; one lane is a
    number."""

    def __init__(self, builder: Any, lanes: int, real: Any = _FLOAT) -> None:
        self._builder = builder
        self._lanes = lanes
        self._suffix = f"{'' if lanes == 1 else f'v{lanes}'}{'f32' if real is _FLOAT else 'f64'}"
        self.type = real if lanes == 1 else ir.VectorType(real, lanes)
        self.zero = ir.Constant(self.type, 0.0 if lanes == 1 else None)

    def load(self, pointer: Any) -> Any:
        return self._builder.load(self._cast(pointer), align=4)

    def store(self, value: Any, pointer: Any) -> None:
        self._builder.store(value, self._cast(pointer), align=4)

    def spread(self, pointer: Any) -> Any:
        """The number there, in every lane."""
        number = self._builder.load(pointer, align=4)
        if self._lanes == 1:
            return number
        nothing = ir.Constant(self.type, ir.Undefined)
        first = self._builder.insert_element(nothing, number, ir.Constant(_INT, 0))
        mask = ir.Constant(ir.VectorType(_INT, self._lanes), None)
        return self._builder.shuffle_vector(first, nothing, mask)

    def multiply_add(self, left: Any, right: Any, sum_: Any) -> Any:
        shape = ir.FunctionType(self.type, [self.type] * 3)
        name = f"llvm.fma.{self._suffix}"
        function = cgutils.get_or_insert_function(self._builder.module, shape, name)
        return self._builder.call(function, (left, right, sum_))

    def _cast(self, pointer: Any) -> Any:
        return self._builder.bitcast(pointer, self.type.as_pointer())


class _Matrix:
    """An array argument: rows of `width` numbers, the last axis of the array."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        array = context.make_array(kind)(context, builder, value)
        self._builder = builder
        self._data = array.data
        self.width = cgutils.unpack_tuple(builder, array.shape)[-1]

    def at(self, row: Any, column: Any) -> Any:
        start = self._builder.mul(row, self.width)
        return self._builder.gep(self._data, [self._builder.add(start, column)])


def _signature(kinds: Iterable[Any]) -> Any:
    """Arrays as they are given; everything else is a size or a position."""
    return types.void(*(kind if isinstance(kind, types.Array) else types.intp for kind in kinds))


def _fetch_ahead(builder: Any, x: _Matrix, row: Any, records: int) -> None:
    """Ask for as much of x as `records` rows from `row` on, `FETCHED_AHEAD` bytes later. What lies
    beyond its end is not touched: the processor may do as it likes with such a wish."""
    size, byte = x.width.type, ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _INT, _INT, _INT])
    wish = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
    wanted = builder.mul(x.width, ir.Constant(size, 4 * records))
    lines = builder.sdiv(
        builder.add(wanted, ir.Constant(size, CACHE_LINE - 1)), ir.Constant(size, CACHE_LINE)
    )
    first = builder.bitcast(x.at(row, ir.Constant(size, FETCHED_AHEAD // 4)), byte)
    to_read, to_keep, data = (ir.Constant(_INT, flag) for flag in (0, 3, 1))
    with cgutils.for_range(builder, lines) as loop:
        line = builder.gep(first, [builder.mul(loop.index, ir.Constant(size, CACHE_LINE))])
        builder.call(wish, [line, to_read, to_keep, data])


def _affine(records: int) -> Any:
    def affine(context: Any, x: Any, row: Any, weights: Any, panel: Any, out: Any, to: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x, weights, out = (
                _Matrix(context, builder, signature.args[i], arguments[i]) for i in (0, 2, 4)
            )
            _, row, _, panel, _, to = arguments
            vectors = _Vectors(builder, LANES)
            size = x.width.type
            first = builder.mul(panel, builder.add(x.width, ir.Constant(size, 1)))
            zero = ir.Constant(size, 0)
            bias = vectors.load(weights.at(builder.add(first, x.width), zero))
            sums = [cgutils.alloca_once_value(builder, bias) for _ in range(records)]
            if records > 1:
                _fetch_ahead(builder, x, row, records)
            with cgutils.for_range(builder, x.width) as loop:
                weight = vectors.load(weights.at(builder.add(first, loop.index), zero))
                for i, total in enumerate(sums):
                    own = builder.add(row, ir.Constant(size, i))
                    number = vectors.spread(x.at(own, loop.index))
                    added = vectors.multiply_add(number, weight, builder.load(total))
                    builder.store(added, total)
            results = [builder.load(total) for total in sums]
            class_ = builder.mul(panel, ir.Constant(size, LANES))
            # Turned round: the records of a class lie together.
            column = _Vectors(builder, records)
            for lane in range(LANES):
                position = ir.Constant(_INT, lane)
                numbers = [builder.extract_element(result, position) for result in results]
                turned = numbers[0]
                if records > 1:
                    turned = ir.Constant(column.type, ir.Undefined)
                    for i, number in enumerate(numbers):
                        turned = builder.insert_element(turned, number, ir.Constant(_INT, i))
                column.store(turned, out.at(builder.add(class_, ir.Constant(size, lane)), to))
            return context.get_dummy_value()

        return _signature((x, row, weights, panel, out, to)), generate

    return intrinsic(affine)


affine_4 = _affine(4)
"""(x [n, f], row, weights [p * (f + 1), 16], panel, out [c, t], to): the outputs of records row ..
row + 3 for the 16 classes of a panel go to columns to .. to + 3. A panel's last row is its bias."""
affine_1 = _affine(1)
"""The same for one record."""


def _outer(lanes: int, classes: int) -> Any:
    def outer(
        context: Any,
        error: Any,
        class_: Any,
        column: Any,
        count: Any,
        x: Any,
        row: Any,
        feature: Any,
        out: Any,
        at: Any,
        fresh: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            error, x, out = (
                _Matrix(context, builder, signature.args[i], arguments[i]) for i in (0, 4, 7)
            )
            _, class_, column, count, _, row, feature, _, at, fresh = arguments
            vectors = _Vectors(builder, lanes)
            size = count.type
            zero = ir.Constant(size, 0)
            own = [builder.add(class_, ir.Constant(size, i)) for i in range(classes)]
            places = [
                out.at(zero, builder.add(builder.add(at, feature), builder.mul(one, x.width)))
                for one in own
            ]
            sums = [cgutils.alloca_once_value(builder, vectors.zero) for _ in own]
            with builder.if_then(builder.icmp_signed("==", fresh, zero)):
                for place, total in zip(places, sums, strict=True):
                    builder.store(vectors.load(place), total)
            with cgutils.for_range(builder, count) as loop:
                numbers = vectors.load(x.at(builder.add(row, loop.index), feature))
                record = builder.add(column, loop.index)
                for one, total in zip(own, sums, strict=True):
                    factor = vectors.spread(error.at(one, record))
                    added = vectors.multiply_add(factor, numbers, builder.load(total))
                    builder.store(added, total)
            for place, total in zip(places, sums, strict=True):
                vectors.store(builder.load(total), place)
            return context.get_dummy_value()

        kinds = (error, class_, column, count, x, row, feature, out, at, fresh)
        return _signature(kinds), generate

    return intrinsic(outer)


outer_16x5 = _outer(16, 5)
"""(error [c, t], class, column, count, x [n, f], row, feature, out [*], at, fresh): adds up
error[class, column + i] * x[row + i, feature] over i < count, for 5 classes and 16 features, into
out[at + class * f + feature]; from zero if `fresh`, else from what is there."""
outer_16x1 = _outer(16, 1)
"""The same for one class."""
outer_4x5 = _outer(4, 5)
"""The same for 5 classes and 4 features."""
outer_4x1 = _outer(4, 1)
"""The same for one class and 4 features."""
outer_1x5 = _outer(1, 5)
"""The same for 5 classes and one feature."""
outer_1x1 = _outer(1, 1)
"""The same for one class and one feature."""


WIDE_LANES, APART = 16, 3
"""Columns that `column_products` multiplies at a time, each by so many others."""


def _column_products() -> Any:
    def multiply(context: Any, left: Any, classes: Any, apart: Any, out: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            left, out = (_Matrix(context, builder, signature.args[i], arguments[i]) for i in (0, 3))
            _, classes, apart, _ = arguments
            vectors = _Vectors(builder, WIDE_LANES, _DOUBLE)
            size = classes.type
            lanes = ir.Constant(size, WIDE_LANES)
            steps = [ir.Constant(size, i) for i in range(APART)]
            totals = [cgutils.alloca_once_value(builder, vectors.zero) for _ in steps]
            with cgutils.for_range(builder, builder.sdiv(out.width, lanes)) as tile:
                first = builder.mul(tile.index, lanes)
                for total in totals:
                    builder.store(vectors.zero, total)
                with cgutils.for_range(builder, classes) as loop:
                    own = vectors.load(left.at(loop.index, first))
                    for step, total in zip(steps, totals, strict=True):
                        column = builder.add(builder.add(first, apart), step)
                        other = vectors.load(left.at(loop.index, column))
                        builder.store(vectors.multiply_add(own, other, builder.load(total)), total)
                for step, total in zip(steps, totals, strict=True):
                    vectors.store(builder.load(total), out.at(step, first))
            return context.get_dummy_value()

        return _signature((left, classes, apart, out)), generate

    return intrinsic(multiply)


column_products = _column_products()
"""(left [c, t + m], classes, apart, out [3, t]), all float64, t a multiple of 16: out[j, i] becomes
the scalar product of the first `classes` numbers of the columns i and i + apart + j; m is at least
apart + 2."""

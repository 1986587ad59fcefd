"""Loops compiled for this machine by numba, and kept for the next process.

For arithmetic that the product lives by and that NumPy and torch can only do in many passes over
memory. The first use on a machine compiles (a second or two); later processes load what was kept
beside the source, or in the user's cache directory where that cannot be written. Importing this
package and loading a kernel costs about 0.7 s: import it where it is used.

No contraction to fused multiply-adds and no reordering: what a kernel computes has the bits that
the same operations have in NumPy, on every processor. Where a fused multiply-add is wanted it is
written (`matrix_products`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

log = logging.getLogger("fl_shuffle.compiled")

Function = Callable[..., Any]


def kernel(*ingredients: ModuleType) -> Callable[[Function], Function]:
    """Compile for each combination of argument types; runs without the interpreter lock.

    ingredients: the modules, besides the function's own, whose constants and pieces go into it.
    What was kept is used only while they and this package are what they were.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for module in ingredients:
        digest.update(Path(str(module.__file__)).read_bytes())

    def compiled(function: Function) -> Function:
        # numba compares the function's own file only; what it keeps is filed under this name.
        function.__qualname__ += f"-{digest.hexdigest()[:16]}"
        try:
            return njit(function, cache=True, nogil=True, error_model="numpy")
        except RuntimeError as reason:
            # No directory to keep it in: it is compiled again in every process.
            log.info("%s", reason)
            return njit(function, nogil=True, error_model="numpy")

    return compiled


def inlined(function: Function) -> Function:
    """A piece of kernels, which is copied into them."""
    return njit(function, inline="always", error_model="numpy")


def _bits_of(context: Any, value: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


def _float_of(context: Any, value: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


def _bits_of_double(context: Any, value: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


def _double_of(context: Any, value: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


bits_of_double: Any = intrinsic(_bits_of_double)
"""The bits of a float64 as an int64, inside kernels."""
double_of: Any = intrinsic(_double_of)
"""The float64 with these bits, inside kernels."""
bits_of: Any = intrinsic(_bits_of)
"""The bits of a float32 as an int32, inside kernels."""
float_of: Any = intrinsic(_float_of)
"""The float32 with these bits, inside kernels."""

"""Loops compiled for this machine by numba, and kept for the next process.

For arithmetic that the product lives by and that NumPy and torch can only do in many passes over
memory. The first use on a machine compiles (some seconds); later processes load what was kept
beside the source, or in the user's cache directory where that cannot be written. Importing this
package and loading a kernel costs about 0.7 s: import it where it is used.

No contraction to fused multiply-adds and no reordering, unless a piece says so: what a kernel
computes has the same bits on every processor.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

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


def piece(function: Function) -> Function:
    """Return a piece of kernels whose bits are those of one machine: multiply-adds may be fused."""
    return njit(function, nogil=True, error_model="numpy", fastmath={"contract"})


def reordered(function: Function) -> Function:
    """Return the same, whose sums may be taken in any order."""
    return njit(function, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})


def inlined(function: Function) -> Function:
    """Return a piece of kernels, which is copied into them."""
    return njit(function, inline="always", error_model="numpy")


def _same_bits(source: Any, target: Any) -> Any:
    def reinterpret(context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return intrinsic(reinterpret)


bits_of_double = _same_bits(types.float64, types.int64)
"""The bits of a float64 as an int64, inside kernels."""
double_of = _same_bits(types.int64, types.float64)
"""The float64 with these bits, inside kernels."""
bits_of = _same_bits(types.float32, types.int32)
"""The bits of a float32 as an int32, inside kernels."""
float_of = _same_bits(types.int32, types.float32)
"""The float32 with these bits, inside kernels."""

"""A run: its parts, the server's steps after shuffling, and the engine that runs all of it here.

`parts` makes what a configuration names. `robust` estimates the mean of shuffled reports where some
may be hostile, and `optimizer` turns the mean into the next model; both cost no privacy. `launch`
starts a run in this process, in Ray's, or on Flower's runtime.
"""

from typing import TYPE_CHECKING

from fl_shuffle._internal.lazy import lazy_names

if TYPE_CHECKING:
    from fl_shuffle.federation.parts import Federation, RunParts

__all__ = ["Federation", "RunParts"]

__getattr__, __dir__ = lazy_names(
    __name__, {"fl_shuffle.federation.parts": ("Federation", "RunParts")}
)

"""The Flower side: the strategy, and what a user's own apps need."""

from typing import TYPE_CHECKING

from fl_shuffle._internal.lazy import lazy_names

if TYPE_CHECKING:
    from fl_shuffle.flower.local_mod import LocalRandomizerMod
    from fl_shuffle.flower.mods import ShuffleClientApp
    from fl_shuffle.flower.strategy import ShuffleStrategy

__all__ = ["LocalRandomizerMod", "ShuffleClientApp", "ShuffleStrategy"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_shuffle.flower.local_mod": ("LocalRandomizerMod",),
        "fl_shuffle.flower.mods": ("ShuffleClientApp",),
        "fl_shuffle.flower.strategy": ("ShuffleStrategy",),
    },
)

"""The Flower side: the only place in the framework that imports flwr."""

from fl_shuffle.flower.mod import LocalRandomizerMod, ShuffleClientApp
from fl_shuffle.flower.strategy import RoundBook, Schedule, ShuffleStrategy

__all__ = ["LocalRandomizerMod", "RoundBook", "Schedule", "ShuffleClientApp", "ShuffleStrategy"]

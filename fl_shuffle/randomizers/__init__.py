"""What a client does to its clipped mean before anything leaves it.

`LocalRandomizer` is the base class of user-defined randomizers
(docs/how-to/randomizer-analyzer.md); those that ship are its subclasses: Gaussian and Laplace noise
of each client's own scale, rounded to a public grid (`additive`), and their discrete forms, drawn
exactly (`discrete`). All noise comes from one source, keyed by round and client (`noise`,
docs/concepts/noise.md). `personal` puts a run's randomizer together; `aggregate_noise` draws the
noise of a whole sum where no reports are made.
"""

from fl_shuffle.randomizers.additive import Gaussian, Laplace
from fl_shuffle.randomizers.base import LocalRandomizer, Noise, OfOneMean
from fl_shuffle.randomizers.discrete import DiscreteGaussian, DiscreteLaplace

__all__ = [
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Gaussian",
    "Laplace",
    "LocalRandomizer",
    "Noise",
    "OfOneMean",
]

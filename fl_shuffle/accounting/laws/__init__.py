"""What a report looks like to an accountant: laws of the amplification variable.

Randomizers on finite and continuous domains, their products, pairs of inputs over finitely many
outcomes, and the Gaussian mechanism by itself. Nothing here knows how many clients there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_shuffle.lazy import lazy_names

if TYPE_CHECKING:
    from fl_shuffle.accounting.laws.amplification import (
        AmplificationLaw,
        AtomicLaw,
        Case,
        MixtureLaw,
    )
    from fl_shuffle.accounting.laws.continuous import DensityRandomizer, LaplaceRandomizer
    from fl_shuffle.accounting.laws.finite import (
        FiniteRandomizer,
        KRandomizedResponse,
        MatrixRandomizer,
        Randomizer,
    )
    from fl_shuffle.accounting.laws.frequency_oracles import (
        BinaryLocalHashing,
        HadamardResponse,
        OptimizedUnaryEncoding,
        Rappor,
    )
    from fl_shuffle.accounting.laws.gaussian_mechanism import (
        analytic_sigma,
        gaussian_delta,
        gaussian_epsilon,
        gaussian_mu,
    )
    from fl_shuffle.accounting.laws.outcome_pair import OutcomePair
    from fl_shuffle.accounting.laws.products import JointComposition, ParallelComposition

__all__ = [
    "AmplificationLaw",
    "AtomicLaw",
    "BinaryLocalHashing",
    "Case",
    "DensityRandomizer",
    "FiniteRandomizer",
    "HadamardResponse",
    "JointComposition",
    "KRandomizedResponse",
    "LaplaceRandomizer",
    "MatrixRandomizer",
    "MixtureLaw",
    "OptimizedUnaryEncoding",
    "OutcomePair",
    "ParallelComposition",
    "Randomizer",
    "Rappor",
    "analytic_sigma",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_shuffle.accounting.laws.amplification": (
            "AmplificationLaw",
            "AtomicLaw",
            "Case",
            "MixtureLaw",
        ),
        "fl_shuffle.accounting.laws.continuous": ("DensityRandomizer", "LaplaceRandomizer"),
        "fl_shuffle.accounting.laws.finite": (
            "FiniteRandomizer",
            "KRandomizedResponse",
            "MatrixRandomizer",
            "Randomizer",
        ),
        "fl_shuffle.accounting.laws.frequency_oracles": (
            "BinaryLocalHashing",
            "HadamardResponse",
            "OptimizedUnaryEncoding",
            "Rappor",
        ),
        "fl_shuffle.accounting.laws.gaussian_mechanism": (
            "analytic_sigma",
            "gaussian_delta",
            "gaussian_epsilon",
            "gaussian_mu",
        ),
        "fl_shuffle.accounting.laws.products": ("JointComposition", "ParallelComposition"),
        "fl_shuffle.accounting.laws.outcome_pair": ("OutcomePair",),
    },
)

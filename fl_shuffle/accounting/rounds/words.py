"""The sources and notes of a run's columns, for each kind of randomizer."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ColumnWords:
    """The sentences of columns that depend on the kind of randomizer.

    Attributes
    ----------
    local, shuffled, sum, shuffled_lower, sum_lower : str
        Sources: where the numbers of the column come from.
    shuffled_note : str
        The condition under which the shuffled column holds.
    no_sum_law : str
        Why nothing is claimed for sums of reports whose distribution is not used.
    one_of_several, too_few : str
        Why shuffling adds nothing: a budget is for one of several records; too few clients share a
        budget, or it is too large.
    """

    local: str = "exact composition of the client's own noise"
    shuffled: str = (
        "partial shuffles by a random swap (theorem in docs/research/proofs, section 13) or the "
        "blanket theorem (section 5), the smaller at each epsilon; dominating-pair composition"
    )
    sum: str = (
        "sum of independent noise on grids (theorems in docs/research/proofs, sections 14 and 15), "
        "squares of the Gaussian-DP parameters added over rounds"
    )
    shuffled_lower: str = "attack that knows the others' means: likelihood ratio, or recognition"
    sum_lower: str = "likelihood-ratio test on the sums, the others' means known"
    shuffled_note: str = ""
    no_sum_law: str = (
        "not available: the distribution of the user's randomizer is not known to the "
        "accountant, hence "
        "neither is that of a sum of its reports"
    )
    one_of_several: str = (
        "shuffling adds nothing here: the randomizer's distribution is not known to the "
        "accountant, and the "
        "budget it declares is for one of several records: other clients' reports may differ by "
        "more"
    )
    too_few: str = (
        "shuffling adds nothing here: the randomizer's distribution is not known to the "
        "accountant, only "
        "the declared budgets are, and too few clients share one or it is too large; fewer budget "
        "levels (budgets.levels), smaller budgets or more clients would change that"
    )


CONTINUOUS = ColumnWords()

AS_CONTINUOUS = (
    "discrete Gaussian noise as the continuous noise that it is computed from, up to a factor "
    "(theorem in docs/research/proofs, section 14)"
)
SMOOTHED = (
    "the attacker adds a little noise to discrete Gaussian reports, which makes them "
    "continuous (docs/research/proofs, section 14)"
)
DISCRETE_GAUSSIAN = ColumnWords(
    local=f"{CONTINUOUS.local}; {AS_CONTINUOUS}",
    shuffled=f"{CONTINUOUS.shuffled}; {AS_CONTINUOUS}",
    sum=f"{CONTINUOUS.sum}; {AS_CONTINUOUS}",
    shuffled_lower=f"{CONTINUOUS.shuffled_lower}; {SMOOTHED}",
    sum_lower=f"{CONTINUOUS.sum_lower}; {SMOOTHED}",
)

DECLARED_BUDGET = ColumnWords(
    local="exact composition of the declared budget (Kairouz, Oh, Viswanath 2015)",
    shuffled=(
        "partial shuffles by a random swap for a declared local profile (theorem in "
        "docs/research/proofs, section 13), dominating-pair composition"
    ),
    shuffled_note=(
        "given the declared budgets: any two inputs are (epsilon0, delta0)-close under the user's "
        "randomizer, which treats clients of one budget alike"
    ),
)
"""A randomizer of the user's own, of which only a budget is known."""

DISCRETE_BUDGET = replace(
    DECLARED_BUDGET,
    local=(
        "exact composition of the budget that is proven of the discrete noise (Kairouz, Oh, "
        "Viswanath 2015)"
    ),
    shuffled=(
        "partial shuffles by a random swap for the local profile that is proven of the discrete "
        "noise (theorem in docs/research/proofs, section 13), dominating-pair composition"
    ),
    shuffled_note=(
        "the distribution of the discrete noise is known, and its budget proven: any two inputs "
        "are "
        "(epsilon0, delta0)-close. The theorems for continuous noise do not cover it"
    ),
    no_sum_law=(
        "not available: the distribution of the discrete noise is known, and the budget of one "
        "report "
        "proven; the theorems on sums are for continuous noise and do not cover it"
    ),
    one_of_several=(
        "shuffling adds nothing here: the distribution of the discrete noise is known, and its "
        "budget "
        "proven, but the theorems for continuous noise do not cover it, and the one for any "
        "randomizer is applied to whole reports alone: with privacy.unit = 'client', or one record "
        "in each report"
    ),
    too_few=(
        "shuffling adds nothing here: the distribution of the discrete noise is known, and its "
        "budget "
        "proven, but the theorems for continuous noise do not cover it, and for the one that goes "
        "by budgets too few clients share one or it is too large; fewer budget levels "
        "(budgets.levels), smaller budgets or more clients would change that"
    ),
)
"""Discrete noise that is accounted by its budget alone; nothing of that budget is declared."""


def words_for(*, declared: bool, discrete: bool) -> ColumnWords:
    """Return the sentences for a run: `declared` if accounted by budgets, `discrete` if on a
    grid."""
    if declared:
        return DISCRETE_BUDGET if discrete else DECLARED_BUDGET
    return DISCRETE_GAUSSIAN if discrete else CONTINUOUS

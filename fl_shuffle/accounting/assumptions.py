"""What a run's proven numbers take for granted, in words; docs/research/proofs sections 0, 9 and
10."""

from __future__ import annotations

from fl_shuffle.accounting.rounds.threat_model import ThreatModel

ARRIVALS = (
    "which reports arrive depends neither on the data nor on what was released before. Where it "
    "may (clients who leave because of the model they see), epsilons over the arrivals that "
    "occurred, and target_epsilon or lifetime limits on them, are readings and no guarantee"
)
SEEDED = "the noise is the ideal one that the seeded 32-bit generator simulates"
POOLED = (
    "noise per sum: same distribution, no reports were made; the noise of each round's sum is "
    "one seeded "
    "vector with the distribution of the ideal reports' noise together"
)
SYSTEM = (
    "AES-128 in counter mode cannot be told from random bits; given that, reports are exactly "
    "rounded continuous noise but for probability 2^-150 a coordinate"
)
DISCRETE = (
    "AES-128 in counter mode cannot be told from random bits; given that, reports have discrete "
    "noise of exactly the distribution that their budget is proven for"
)
UNKNOWN_LAW = (
    "the user's randomizer has the local budget it declares, for any two inputs of the unit of "
    "privacy, and its distribution depends on nothing but the input and the budget"
)
DECLARED_TRAINING = (
    "every client's training did what the configuration declares (privacy.declared_sigma, "
    "clip_norm, declared_steps), with fresh secret noise each time, and whether it fails, and what "
    "it does between its steps, depends on no record. Nobody checks that: these epsilons are the "
    "clients' own, and no guarantee of this framework"
)


def run_assumptions(
    *,
    entropy: str,
    known_law: bool,
    trust: ThreatModel,
    sums: bool,
    noise: str = "per-report",
    discrete: bool = False,
    declared: bool = False,
) -> tuple[str, ...]:
    """Return the sentences that belong to a run with this `run.entropy`, trust and `run.noise`;
    `sums`: its column `sum` says something; `discrete`: its noise is discrete; `declared`: clients
    declare what their own training adds."""
    law = UNKNOWN_LAW if not known_law else SEEDED if entropy == "seeded" else SYSTEM
    if noise == "per-sum":
        law = POOLED
    if discrete:
        law = DISCRETE
    if declared:
        law = DECLARED_TRAINING
    return ARRIVALS, law, *trust.sentences(sums=sums)

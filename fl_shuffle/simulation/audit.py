"""Auditing a configuration: canaries built from it, the accountant's claims, the games."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fl_shuffle.auditing.audit import AuditSettings
    from fl_shuffle.auditing.findings import AuditReport
    from fl_shuffle.configuration.sections import Config


PUBLISHED_SHARE = 0.3
"""The share of the time for the runs on neighbouring data."""


def audit_configuration(
    name: str,
    config: Config,
    settings: AuditSettings,
    *,
    dimension: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> AuditReport:
    """Audit a configuration on its data, or on made-up records of `dimension`.

    `tell` is told what is being done before each part.
    """
    from fl_shuffle.auditing.audit import run_audit
    from fl_shuffle.auditing.claims import SumClaims, accountant_claims
    from fl_shuffle.auditing.sums import SumGame
    from fl_shuffle.tasks.canaries import Canaries, check_clipping

    published = None
    if dimension is None:
        from fl_shuffle.auditing.games import Clock
        from fl_shuffle.simulation.twin_runs import audit_published

        seconds = PUBLISHED_SHARE * settings.seconds
        tell(f"running it on neighbouring data, about {seconds:.0f} s")
        published = audit_published(config, Clock(seconds))
    tell("making canaries")
    source = Canaries(config, dimension=dimension, seed=settings.seed)
    summed = Canaries(config, dimension=dimension, seed=settings.seed, release="sum")
    return run_audit(
        name,
        source,
        accountant_claims(config, *source.claimant),
        unit=config.privacy.unit,
        delta=config.privacy.target_delta,
        rounds=config.run.rounds,
        settings=settings,
        clipping=check_clipping(config) if dimension is None else None,
        published=published,
        sums=SumGame(summed, SumClaims(config, *summed.claimant, summed.dimension)),
        release=config.privacy.release,
        tell=tell,
    )

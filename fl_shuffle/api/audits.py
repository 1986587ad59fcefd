"""Trying to break a configuration's privacy claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_shuffle.api.configs import ConfigLike, resolve_config

if TYPE_CHECKING:
    from fl_shuffle.auditing.findings import AuditReport


def audit(
    config: ConfigLike,
    *,
    overrides: Mapping[str, Any] | None = None,
    trials: int = 1000,
    reports: int = 1_000_000,
    confidence: float = 0.95,
    seconds: float = 100.0,
    seed: int = 0,
    name: str | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> AuditReport:
    """Play distinguishing games with canaries against a configuration (or a run's folder).

    All lower bounds of the report hold together with probability `confidence`; playing stops after
    about `seconds`. `breaks_proven` of the report says whether a proven number was refuted. `name`
    is what the report calls the configuration, by default its path. `on_progress` is called with
    what is being done, before each part. Raises `FlShuffleError`.
    """
    from fl_shuffle.auditing.audit import AuditSettings
    from fl_shuffle.simulation.audit import audit_configuration
    from fl_shuffle.threads import one_thread

    resolved = resolve_config(config, overrides)
    settings = AuditSettings(
        trials=trials, reports=reports, confidence=confidence, seconds=seconds, seed=seed
    )
    if name is None:
        name = str(config) if isinstance(config, str | Path) else "configuration"
    with one_thread():
        return audit_configuration(name, resolved, settings, tell=on_progress)

"""Small audits and the runs they look at."""

from __future__ import annotations

import dataclasses
from typing import Any

from fl_shuffle.auditing.audit import Audit
from fl_shuffle.auditing.canaries import Canaries
from fl_shuffle.auditing.effort import AuditSettings, Clock
from fl_shuffle.auditing.findings import AuditReport
from fl_shuffle.auditing.games import Claims, reports_game
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config

QUICK = AuditSettings(trials=100, reports=60_000, seconds=600.0)
PERSONAL = {"distribution": "uniform", "low": 0.5, "high": 2.0}


def played(
    settings: Config, *, factor: float = 1.0, dimension: int = 8, how: AuditSettings = QUICK
) -> AuditReport:
    """The games on reports against the right claims, with noise `factor` times too small (on a
    grid as fine)."""
    audit = Audit(settings, dimension, how)
    source = honest = audit.canaries()
    if factor != 1.0:
        plan = honest.plan
        weaker = dataclasses.replace(plan, scale=plan.scale / factor, step=plan.step / 64.0)
        source = Canaries(settings, dimension=dimension, seed=how.seed, plan=weaker)
    attack = dataclasses.replace(audit.attack(source), claims=Claims(settings, honest))
    findings = tuple(reports_game(attack, how.reports, Clock(how.seconds)))
    return AuditReport("test", settings.privacy.unit, 0, 0, "", how.confidence, findings)


def config(clients: int = 20, **sections: dict[str, Any]) -> Config:
    base: dict[str, dict[str, Any]] = {
        "run": {"rounds": 3},
        "data": {"clients": clients},
        "privacy": {"unit": "client", "randomizer": "gaussian"},
        "budgets": {"distribution": "constant", "epsilon": 1.0, "delta": 1e-5},
    }
    for name, values in sections.items():
        base.setdefault(name, {}).update(values)
    return parse_config(base)

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


def played(
    settings: Config, source: Canaries, claims: Claims | None = None, how: AuditSettings = QUICK
) -> AuditReport:
    """The games on reports of canaries, against these claims or the right ones."""
    audit = Audit(settings, source.scene.dimension, how)
    attack = audit.attack(source)
    attack = attack if claims is None else dataclasses.replace(attack, claims=claims)
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

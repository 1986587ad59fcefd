"""One audit: every attack that applies to a run's canaries, against what its accountant claims."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fl_shuffle.api.configs import ConfigLike, resolve_config
from fl_shuffle.auditing.canaries import Canaries, check_clipping, one_of_each_kind
from fl_shuffle.auditing.claims import Claims
from fl_shuffle.auditing.effort import AuditSettings, Clock
from fl_shuffle.auditing.findings import AuditReport, Check, Finding
from fl_shuffle.auditing.games import (
    ABSENT_SUMS,
    EXACT_BATCH,
    SUMS,
    Attack,
    ReportSample,
    Stakes,
    single_report,
    sums,
    whole_rounds,
)
from fl_shuffle.auditing.noise import noise_checks, one_law_check
from fl_shuffle.auditing.orders import order_check, play_orders
from fl_shuffle.auditing.twin_runs import audit_published
from fl_shuffle.configuration.sections import Config
from fl_shuffle.randomizers.additive import NOISES
from fl_shuffle.seeds import SeedTree
from fl_shuffle.threads import one_thread

OTHER_DELTAS = (1e-3, 0.05)
"""Claims are tested here too: a curve that fails anywhere is no bound."""
TESTS = 7
"""They share the error probability: single reports, those of every kind of client, own reports of
several rounds, whole rounds, the mu test, sums, sums from which some are absent."""
CHECKS = 6
"""Order, two clients, two rounds, two coordinates, two reports, two places. What they look for
leaves no doubt where it is."""
CHECKS_SHARE = 0.01
"""The share of the error probability that all checks together get."""
SINGLE_SHARE, KINDS_SHARE, ROUNDS_SHARE, SUMS_SHARE, PUBLISHED_SHARE = 0.35, 0.1, 0.35, 0.2, 0.3
"""Of an audit's time; the runs on neighbouring data come on top."""
MOST_KINDS = 6
"""Of more kinds of clients so many are played, from one end to the other."""
FEWEST_ABSENT = 4
"""Of fewer clients none is absent."""

NO_REPORTS = (
    "noise pooled: no reports are made, so no report, batch or order is attacked; for these audit "
    "run.noise = 'per-report', whose law is the same"
)
OWN_LAW = (
    "a randomizer of the user's own has no known law: only its declared local budget is tested"
)
ALIKE = (
    "the clients' noise scales or clips differ too little to be told apart from single reports: "
    "only whole rounds are played"
)

Tell = Callable[[str], None]


def _silent(text: str) -> None:
    """Tells nobody."""


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
    on_progress: Tell = _silent,
) -> AuditReport:
    """Play distinguishing games with canaries against a configuration (or a run's folder).

    All lower bounds of the report hold together with probability `confidence`; playing stops after
    about `seconds`. `breaks_proven` of the report says whether a proven number was refuted. `name`
    is what the report calls the configuration, by default its path. `on_progress` is called with
    what is being done, before each part. Raises `FlShuffleError`.
    """
    resolved = resolve_config(config, overrides)
    settings = AuditSettings(trials, reports, confidence, seconds, seed)
    if name is None:
        name = str(config) if isinstance(config, str | Path) else "configuration"
    with one_thread():
        return audit_configuration(name, resolved, settings, tell=on_progress)


def audit_configuration(
    name: str,
    config: Config,
    settings: AuditSettings,
    *,
    dimension: int | None = None,
    tell: Tell = _silent,
) -> AuditReport:
    """Audit a configuration on its data, or on made-up records of `dimension`."""
    started = time.monotonic()
    clipping = published = None
    parts = Audit(config, dimension, settings, tell)
    if dimension is None:
        clock = parts.clock(PUBLISHED_SHARE, "running it on neighbouring data")
        published, clipping = audit_published(config, clock), check_clipping(config)
    tell("making canaries")
    source = parts.canaries()
    checks = parts.checks(source)
    findings = parts.reports(source, Claims(config, *source.claimant))
    return AuditReport(
        name=name,
        unit=config.privacy.unit,
        clients=len(source.plan),
        dimension=source.scene.dimension,
        noise=source.plan.noise,
        confidence=settings.confidence,
        findings=(*findings, *parts.kinds(source), *parts.sums(len(source.plan))),
        checks=tuple(checks),
        clipping=clipping,
        published=published,
        notes=tuple(dict.fromkeys(parts.notes)),
        seconds=time.monotonic() - started,
    )


class Audit:
    """The parts of one audit, and what there is to note of them."""

    def __init__(
        self, config: Config, dimension: int | None, settings: AuditSettings, tell: Tell = _silent
    ) -> None:
        self._config, self._dimension, self._settings = config, dimension, settings
        self._tell = tell
        error, delta = 1.0 - settings.confidence, config.privacy.target_delta
        self._stakes = Stakes(
            deltas=(delta, *(value for value in OTHER_DELTAS if value > delta)),
            rounds=config.run.rounds * config.privacy.reports_per_round,
            alpha=(1.0 - CHECKS_SHARE) * error / TESTS,
            seeds=SeedTree(settings.seed).child("audit"),
        )
        self._level = CHECKS_SHARE * error / CHECKS
        self.notes: list[str] = []

    def clock(self, share: float, what: str) -> Clock:
        """What is done now, and how long it may take."""
        seconds = share * self._settings.seconds
        self._tell(f"{what}, {seconds:.0f} s at most")
        return Clock(seconds)

    def canaries(self, **worst: Any) -> Canaries:
        """Those of this audit."""
        return Canaries(self._config, dimension=self._dimension, seed=self._settings.seed, **worst)

    def checks(self, source: Canaries) -> list[Check]:
        """What every claim takes for granted: a random order, and noise that is used once."""
        level, seed, config = self._level, self._settings.seed, self._config
        self._tell("looking at order and noise")
        if source.noise_is_pooled:
            self.notes.append(NO_REPORTS)
            return [one_law_check(source, level, self._stakes.seeds)]
        found = []
        if config.privacy.release == "sum":
            self.notes.append("only sums leave: there is no order of reports to look at")
        elif len(source.plan) < 2:
            self.notes.append("a single client: there is no order to look at")
        else:
            seen = play_orders(len(source.plan), config.training.schedule, seed)
            generator = SeedTree(seed).numpy_generator("audit", "order")
            found.append(order_check(seen, source.scene.target, level, generator))
        return found + (noise_checks(source, level) if source.plan.noise in NOISES else [])

    def reports(self, source: Canaries, claims: Claims) -> list[Finding]:
        """Single reports of the most exposed client, and whole rounds."""
        if source.noise_is_pooled:
            return []
        attack = Attack(source, claims, self._stakes, "proven")
        clock = self.clock(SINGLE_SHARE, "drawing single reports")
        sample = ReportSample.draw(source, self._settings.reports, clock)
        found = [single_report(attack, sample, exposed=True)]
        if source.plan.noise not in NOISES:
            self.notes.append(OWN_LAW)
            return found
        clock = self.clock(ROUNDS_SHARE, "playing whole rounds")
        found += whole_rounds(attack, sample, self._settings.trials, clock)
        if not any(finding.method == EXACT_BATCH for finding in found):
            self.notes.append(ALIKE)
        return found

    def kinds(self, source: Canaries) -> list[Finding]:
        """Single reports of every kind of client, each against its own local guarantee."""
        if source.noise_is_pooled or source.plan.noise not in NOISES:
            return []
        clients = one_of_each_kind(source.claimant[0], MOST_KINDS)
        stakes, found = self._stakes.shared_by(len(clients)), []
        reports = max(1000, self._settings.reports // len(clients))
        for client in clients:
            own = self.canaries(target=client)
            attack = Attack(own, Claims(self._config, *own.claimant), stakes, "local")
            clock = self.clock(
                KINDS_SHARE / len(clients), "drawing reports of another kind of client"
            )
            sample = ReportSample.draw(own, reports, clock)
            found.append(single_report(attack, sample, exposed=False))
        return found

    def sums(self, clients: int) -> list[Finding]:
        """The column `sum`, against an adversary who sees what is published of every round."""
        games = {SUMS: False} if clients < FEWEST_ABSENT else {SUMS: False, ABSENT_SUMS: True}
        found = list[Finding]()
        for game, absent in games.items():
            source = self.canaries(release="sum", absent=absent)
            claims = Claims(self._config, *source.claimant, source.scene.dimension, source.present)
            if claims.no_sum is not None:
                self.notes.append(f"column sum is not tested, it says nothing: {claims.no_sum}")
                continue
            clock = self.clock(SUMS_SHARE / len(games), "playing sums of rounds")
            attack = Attack(source, claims, self._stakes, "sum")
            found += sums(attack, self._settings.trials, clock, game)
        return found

"""One audit: every attack that applies to a run's canaries, against what its accountant claims."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.api.configs import ConfigLike, resolve_config
from fl_shuffle.auditing.canaries import Canaries, check_clipping, one_of_each_kind
from fl_shuffle.auditing.claims import Claims
from fl_shuffle.auditing.effort import AuditSettings, Clock
from fl_shuffle.auditing.findings import AuditReport, Check, Finding
from fl_shuffle.auditing.games import (
    ABSENT_SUMS,
    SUMS,
    Attack,
    Sample,
    Stakes,
    several_rounds,
    shuffled_batch,
    single_report,
    sums,
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
TESTS = 5
"""They share the error probability: single reports (and batches of them), those of every kind of
client, own reports of several rounds, sums, sums from which some are absent."""
CHECKS = 6
"""Order, two clients, two rounds, two coordinates, two reports, two places. What they look for
leaves no doubt where it is."""
CHECKS_SHARE = 0.01
"""The share of the error probability that all checks together get."""
PUBLISHED_SHARE, SINGLE_SHARE, KINDS_SHARE, SUMS_SHARE = 0.4, 0.3, 0.1, 0.2
"""Of an audit's time."""
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
    "the shuffled batch is attacked by its sum alone"
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
    findings = parts.reports(source, parts.claims(source))
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
        self._tell, self._whole = tell, Clock(settings.seconds)
        error, delta = 1.0 - settings.confidence, config.privacy.target_delta
        self._stakes = Stakes(
            deltas=(delta, *(value for value in OTHER_DELTAS if value > delta)),
            rounds=config.run.rounds * config.privacy.reports_per_round,
            alpha=(1.0 - CHECKS_SHARE) * error / TESTS,
            seeds=SeedTree(settings.seed).child("audit"),
        )
        self._level = CHECKS_SHARE * error / CHECKS
        self._library = RoundLibrary()
        self.notes: list[str] = []

    def clock(self, share: float, what: str) -> Clock:
        """What is done now, and how long it may take: its share, and no more than is left."""
        seconds = min(share * self._settings.seconds, self._whole.left)
        self._tell(f"{what}, {seconds:.0f} s at most")
        return Clock(seconds)

    def _is_up(self, found: list[Finding], what: str) -> bool:
        """Whether there is no time for another game; the first one is always played."""
        up = bool(found) and self._whole.over()
        self.notes += [f"the time was up: not played: {what}"] if up else []
        return up

    def canaries(self, **worst: Any) -> Canaries:
        """Those of this audit."""
        return Canaries(self._config, dimension=self._dimension, seed=self._settings.seed, **worst)

    def claims(self, source: Canaries) -> Claims:
        """Of the target of these canaries, where everybody reports."""
        return Claims(self._config, *source.claimant, library=self._library)

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
            seen = play_orders(
                len(source.plan), config.training.schedule, seed, self._settings.seconds
            )
            generator = SeedTree(seed).numpy_generator("audit", "order")
            found.append(order_check(seen, source.scene.target, level, generator))
        return found + (noise_checks(source, level) if source.plan.noise in NOISES else [])

    def reports(self, source: Canaries, claims: Claims) -> list[Finding]:
        """Single reports of the most exposed client, and batches of them."""
        if source.noise_is_pooled:
            return []
        attack = Attack(source, claims, self._stakes)
        clock = self.clock(SINGLE_SHARE, "drawing single reports")
        sample = Sample.of_reports(source, self._settings.reports, clock)
        found = [single_report(attack, sample, exposed=True)]
        if source.plan.noise not in NOISES:
            self.notes.append(OWN_LAW)
            return found
        if source.plan.noise == "gaussian":
            found += several_rounds(attack)
        batch = shuffled_batch(attack, sample)
        self.notes += [] if batch else [ALIKE]
        return found + batch

    def kinds(self, source: Canaries) -> list[Finding]:
        """Single reports of every kind of client, each against its own local guarantee."""
        if source.noise_is_pooled or source.plan.noise not in NOISES:
            return []
        clients = one_of_each_kind(source.claimant[0], MOST_KINDS)
        stakes, found = self._stakes.shared_by(len(clients)), list[Finding]()
        reports = max(1000, self._settings.reports // len(clients))
        for client in clients:
            if self._is_up(found, "the other kinds of clients"):
                break
            own = self.canaries(target=client)
            share = KINDS_SHARE / len(clients)
            clock = self.clock(share, "drawing reports of another kind of client")
            sample = Sample.of_reports(own, reports, clock)
            attack = Attack(own, self.claims(own), stakes)
            found.append(single_report(attack, sample, exposed=False))
        return found

    def sums(self, clients: int) -> list[Finding]:
        """An adversary who sees what is published of every round."""
        games = {SUMS: False} if clients < FEWEST_ABSENT else {SUMS: False, ABSENT_SUMS: True}
        found = list[Finding]()
        for game, absent in games.items():
            if self._is_up(found, game):
                break
            source = self.canaries(release="sum", absent=absent)
            dimension = source.scene.dimension
            claims = Claims(
                self._config, *source.claimant, dimension, source.present, self._library
            )
            # A sum is a function of the shuffled reports.
            columns = [] if claims.no_sum else ["sum"]
            columns += [] if absent else ["proven"]
            if claims.no_sum:
                self.notes.append(f"column sum is not tested, it says nothing: {claims.no_sum}")
            if columns:
                clock = self.clock(SUMS_SHARE / len(games), "playing sums of rounds")
                attack = Attack(source, claims, self._stakes)
                found += sums(attack, columns, self._settings.trials, clock, game)
        return found

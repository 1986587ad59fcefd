"""One audit: every attack that applies to a run's canaries, against what its accountant claims."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fl_shuffle.auditing.claims import ClaimBook
from fl_shuffle.auditing.confidence import Dichotomy, ceiling_epsilon
from fl_shuffle.auditing.findings import AuditReport, Check, Clipping, Finding, Point
from fl_shuffle.auditing.games import (
    Clock,
    Plays,
    ReportSample,
    composed,
    expected_sample,
    mu_findings,
    play_rounds,
    sample_reports,
    threshold_finding,
)
from fl_shuffle.auditing.independence import noise_checks, play_noise
from fl_shuffle.auditing.order import order_check
from fl_shuffle.auditing.published import Published
from fl_shuffle.auditing.score import CERTAIN, length_rule, position_error, report_scales
from fl_shuffle.auditing.source import CanarySource
from fl_shuffle.auditing.sums import (
    NO_REPORTS,
    SUMS_SHARE,
    SumGame,
    one_law_check,
    play_sums,
    pooled_source,
    sum_findings,
)
from fl_shuffle.errors import require_integer, require_real
from fl_shuffle.randomizers.vector import NOISES
from fl_shuffle.seeds import SeedTree

OTHER_DELTAS = (1e-3, 0.05)
"""Claims are tested here too: a curve that fails anywhere is no bound."""
FEWEST_COMPOSED = 200
"""Plays of several rounds are made of at least this many; fewer prove nothing of interest."""
BY_SIZE = "budget class recognised by the size of a report"
POWER_SPREAD = 1.6449
"""The normal quantile of the power that is stated, 95%."""
MOST_SHRINK = 64.0
"""Noise that is more times too small than this is not looked for."""
# The error probability is shared by four tests: single reports, whole rounds, the mu test, sums.
TESTS = 4
# Order, two clients, two rounds, two coordinates. What they look for leaves no doubt where it is.
CHECKS = 4
CHECKS_SHARE = 0.01
"""The share of the error probability that all checks together get."""


@dataclass(frozen=True)
class AuditSettings:
    """How hard to try. `confidence` is that of all of an audit's lower bounds together."""

    trials: int = 1000
    reports: int = 1_000_000
    confidence: float = 0.95
    seconds: float = 100.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_integer("trials", self.trials, minimum=8, maximum=10**8)
        require_integer("reports", self.reports, minimum=1000, maximum=10**10)
        require_real(
            "confidence",
            self.confidence,
            minimum=0.5,
            maximum=1.0,
            exclusive_maximum=True,
        )
        require_real("seconds", self.seconds, minimum=0.0, exclusive_minimum=True)
        require_integer("seed", self.seed, minimum=0)


def run_audit(
    name: str,
    source: CanarySource,
    claims: ClaimBook,
    *,
    unit: str,
    delta: float,
    rounds: int,
    settings: AuditSettings,
    clipping: Clipping | None = None,
    published: Published | None = None,
    sums: SumGame | None = None,
    release: str = "reports",
    tell: Callable[[str], None] = lambda text: None,
) -> AuditReport:
    """Play every game that applies; `rounds` is the length of the run whose claims are tested.

    `tell` is told what is being done before each part.
    `sums` is the game of an adversary who sees sums of reports alone, against the column `sum`.
    Where `release` is "sum" there is no order of reports to look at.
    """
    started = time.monotonic()
    audit = _Audit(source, claims, unit, delta, rounds, settings)
    tell("looking at order and noise")
    checks = audit.checks(ordered=release != "sum")
    findings = audit.findings(tell)
    if sums is not None:
        tell(f"playing sums of rounds, {SUMS_SHARE * settings.seconds:.0f} s at most")
        findings += audit.sums(sums)
    return AuditReport(
        name=name,
        unit=unit,
        clients=len(source.plan),
        dimension=source.dimension,
        noise=source.plan.noise,
        confidence=settings.confidence,
        findings=tuple(findings),
        checks=tuple(checks),
        recognition=audit.recognition,
        clipping=clipping,
        published=published,
        notes=tuple(audit.notes),
        seconds=time.monotonic() - started,
    )


class _Audit:
    def __init__(
        self,
        source: CanarySource,
        claims: ClaimBook,
        unit: str,
        delta: float,
        rounds: int,
        settings: AuditSettings,
    ) -> None:
        self._source = source
        self._pooled = pooled_source(source)
        self._claims = claims
        self._unit = unit
        self._deltas = (delta, *(value for value in OTHER_DELTAS if value > delta))
        self._rounds = rounds
        self._settings = settings
        error = 1.0 - settings.confidence
        self._alpha = (1.0 - CHECKS_SHARE) * error / TESTS
        self._level = CHECKS_SHARE * error / CHECKS
        self.recognition: dict[str, object] = {}
        self.notes: list[str] = []

    def checks(self, *, ordered: bool) -> list[Check]:
        """What every claim takes for granted: a random order, and noise that is used once."""
        source = self._source
        if self._pooled is not None:
            seeds = SeedTree(self._settings.seed).child("audit")
            return [one_law_check(self._pooled, self._level, seeds)]
        found = []
        seen = source.orders() if ordered else None
        if not ordered:
            self.notes.append("only sums leave: there is no order of reports to look at")
        elif seen is None:
            self.notes.append("a single client: there is no order to look at")
        else:
            generator = SeedTree(self._settings.seed).numpy_generator("audit", "order")
            found.append(order_check(seen, source.scene.target, self._level, generator))
        if source.plan.noise in NOISES:
            found += noise_checks(play_noise(source), self._level)
        return found

    def sums(self, game: SumGame) -> list[Finding]:
        """The column `sum`, against an adversary who sees what is published of every round."""
        if game.claims.reason is not None:
            self.notes.append(f"column sum is not tested, it says nothing: {game.claims.reason}")
            return []
        clock = Clock(SUMS_SHARE * self._settings.seconds)
        seeds = SeedTree(self._settings.seed).child("audit")
        plays = play_sums(game.source, self._settings.trials, clock, seeds)
        return sum_findings(game, plays, self._rounds, self._deltas, self._alpha)

    def findings(self, tell: Callable[[str], None]) -> list[Finding]:
        source, settings = self._source, self._settings
        if self._pooled is not None:
            self.notes.append(NO_REPORTS)
            return []
        tell(f"drawing single reports, {0.4 * settings.seconds:.0f} s at most")
        sample = sample_reports(source, settings.reports, Clock(0.4 * settings.seconds))
        facts = sample.dichotomy(self._alpha)
        found = [self._one_report(sample, facts)]
        if source.plan.noise not in NOISES:
            self.notes.append(
                "a randomizer of the user's own has no known law: only its declared local budget "
                "is tested"
            )
            return found
        tell(f"playing whole rounds, {(0.6 - SUMS_SHARE) * settings.seconds:.0f} s at most")
        clock = Clock((0.6 - SUMS_SHARE) * settings.seconds)
        seeds = SeedTree(settings.seed).child("audit")
        plays = play_rounds(source, settings.trials, clock, seeds)
        found += self._whole_rounds(plays)
        found += self._exact_batch(sample, facts)
        found += self._recognised_target(plays)
        return found

    def _one_report(self, sample: ReportSample, facts: Dichotomy) -> Finding:
        """The noise itself, no shuffler: does a single report keep its local guarantee?"""
        points = tuple(
            Point(delta, facts.epsilon(delta, 1), self._claims(1, delta).local, None)
            for delta in self._deltas
        )
        return Finding(
            game="one report, its sender known",
            method="exact confidence bounds of both laws",
            rounds=1,
            plays=sample.trials,
            points=points,
            ceiling=ceiling_epsilon(sample.trials, self._deltas[0], self._alpha),
            detectable=self._shrink(sample, 1, 0.0, points),
            note=self._budget_note(points[0]),
            column="local",
        )

    def _budget_note(self, point: Point) -> str:
        """Whether the target gets the local budget it asked for, which the noise may not give."""
        plan = self._source.plan
        asked = plan.classes[int(plan.class_of[self._source.scene.target])]
        broken = point.delta >= asked.delta0 and point.lower > asked.epsilon0
        return f"asked for ({asked.epsilon0:g}, {asked.delta0:g})" + (
            ", which this noise DOES NOT KEEP" if broken else ""
        )

    def _whole_rounds(self, plays: Plays) -> list[Finding]:
        """The likelihood-ratio game on shuffled batches, of one round and of several."""
        if plays.classified:
            by_both = self._unit == "record"
            game = "report recognised by its size and position" if by_both else BY_SIZE
            self.recognition = {
                "noise_scales": int(np.unique(report_scales(self._source)).size),
                "reports_classified": plays.classified,
                "taken_for_the_wrong_class": plays.wrong,
                "accuracy": 1.0 - plays.wrong / plays.classified,
            }
        elif position_error(self._source) < CERTAIN:
            game = "report recognised by its position"
        else:
            game = "known others"
        scores = plays.scores
        found = [self._game(game, scores, 1)]
        several = min(self._rounds, len(plays) // FEWEST_COMPOSED)
        if several > 1:
            both = composed(scores[0], several), composed(scores[1], several)
            found.append(self._game(game, both, several))
        return found

    def _game(self, game: str, scores: tuple[np.ndarray, np.ndarray], rounds: int) -> Finding:
        # Both lengths of play together spend one test's share.
        return threshold_finding(game, scores, rounds, self._deltas, self._alpha / 2.0, self._point)

    def _exact_batch(self, sample: ReportSample, facts: Dichotomy) -> list[Finding]:
        """Measured law of one report, exact arithmetic of the shuffle: sharp where it applies."""
        source, scene = self._source, self._source.scene
        scales = report_scales(source)
        rule = length_rule(source)
        cohort = scales == scales[scene.target]
        cohort[scene.target] = False
        position = position_error(source)
        if position < CERTAIN:
            game, n, error = "report recognised by its position", 1, position
        elif rule.error < CERTAIN and bool((source.scene.others[cohort] == scene.zero).all()):
            several = rule.count < len(scales)
            game = BY_SIZE if several else "known others"
            n, error = rule.count, rule.error if several else 0.0
        else:
            self.notes.append(
                "the clients' noise scales or clips differ too little to be told apart from single "
                "reports: only whole rounds are played"
            )
            return []
        points = tuple(
            self._point(1, delta, facts.epsilon(delta, n, error=error)) for delta in self._deltas
        )
        return [
            Finding(
                game=game,
                method="measured law of a report, exact law of the shuffled batch",
                rounds=1,
                plays=sample.trials,
                points=points,
                ceiling=ceiling_epsilon(sample.trials, self._deltas[0], self._alpha),
                detectable=self._shrink(sample, n, error, points),
                note=f"hidden among {n} reports",
            )
        ]

    def _recognised_target(self, plays: Plays) -> list[Finding]:
        """The recognised report's position is a Gaussian statistic: the exact mu test."""
        source = self._source
        recognised = position_error(source) < CERTAIN
        if source.plan.noise != "gaussian" or not recognised or len(plays) < 3:
            return []
        scene = source.scene
        return mu_findings(
            "report recognised by its position",
            "Gaussian mu test on the recognised report",
            plays.top,
            (scene.one - scene.zero) / float(report_scales(source)[scene.target]),
            self._rounds,
            self._deltas,
            self._alpha,
            self._point,
        )

    def _point(self, rounds: int, delta: float, lower: float) -> Point:
        claim = self._claims(rounds, delta)
        return Point(delta, lower, claim.proven, claim.published)

    def _shrink(
        self, sample: ReportSample, n: int, error: float, points: tuple[Point, ...]
    ) -> float | None:
        """How many times too small the noise must be to be caught with probability about 95%."""
        if self._source.plan.noise not in NOISES:
            return None

        def caught(factor: float) -> bool:
            unlucky = expected_sample(self._source, sample, factor, POWER_SPREAD)
            facts = unlucky.dichotomy(self._alpha)
            return any(
                facts.refutes(point.proven, point.delta, n, error=error)
                for point in points
                if point.proven is not None
            )

        if not caught(MOST_SHRINK):
            return math.inf
        low, high = 1.0, MOST_SHRINK
        for _ in range(8):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if caught(middle) else (middle, high)
        return high

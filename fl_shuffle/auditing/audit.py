"""One audit: every attack that applies to a run's canaries, against what its accountant claims."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fl_shuffle._internal.threads import one_thread
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.auditing.canaries import Canaries, check_clipping, one_of_each_kind
from fl_shuffle.auditing.checks import noise_checks, one_law_check, order_check, play_orders
from fl_shuffle.auditing.effort import AuditSettings, Clock
from fl_shuffle.auditing.findings import AuditReport, Check, Finding
from fl_shuffle.auditing.games import ABSENT_SUMS, SUMS, Attack, Claims, reports_game, sums_game
from fl_shuffle.auditing.published import audit_published
from fl_shuffle.configuration.reading import ConfigLike, Overrides, resolve_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import NotApplicableError
from fl_shuffle.randomizers.additive import NOISES
from fl_shuffle.randomizers.seeds import SeedTree
from fl_shuffle.randomizers.total_budgets import Tell, silent

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
"""Largest number of kinds of clients that are tested, from one end to the other."""
FEWEST_ABSENT = 4
"""Of fewer clients none is absent."""

NO_REPORTS = (
    "pooled: no reports to attack; run.noise = 'per-report' has them, of the same distribution"
)

Game = tuple[str, float, Callable[[Clock], Iterator[Finding]]]
"""What is played, its share of the time, and how."""


def audit(
    config: ConfigLike,
    *,
    overrides: Overrides | None = None,
    trials: int = 1000,
    reports: int = 1_000_000,
    confidence: float = 0.95,
    seconds: float = 100.0,
    seed: int = 0,
    on_progress: Tell = silent,
) -> AuditReport:
    """Play distinguishing games with canaries against a configuration, or a run's directory.

    Parameters
    ----------
    config : str, Path, mapping, or Config
        The configuration, as for `fl_shuffle.simulate`, or a run directory.
    overrides : mapping of str to object, optional
        Values that replace settings of `config`, by ``"section.key"``.
    trials : int, default 1000
        Number of rounds to play.
    reports : int, default 1,000,000
        Number of single reports to draw.
    confidence : float, default 0.95
        Probability with which all lower bounds of the report hold together, in (0, 1).
    seconds : float, default 100.0
        Time after which playing stops, about.
    seed : int, default 0
        Source of the games' randomness.
    on_progress : callable, optional
        Called with what is being done, a str, before each part.

    Returns
    -------
    AuditReport
        All findings. `breaks_proven` says whether a proven number was refuted.

    Raises
    ------
    NotApplicableError
        If the configuration protects nobody, so there is no claim to attack.
    FlShuffleError
        As for `fl_shuffle.simulate`.

    Notes
    -----
    A finding is a lower bound on epsilon, for replace-one neighbors, that holds with the stated
    confidence. An audit can refute a claim, and proves none.

    Examples
    --------
    An audit takes about a minute::

        report = fs.audit("quickstart", seconds=30)
        print(report.text())
    """
    settings = AuditSettings(trials, reports, confidence, seconds, seed)
    name = str(config) if isinstance(config, str | Path) else "configuration"
    resolved = resolve_config(config, overrides)
    with one_thread():
        return audit_configuration(name, resolved, settings, tell=on_progress)


def audit_configuration(
    name: str, config: Config, settings: AuditSettings, *, dimension: int | None = None,
    tell: Tell = silent,
) -> AuditReport:  # fmt: skip
    """Audit a configuration; with `dimension` its games alone, on reports so long."""
    if config.privacy.randomizer == "none":
        raise NotApplicableError(
            f"{name} protects nobody (privacy.randomizer = 'none'): there is no claim to attack"
        )
    started, audit = time.monotonic(), Audit(config, dimension, settings)
    clipping = published = None
    if dimension is None:
        tell("running it on neighboring data")
        published = audit_published(config, Clock(PUBLISHED_SHARE * settings.seconds))
        clipping = check_clipping(config)
    tell("looking at order and noise")
    source = audit.canaries()
    checks, findings = tuple(audit.checks(source)), list[Finding]()
    for what, share, play in audit.games(source):
        if findings and not audit.clock.left:
            audit.notes.append(f"the time was up: not played: {what}")
            continue
        seconds = min(share * settings.seconds, audit.clock.left)
        tell(f"{what}, {seconds:.0f} s at most")
        findings += play(Clock(seconds))
    return AuditReport(
        name, config.privacy.unit, len(source.plan), source.scene.dimension, source.plan.noise,
        settings.confidence, tuple(findings), checks, clipping, published,
        tuple(dict.fromkeys(audit.notes)), time.monotonic() - started,
    )  # fmt: skip


class Audit:
    """What one audit looks at, and what there is to note; `clock` is that of the whole."""

    def __init__(self, config: Config, dimension: int | None, settings: AuditSettings) -> None:
        self._config, self._dimension, self._settings = config, dimension, settings
        self._error, self._library = 1.0 - settings.confidence, RoundLibrary()
        self.clock, self.notes = Clock(settings.seconds), list[str]()

    def canaries(self, **worst: Any) -> Canaries:
        """Return the canaries of this audit."""
        return Canaries(self._config, dimension=self._dimension, seed=self._settings.seed, **worst)

    def attack(self, source: Canaries, tests: int = 1) -> Attack:
        """Return the attack of its canaries against its accountant.

        It has one of this number of shares of a test's error.
        """
        config, delta = self._config, self._config.privacy.target_delta
        return Attack(
            source, Claims(config, source, self._library),
            (delta, *(other for other in OTHER_DELTAS if other > delta)),
            config.run.rounds * config.privacy.reports_per_round,
            (1.0 - CHECKS_SHARE) * self._error / TESTS / tests, self.clock, self.notes,
        )  # fmt: skip

    def checks(self, source: Canaries) -> Iterator[Check]:
        """Yield what every claim assumes: a random order, and noise that is used once."""
        level, seed, config = CHECKS_SHARE * self._error / CHECKS, self._settings.seed, self._config
        clients = len(source.plan)
        if source.noise_is_pooled:
            self.notes.append(NO_REPORTS)
            yield one_law_check(source, level)
            return
        if config.privacy.release == "sum":
            self.notes.append("only sums leave: there is no order of reports to look at")
        elif clients < 2:
            self.notes.append("a single client: there is no order to look at")
        else:
            seen = play_orders(clients, config.training.schedule, seed)
            generator = SeedTree(seed).numpy_generator("audit", "order")
            yield order_check(seen, source.scene.target, level, generator)
        if source.plan.noise in NOISES:
            if source.plan.few_bits is not None:
                # Of a few levels, any two are often equal.
                self.notes.append("noise is compared before reports are rounded to few bits")
                source = self.canaries(plan=source.claimant[0].unrounded())
            yield from noise_checks(source, level)

    def games(self, source: Canaries) -> Iterator[Game]:
        """Yield every game that applies."""
        if not source.noise_is_pooled:
            yield "single reports", SINGLE_SHARE, partial(self._reports, None, 1)
        yield SUMS, SUMS_SHARE / 2, partial(self._sums, SUMS)
        if self._config.data.clients >= FEWEST_ABSENT:
            yield ABSENT_SUMS, SUMS_SHARE / 2, partial(self._sums, ABSENT_SUMS)
        if not source.noise_is_pooled and source.plan.noise in NOISES:
            kinds = one_of_each_kind(source.claimant[0], MOST_KINDS)
            for client in kinds:
                own = partial(self._reports, client, len(kinds))
                yield "reports of every kind of client", KINDS_SHARE / len(kinds), own

    def _reports(self, client: int | None, kinds: int, clock: Clock) -> Iterator[Finding]:
        """Yield findings about the most exposed client's reports.

        With several kinds, the client is one of them, and its own local claim is tested.
        """
        attack = self.attack(self.canaries(target=client), kinds)
        reports = max(1000, self._settings.reports // kinds)
        return reports_game(attack, reports, clock, exposed=client is None)

    def _sums(self, game: str, clock: Clock) -> Iterator[Finding]:
        """Attack as an adversary who sees what is published of every round."""
        absent = game == ABSENT_SUMS
        attack = self.attack(self.canaries(release="sum", absent=absent))
        # A sum is a function of the shuffled reports.
        columns, unsaid = [] if absent else ["shuffled"], attack.claims.no_sum
        if unsaid:
            self.notes.append(f"column sum is not tested, it says nothing: {unsaid}")
        else:
            columns.insert(0, "sum")
        if columns:
            yield from sums_game(attack, columns, self._settings.trials, clock, game)

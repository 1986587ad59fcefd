"""What is known of a run before it starts: for its ledger, its screen and its summary.

Everything here is the same for neighboring data sets, but the fingerprint, which is not published.
"""

from __future__ import annotations

import contextlib
import platform
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.assumptions import run_assumptions
from fl_shuffle.accounting.rounds.class_table import distinct_rows
from fl_shuffle.accounting.rounds.threat_model import ThreatModel
from fl_shuffle.budgets import BY_PLACE, Budgets
from fl_shuffle.configuration.reading import idle_settings
from fl_shuffle.configuration.sections import BudgetsSection, Config
from fl_shuffle.ledger.store import SCHEMA_VERSION
from fl_shuffle.ledger.tables import columns_with
from fl_shuffle.randomizers.calibration import Calibration
from fl_shuffle.randomizers.total_budgets import against_everybody, planned_reports, solved_words
from fl_shuffle.runs.console_messages import (
    HOPELESS,
    METRICS_STAY,
    PROTECTS_NOBODY,
    noise_words,
)
from fl_shuffle.runs.events import publishes_times
from fl_shuffle.version import __version__

POOLED = (
    "noise per sum: same distribution, no reports were made (simulation only); every number is "
    "that of the "
    "reports that the sums stand for"
)
DECLARED = (
    "NOTHING IS PROVEN: no noise is added to what clients send; the epsilons are as the clients "
    "declare their own training (privacy.declared_sigma, clip_norm, declared_steps)"
)
IDLE_IN_SUMS = (
    "budgets do not act: what leaves is sums of reports with one clipping norm, and every client's "
    "epsilon is the same whatever its budget; with privacy.personalization = 'clipping' who has "
    "half the budget is clipped to half, and has about half the epsilon"
)
IDLE_DECLARED = (
    "budgets do not act: no noise is added to what clients send, and every client's epsilon is "
    "that of the training that all of them declare; only lifetime budgets count"
)
IDLE_NONE = (
    "budgets and clipping norms do not act: neither clip nor noise is applied to what clients send"
)
FIXED = (
    "model.fix: group norms stand in the place of the batch norms of your model, which mix records"
)
FITTED = "are fitted on the training data: that fit is not covered by the privacy guarantee"
BY_LABEL = (
    "deals records to clients by their labels: the guarantee is for one unit replaced after that "
    "partition, and what the partition itself tells of labels is not covered"
)
NOT_AS_LABELLED = (
    "NOT PRIVATE AS LABELLED: the noise follows the published formula, which takes the sensitivity "
    "for smaller than it is; the true local epsilon is printed as proven"
)
SEEDED = (
    "seeded noise and permutation (simulation only): anybody who knows the seed can remove the "
    "noise; set run.entropy = 'system' for real data"
)
LIBRARIES = ("flwr", "torch", "numpy", "numba", "scipy", "dp-accounting")


@dataclass(frozen=True)
class DataFacts:
    """What a run publishes about its data: names, sizes and shapes.

    `records` of the clients, each of `shape` as the model sees it; `held_out` of the source's
    training records serve as test records; `classes` is what the source declares (in `regression`
    how many numbers are predicted).
    """

    source: str
    records: int
    shape: tuple[int, ...]
    classes: int
    test_records: int
    held_out: int
    regression: bool = False

    def published(self) -> dict[str, Any]:
        """Return the facts as they stand in the ledger."""
        facts = {**asdict(self), "shape": list(self.shape)}
        return facts if self.regression else {k: v for k, v in facts.items() if k != "regression"}


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run before it starts, beside its budgets and what noise they buy (`plan`).

    `fingerprint` is a digest of the records: it may not be published (see `runs.resume`); None
    where the server does not have them. `metrics` are names of what is measured after a round;
    those beside accuracy and loss get columns of their own.
    """

    config: Config
    plan: Calibration
    budgets: Budgets
    dimension: int
    data: DataFacts
    metrics: tuple[str, ...] = ()
    features_use_data: bool = False
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        columns_with(self.metrics)

    @property
    def records_not_covered(self) -> int:
        """Private records of which something exact is published, beside the reports."""
        return self.data.held_out + (self.data.records if self.features_use_data else 0)

    @property
    def lifetime(self) -> NDArray[np.float64] | None:
        """Each client's lifetime epsilon [clients], inf where it has none; None if nobody has."""
        common, own = self.config.privacy.lifetime_epsilon, self.budgets.limits
        if own is None and common is None:
            return None
        limits = np.full(len(self.plan), np.inf if common is None else common)
        return limits if own is None else np.minimum(limits, own)

    def notes(self, *, sums: bool) -> list[tuple[str, str]]:
        """Return what a new run's ledger is to say in plain words, (kind, text) each: the warnings,
        what the proven numbers take for granted, and how much noise there is. `sums`: whether the
        column `sum` says something."""
        config = self.config
        if config.privacy.randomizer == "none":
            # Nothing is claimed, so nothing is taken for granted.
            return [("warning", text) for text in self.warnings]
        assumptions = run_assumptions(
            entropy=config.run.entropy,
            known_law=not self.plan.classes.is_noise("user").any(),
            noise=config.run.noise,
            discrete=config.privacy.randomizer.startswith("discrete-"),
            declared=config.privacy.randomizer == "declared",
            trust=ThreatModel.of(config.to_dict()),
            sums=sums,
        )
        told = {"warning": self.warnings, "assumption": assumptions, "noise": (self.noise,)}
        return [(kind, text) for kind, texts in told.items() for text in texts if text]

    @property
    def budget_words(self) -> str:
        """How many budgets there are and what they cover, in words; empty where they do not act,
        because clients declare their own training, or nothing is private."""
        if self.config.privacy.randomizer in ("declared", "none"):
            return ""
        said = self.budgets.words()
        if self.budgets.of == "report":
            return said
        if against_everybody(self.config):
            return f"{said}, against everybody, who opens the reports as well (budgets.against)"
        planned = planned_reports(self.config)
        rounded = solved_words(self.config, self.budgets.epsilon)
        said += f"; planned for {planned:,} reports a round (budgets.expected_share)"
        return f"{said}; {rounded}" if rounded else said

    @property
    def noise(self) -> str:
        """How much noise a round's mean report has, in words; empty where a warning says so, where
        nobody knows, or there is no mean."""
        said, warned = self._noise
        return "" if warned else said

    @property
    def _noise(self) -> tuple[str, bool]:
        """The same, and whether it is a warning."""
        share = self.config.training.participation
        times = self.plan.noise_of_mean(self.dimension, share)
        if times is None or self.config.training.schedule == "sequential":
            return "", False
        if self.config.privacy.randomizer == "declared":
            return noise_words(times, None), False
        said = noise_words(times, round(share * len(self.plan)))
        if times <= HOPELESS:
            return said, False
        less = (
            "fewer parameters, larger budgets or the record unit make it less "
            "(docs/how-to/flower-app.md)"
        )
        return f"{said}; {less}", True

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the numbers must know, in plain words."""
        config, data = self.config, self.data
        declared = config.privacy.randomizer == "declared"
        noise, hopeless = self._noise
        no_delta_left = self._declared_delta_spent
        bare = config.privacy.randomizer == "none"
        acts = config.budgets != BudgetsSection() or config.privacy.clip_norm != 1.0
        known = (
            (bare, PROTECTS_NOBODY),
            (bare and acts, IDLE_NONE),
            (config.model.fix, FIXED),
            (self.features_use_data, f"features = {config.data.features!r} {FITTED}"),
            (self.budgets.by_place, BY_PLACE),
            (
                data.held_out,
                f"data.validation_fraction = {config.data.validation_fraction:g}: accuracy and "
                f"loss are exact numbers about {data.held_out} of the source's private training "
                "records: these records are NOT COVERED by the privacy guarantee",
            ),
            (config.data.dealt_by_label, f"data.partition = {config.data.partition!r} {BY_LABEL}"),
            (config.app.custom_client, METRICS_STAY),
            (hopeless, noise),
            (self._budgets_idle, IDLE_IN_SUMS),
            (declared and config.budgets != BudgetsSection(), IDLE_DECLARED),
            (declared, DECLARED),
            (no_delta_left, no_delta_left),
            (not self.plan.labelled_private, NOT_AS_LABELLED),
            (config.run.aggregate_noise, POOLED),
            (config.run.entropy == "seeded" and not bare, SEEDED),
        )
        idle = [f"setting without effect: {setting}" for setting in idle_settings(config)]
        return (*idle, *(text for holds, text in known if holds))

    @property
    def _budgets_idle(self) -> bool:
        """Whether clients have budgets of several sizes, and the epsilons of a sum know nothing of
        it: Gaussian noise of all together hides clients with the same clip equally well."""
        kinds, privacy = self.plan.classes, self.config.privacy
        if privacy.randomizer == "none":
            return False
        several = len(distinct_rows(kinds.epsilon0, kinds.delta0).first) > 1
        clips = distinct_rows(kinds.records, kinds.sensitivity).first
        alike = len(clips) == len(np.unique(kinds.records)) and privacy.assumed_honest is None
        gaussian = privacy.randomizer == "gaussian"
        return privacy.release == "sum" and gaussian and several and alike

    @property
    def _declared_delta_spent(self) -> str:
        """Where a user's own randomizer has no finite epsilon any more, because every report may
        break its promise with its delta0; empty if that is in no round of the run."""
        classes, privacy = self.plan.classes, self.config.privacy
        target = privacy.target_delta
        largest = float(classes.delta0[classes.is_noise("user")].max(initial=0.0))
        if largest == 0.0:
            return ""
        # 1 - (1 - delta0)^k <= target for the first k reports of a client.
        covered = int(np.log1p(-target) / np.log1p(-largest) * (1.0 + 1e-12))
        reports = self.config.run.rounds * privacy.reports_per_round
        if covered >= reports:
            return ""
        return (
            f"no finite epsilon holds at privacy.target_delta = {target:g} for a client that "
            f"reports more than {covered} times: a report of its randomizer has delta = "
            f"{largest:g}; {reports} reports need budgets of delta below {target / reports:.2g}"
        )

    def for_ledger(self) -> dict[str, Any]:
        """Return the facts that a new run's ledger begins with; `run` is its random identifier.

        Beside classes and attempts, a recomputation of the epsilons needs on which grids
        reports lie (powers of two, the finest and the coarsest), and what is claimed.
        """
        config, privacy, data = self.config, self.config.privacy, self.data
        versions = {}
        for name in LIBRARIES:
            with contextlib.suppress(PackageNotFoundError):
                versions[name] = version(name)
        seeded, own = publishes_times(config), not data.records and not data.test_records
        tested = "held out of the private records" if data.held_out else "public"
        now = datetime.now(UTC)
        totals = self.plan.class_totals
        return {
            "schema": SCHEMA_VERSION,
            "run": secrets.token_hex(16),
            "config": config.to_dict(),
            "code_version": __version__,
            "python": platform.python_version(),
            "libraries": versions,
            "seed": config.run.seed if seeded else "operating-system entropy",
            "data": data.published(),
            "test_data": "the app's own" if own else tested,
            "records_not_covered": self.records_not_covered,
            "relation": config.relation,
            "dimension": self.dimension,
            "labelled_private": self.plan.labelled_private,
            "metrics": list(self.metrics),
            "report_grid": {
                "finest": float(self.plan.step.min()), "coarsest": float(self.plan.step.max())
            },
            "unit": privacy.unit,
            "release": privacy.release,
            "assumed_honest": privacy.assumed_honest,
            "delta": privacy.target_delta,
            "reports_per_round": privacy.reports_per_round,
            **({} if totals is None else {"totals": totals.tolist()}),
            "started": now.isoformat() if seeded else now.date().isoformat(),
        }  # fmt: skip

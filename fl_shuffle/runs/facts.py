"""What is known of a run before it starts: for its ledger, its screen and its summary.

Everything here is the same for neighbouring data sets, but the fingerprint, which is not published.
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
from fl_shuffle.accounting.rounds.trust import Trust
from fl_shuffle.budgets import BY_PLACE, Budgets
from fl_shuffle.configuration.reading import idle_settings
from fl_shuffle.configuration.sections import BudgetsSection, Config
from fl_shuffle.ledger.store import SCHEMA_VERSION
from fl_shuffle.ledger.tables import columns_with
from fl_shuffle.randomizer_plan import RandomizerPlan
from fl_shuffle.run_words import HOPELESS, METRICS_STAY, noise_words
from fl_shuffle.runs.events import publishes_times
from fl_shuffle.version import __version__

POOLED = (
    "noise pooled: same law, no reports were made (simulation only); every number is that of the "
    "reports that the sums stand for"
)
DECLARED = (
    "NOTHING IS PROVEN: no noise is added to what clients send; the epsilons are as the clients "
    "declare their own training (privacy.declared_sigma, clip_norm, declared_steps)"
)
IDLE_IN_SUMS = (
    "budgets do not act: what leaves is sums of reports with equal clips, and every client's "
    "epsilon is the same whatever its budget; with privacy.personalization = 'clipping' who has "
    "half the budget is clipped to half, and has about half the epsilon"
)
IDLE_DECLARED = (
    "budgets do not act: no noise is added to what clients send, and every client's epsilon is "
    "that of the training that all of them declare; only lifetime budgets count"
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
    "seeded noise and permutation (simulation only): whoever knows the seed can remove the noise; "
    "set run.entropy = 'system' for real data"
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
        """As it stands in the ledger."""
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
    plan: RandomizerPlan
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
        common, own = self.config.privacy.client_epsilon, self.budgets.lifetime
        if own is None and common is None:
            return None
        limits = np.full(len(self.plan), np.inf if common is None else common)
        return limits if own is None else np.minimum(limits, own)

    def notes(self, *, sums: bool) -> list[tuple[str, str]]:
        """What a new run's ledger is to say in plain words, (kind, text) each: the warnings, what
        the proven numbers take for granted, and how much noise there is. `sums`: whether the column
        `sum` says something."""
        config = self.config
        assumptions = run_assumptions(
            entropy=config.run.entropy,
            known_law=not self.plan.classes.is_noise("user").any(),
            noise=config.run.noise,
            discrete=config.privacy.randomizer.startswith("discrete-"),
            declared=config.privacy.randomizer == "declared",
            trust=Trust.of(config.to_dict()),
            sums=sums,
        )
        told = {"warning": self.warnings, "assumption": assumptions, "noise": (self.noise,)}
        return [(kind, text) for kind, texts in told.items() for text in texts if text]

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
        clips = self.plan.noise_of_mean(self.dimension, share)
        if clips is None or self.config.training.schedule == "sequential":
            return "", False
        if self.config.privacy.randomizer == "declared":
            return noise_words(clips, None), False
        said = noise_words(clips, round(share * len(self.plan)))
        if clips <= HOPELESS:
            return said, False
        less = "fewer parameters, larger budgets or the record unit make it less (docs/own-app.md)"
        return f"{said}; {less}", True

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the numbers must know, in plain words."""
        config, data = self.config, self.data
        declared = config.privacy.randomizer == "declared"
        noise, hopeless = self._noise
        no_delta_left = self._declared_delta_spent
        known = (
            (self.features_use_data, f"features = {config.data.features!r} {FITTED}"),
            (self.budgets.by_place, BY_PLACE),
            (
                data.held_out,
                f"data.validation = {config.data.validation:g}: accuracy and loss are exact "
                f"numbers about {data.held_out} of the source's private training records: these "
                "records are NOT COVERED by the privacy guarantee",
            ),
            (config.data.dealt_by_label, f"data.partition = {config.data.partition!r} {BY_LABEL}"),
            (config.app.custom_client, METRICS_STAY),
            (hopeless, noise),
            (self._budgets_idle, IDLE_IN_SUMS),
            (declared and config.budgets != BudgetsSection(), IDLE_DECLARED),
            (declared, DECLARED),
            (no_delta_left, no_delta_left),
            (not self.plan.labelled_private, NOT_AS_LABELLED),
            (config.run.noise == "pooled", POOLED),
            (config.run.entropy == "seeded", SEEDED),
        )
        idle = [f"setting without effect: {setting}" for setting in idle_settings(config)]
        return (*idle, *(text for holds, text in known if holds))

    @property
    def _budgets_idle(self) -> bool:
        """Whether clients have budgets of several sizes, and the epsilons of a sum know nothing of
        it: Gaussian noise of all together hides whoever has the same clip equally well."""
        kinds, privacy = self.plan.classes, self.config.privacy
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
        """The facts that a new run's ledger begins with; `run` is its random identifier.

        Beside classes and attempts whoever works the epsilons out again needs on which grids
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
            "started": now.isoformat() if seeded else now.date().isoformat(),
        }  # fmt: skip

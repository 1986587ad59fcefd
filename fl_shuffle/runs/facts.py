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
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.accounting.rounds.trust import Trust
from fl_shuffle.budgets import BY_PLACE
from fl_shuffle.configuration.reading import idle_settings
from fl_shuffle.configuration.sections import BudgetsSection, Config
from fl_shuffle.ledger.store import SCHEMA_VERSION
from fl_shuffle.randomizer_plan import RandomizerPlan
from fl_shuffle.run_words import HOPELESS, METRICS_STAY, noise_words
from fl_shuffle.runs.events import publishes_times
from fl_shuffle.runs.views import columns_with
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
    """What the apps know about a run beside its configuration.

    `fingerprint` is a digest of the records: it may not be published (see `runs.data_check`); None
    where the server does not have them. `budgets_by_place` is that of `Budgets`. `metrics` are
    names of what is measured after a round; those beside accuracy and loss get columns of their
    own.
    """

    plan: RandomizerPlan
    dimension: int
    data: DataFacts
    features_use_data: bool
    fingerprint: str | None
    lifetime: NDArray[np.float64] | None = None
    budgets_by_place: bool = False
    metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        columns_with(self.metrics)

    @property
    def records_not_covered(self) -> int:
        """Private records of which something exact is published, beside the reports."""
        return self.data.held_out + (self.data.records if self.features_use_data else 0)


def started_at(config: Config) -> str:
    """Now, in UTC: to the microsecond, or only the day where times are not published."""
    now = datetime.now(UTC)
    return now.isoformat() if publishes_times(config) else now.date().isoformat()


def finished_at(config: Config) -> str | None:
    """Now, in UTC; None where times are not published."""
    return datetime.now(UTC).isoformat() if publishes_times(config) else None


def lifetimes(config: Config, facts: RunFacts) -> NDArray[np.float64] | None:
    """Each client's lifetime epsilon [clients], inf where it has none; None if nobody has one."""
    common = config.privacy.client_epsilon
    if facts.lifetime is None and common is None:
        return None
    limits = np.full(len(facts.plan), np.inf if common is None else common)
    return limits if facts.lifetime is None else np.minimum(limits, facts.lifetime)


def assumptions_of(config: Config, facts: RunFacts) -> tuple[str, ...]:
    """What the proven numbers take for granted, in plain words."""
    known = not facts.plan.classes.is_noise("user").any()
    trust, schedule = Trust.of(config.to_dict()), config.training.schedule
    reason = SumAccount.start(
        facts.plan.classes,
        facts.plan.class_of,
        schedule=schedule,
        assumed_honest=trust.assumed_honest,
        dimension=facts.dimension,
    ).reason
    return run_assumptions(
        entropy=config.run.entropy,
        known_law=known,
        noise=config.run.noise,
        discrete=config.privacy.randomizer.startswith("discrete-"),
        declared=config.privacy.randomizer == "declared",
        trust=trust,
        sums=reason is None and not trust.analyzed,
    )


def noise_of(config: Config, facts: RunFacts) -> tuple[str, bool]:
    """How much noise a round's mean report has, in words, and whether that is a warning; empty
    where nobody knows, or there is no mean."""
    share = config.training.participation
    clips = facts.plan.noise_of_mean(facts.dimension, share)
    if clips is None or config.training.schedule == "sequential":
        return "", False
    if config.privacy.randomizer == "declared":
        return noise_words(clips, None), False
    said = noise_words(clips, round(share * len(facts.plan)))
    if clips <= HOPELESS:
        return said, False
    return (
        f"{said}; fewer parameters, larger budgets or the record unit make it less "
        "(docs/own-app.md)",
        True,
    )


def _budgets_idle(config: Config, facts: RunFacts) -> bool:
    """Whether clients have budgets of several sizes, and the epsilons of a sum know nothing of it:
    Gaussian noise of all together hides whoever has the same clip equally well."""
    kinds, privacy = facts.plan.classes, config.privacy
    several = len(np.unique(np.stack([kinds.epsilon0, kinds.delta0]), axis=1).T) > 1
    clips = {(int(n), float(c)) for n, c in zip(kinds.records, kinds.sensitivity, strict=True)}
    alike = len(clips) == len(np.unique(kinds.records)) and privacy.assumed_honest is None
    gaussian = privacy.randomizer == "gaussian"
    return privacy.release == "sum" and gaussian and several and alike


def warnings_of(config: Config, facts: RunFacts) -> tuple[str, ...]:
    """What a reader of the numbers must know, in plain words."""
    found = [f"setting without effect: {idle}" for idle in idle_settings(config)]
    if facts.features_use_data:
        found.append(
            f"features = {config.data.features!r} are fitted on the training data: that fit is not "
            "covered by the privacy guarantee"
        )
    if facts.budgets_by_place:
        found.append(BY_PLACE)
    if facts.data.held_out:
        found.append(
            f"data.validation = {config.data.validation:g}: accuracy and loss are exact numbers "
            f"about {facts.data.held_out} of the source's private training records: these records "
            "are NOT COVERED by the privacy guarantee"
        )
    if config.data.dealt_by_label:
        found.append(
            f"data.partition = {config.data.partition!r} deals records to clients by their labels: "
            "the guarantee is for one unit replaced after that partition, and what the partition "
            "itself tells of labels is not covered"
        )
    if config.app.custom_client:
        found.append(METRICS_STAY)
    noise, hopeless = noise_of(config, facts)
    if hopeless:
        found.append(noise)
    if _budgets_idle(config, facts):
        found.append(IDLE_IN_SUMS)
    if config.privacy.randomizer == "declared" and config.budgets != BudgetsSection():
        found.append(IDLE_DECLARED)
    if config.privacy.randomizer == "declared":
        found.append(DECLARED)
    failing = _declared_delta_spent(config, facts)
    if failing:
        found.append(failing)
    if not facts.plan.labelled_private:
        found.append(
            "NOT PRIVATE AS LABELLED: the noise follows the published formula, which takes the "
            "sensitivity for smaller than it is; the true local epsilon is printed as proven"
        )
    if config.run.noise == "pooled":
        found.append(POOLED)
    if config.run.entropy == "seeded":
        found.append(
            "seeded noise and permutation (simulation only): whoever knows the seed can remove the "
            "noise; set run.entropy = 'system' for real data"
        )
    return tuple(found)


def _declared_delta_spent(config: Config, facts: RunFacts) -> str:
    """Where a user's own randomizer has no finite epsilon any more, because every report may break
    its promise with its delta0; empty if that is in no round of the run."""
    classes, target = facts.plan.classes, config.privacy.target_delta
    largest = float(classes.delta0[classes.is_noise("user")].max(initial=0.0))
    if largest == 0.0:
        return ""
    # 1 - (1 - delta0)^k <= target for the first k reports of a client.
    covered = int(np.log1p(-target) / np.log1p(-largest) * (1.0 + 1e-12))
    reports = config.run.rounds * config.privacy.reports_per_round
    if covered >= reports:
        return ""
    return (
        f"no finite epsilon holds at privacy.target_delta = {target:g} for a client that reports "
        f"more than {covered} times: a report of its randomizer has delta = {largest:g}; "
        f"{reports} reports need budgets of delta below {target / reports:.2g}"
    )


def test_data_of(facts: RunFacts) -> str:
    """What the records are that accuracy and loss are measured on."""
    if not facts.data.records and not facts.data.test_records:
        return "the app's own"
    return "held out of the private records" if facts.data.held_out else "public"


def _for_verifiers(config: Config, facts: RunFacts) -> dict[str, Any]:
    """What somebody needs beside classes and attempts who works the epsilons out again: on which
    grids reports lie (powers of two, the finest and the coarsest), and what is claimed."""
    privacy, step = config.privacy, facts.plan.step
    return {
        "report_grid": {"finest": float(step.min()), "coarsest": float(step.max())},
        "unit": privacy.unit,
        "release": privacy.release,
        "assumed_honest": privacy.assumed_honest,
        "delta": privacy.target_delta,
        "reports_per_round": privacy.reports_per_round,
    }


def ledger_meta(config: Config, facts: RunFacts) -> dict[str, Any]:
    """The facts that a new run's ledger begins with; `run` is its random identifier."""
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "schema": SCHEMA_VERSION,
        "run": secrets.token_hex(16),
        "config": config.to_dict(),
        "code_version": __version__,
        "python": platform.python_version(),
        "libraries": versions,
        "seed": config.run.seed if config.run.entropy == "seeded" else "operating-system entropy",
        "data": facts.data.published(),
        "test_data": test_data_of(facts),
        "records_not_covered": facts.records_not_covered,
        "relation": config.relation,
        "dimension": facts.dimension,
        "labelled_private": facts.plan.labelled_private,
        "metrics": list(facts.metrics),
        **_for_verifiers(config, facts),
        "started": started_at(config),
    }

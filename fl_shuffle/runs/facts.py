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
from fl_shuffle.configuration.effects import idle_settings
from fl_shuffle.configuration.sections import Config
from fl_shuffle.ledger.store import SCHEMA_VERSION
from fl_shuffle.randomizer_plan import RandomizerPlan
from fl_shuffle.runs.metrics import own_columns
from fl_shuffle.version import __version__

POOLED = (
    "noise pooled: same law, no reports were made (simulation only); every number is that of the "
    "reports that the sums stand for"
)
LIBRARIES = ("flwr", "torch", "numpy", "numba", "scipy", "dp-accounting", "opacus")


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
        own_columns(self.metrics)

    @property
    def records_not_covered(self) -> int:
        """Private records of which something exact is published, beside the reports."""
        return self.data.held_out + (self.data.records if self.features_use_data else 0)


def publishes_times(config: Config) -> bool:
    """Whether a run writes down times: how long a client computes may depend on its records."""
    return config.run.entropy == "seeded"


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
        trust=trust,
        sums=reason is None and not trust.analyzed,
    )


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
    if covered >= config.run.rounds:
        return ""
    return (
        f"no finite epsilon holds at privacy.target_delta = {target:g} for a client that reports "
        f"more than {covered} times: a report of its randomizer has delta = {largest:g}; "
        f"{config.run.rounds} rounds need budgets of delta below {target / config.run.rounds:.2g}"
    )


def test_data_of(facts: RunFacts) -> str:
    """What the records are that accuracy and loss are measured on."""
    return "held out of the private records" if facts.data.held_out else "public"


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
        "started": started_at(config),
    }

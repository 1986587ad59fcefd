"""TOML -> a frozen, validated configuration.

Every field states what it allows; an unknown key, a wrong type or a value out of range raises
`ConfigError` or `InvalidValueError` with one line that names `section.key`, the value and what is
allowed. Nothing is guessed: a field has the default written here or the value in the file.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from fl_shuffle.configuration.checks import (
    choice_field,
    choice_or_path_field,
    count_or_share_field,
    flag_field,
    integer_field,
    integers_field,
    optional_real_field,
    real_field,
    table_field,
    text_field,
)

TORCHVISION_SOURCES = (
    "fashion-mnist", "kmnist", "qmnist", "emnist", "usps", "svhn", "cifar10", "cifar100", "stl10",
    "country211", "dtd", "fer2013", "fgvc-aircraft", "flowers102", "food101", "gtsrb", "imagenette",
    "oxford-iiit-pet", "pcam", "rendered-sst2", "stanford-cars",
)  # fmt: skip
"""Data sets of torchvision.datasets that a configuration names (`tasks/sources/named_images`)."""
SOURCES = ("digits", "mnist", "gapminder", "files", "huggingface", *TORCHVISION_SOURCES)


@dataclass(frozen=True)
class RunSection:
    """How long, how seeded, on what."""

    rounds: int = integer_field(10, minimum=1, maximum=1_000_000)
    seed: int = integer_field(0, minimum=0, maximum=2**63 - 1)
    entropy: str = choice_field("seeded", "seeded", "system")
    engine: str = choice_field("in-process", "in-process", "ray")
    ray_address: str = text_field("")
    noise: str = choice_field("per-report", "per-report", "pooled")
    out: str = text_field("runs", allow_empty=False)
    device: str = choice_field("cpu", "cpu", "cuda")
    jobs: int = integer_field(0, minimum=0, maximum=1024)
    evaluate_every: int = integer_field(1, minimum=1)
    timeout: float = real_field(3600.0, minimum=0.0, exclusive_minimum=True)
    supernodes: str = text_field("")


@dataclass(frozen=True)
class DataSection:
    """Which records, cut into which clients, seen through which features."""

    source: str = choice_or_path_field("digits", *SOURCES, group="data_sources")
    source_options: dict[str, Any] = table_field()
    root: str = text_field("")
    clients: int = integer_field(50, minimum=1, maximum=100_000_000)
    records: int = integer_field(0, minimum=0)
    partition: str = choice_field("iid", "iid", "dirichlet", "shards", "ordered", "natural")
    alpha: float = real_field(0.5, minimum=0.0, exclusive_minimum=True)
    shards_per_client: int = integer_field(2, minimum=1)
    sizes: str = choice_field("equal", "equal", "unequal")
    features: str = choice_or_path_field(
        "raw", "raw", "pca", "hog", "pixels", "none", group="features"
    )
    feature_options: dict[str, Any] = table_field()
    validation: float = real_field(0.0, minimum=0.0, maximum=0.5)
    seed: int = integer_field(0, minimum=0)

    @property
    def dealt_by_label(self) -> bool:
        """Whether the labels decide which client holds which records."""
        return self.partition in ("dirichlet", "shards")


@dataclass(frozen=True)
class ModelSection:
    """What is trained."""

    kind: str = choice_or_path_field("linear", "linear", "mlp", group="models")
    hidden: tuple[int, ...] = integers_field((), minimum=1)
    init: str = choice_field("default", "default", "zeros")
    bias: bool = flag_field(True)
    loss: str = choice_or_path_field(
        "cross-entropy", "cross-entropy", "squared-error", group="losses"
    )
    metrics: str = choice_or_path_field("default", "default", group="metrics")


@dataclass(frozen=True)
class TrainingSection:
    """What a client computes, and who takes part."""

    schedule: str = choice_field("aggregate", "aggregate", "sequential")
    participation: float = real_field(1.0, minimum=0.0, maximum=1.0, exclusive_minimum=True)
    local_steps: int = integer_field(1, minimum=1)
    local_learning_rate: float = real_field(0.1, minimum=0.0, exclusive_minimum=True)


@dataclass(frozen=True)
class ServerSection:
    """What the server does with the mean of the shuffled reports."""

    optimizer: str = choice_field("sgd", "sgd", "momentum", "adam")
    learning_rate: float = real_field(1.0, minimum=0.0, exclusive_minimum=True)
    momentum: float = real_field(0.9, minimum=0.0, maximum=1.0, exclusive_maximum=True)
    beta2: float = real_field(0.999, minimum=0.0, maximum=1.0, exclusive_maximum=True)
    decay: str = choice_field("constant", "constant", "linear", "cosine")
    averaging: float = real_field(0.0, minimum=0.0, maximum=1.0)
    weights: str = choice_field("uniform", "uniform", "inverse-variance")
    analyzer: str = choice_or_path_field(
        "mean", "mean", "coordinate-median", "trimmed-mean", group="analyzers"
    )
    trim: float = real_field(0.1, minimum=0.0, maximum=0.5, exclusive_maximum=True)


@dataclass(frozen=True)
class PrivacySection:
    """Unit of privacy, clipping, local randomizer, and what the run may spend."""

    unit: str = choice_field("record", "record", "client")
    clip: str = choice_field("auto", "auto", "record", "average", "update")
    # Beyond these, noise scales leave what randomizers allow, and squares the range of float32.
    clip_norm: float = real_field(1.0, minimum=1e-10, maximum=1e10)
    client_clip: float | None = optional_real_field(minimum=1e-10, maximum=1e10)
    randomizer: str = choice_or_path_field(
        "gaussian",
        *("gaussian", "laplace", "discrete-gaussian", "discrete-laplace"),
        group="randomizers",
    )
    calibration: str = choice_field("analytic", "analytic", "classical", "as-published")
    personalization: str = choice_field("noise", "noise", "clipping")
    target_delta: float = real_field(
        1e-5, minimum=0.0, maximum=1.0, exclusive_minimum=True, exclusive_maximum=True
    )
    target_epsilon: float | None = optional_real_field(minimum=0.0, exclusive_minimum=True)
    client_epsilon: float | None = optional_real_field(minimum=0.0, exclusive_minimum=True)
    min_reports: int = integer_field(2, minimum=1)
    release: str = choice_field("reports", "reports", "sum")
    shuffler: str = choice_field("in-server", "in-server", "apart")
    assumed_honest: int | float | None = count_or_share_field()


@dataclass(frozen=True)
class BudgetsSection:
    """Who has which local (epsilon0, delta0)."""

    distribution: str = choice_or_path_field(
        "constant",
        "constant",
        "uniform",
        "unif1",
        "unif2",
        "unif3",
        "mixed",
        "groups",
        "file",
    )
    epsilon: float = real_field(0.5, minimum=0.0, exclusive_minimum=True)
    low: float = real_field(0.01, minimum=0.0, exclusive_minimum=True)
    high: float = real_field(1.0, minimum=0.0, exclusive_minimum=True)
    delta: float = real_field(1e-5, minimum=0.0, maximum=1.0, exclusive_maximum=True)
    file: str = text_field("")
    levels: int = integer_field(0, minimum=0, maximum=10_000)
    conservative: float = real_field(0.1, minimum=0.0, exclusive_minimum=True)
    moderate: float = real_field(0.5, minimum=0.0, exclusive_minimum=True)
    liberal: float = real_field(1.0, minimum=0.0, exclusive_minimum=True)
    conservative_fraction: float = real_field(0.54, minimum=0.0, maximum=1.0)
    moderate_fraction: float = real_field(0.37, minimum=0.0, maximum=1.0)
    seed: int = integer_field(0, minimum=0)


@dataclass(frozen=True)
class AppSection:
    """The Flower apps that play the two sides; a user's own go here."""

    server: str = choice_or_path_field("fl_shuffle.apps.server:app")
    client: str = choice_or_path_field("fl_shuffle.apps.client:app")


@dataclass(frozen=True)
class Config:
    """A whole run, as resolved from a file and its overrides."""

    run: RunSection = field(default_factory=RunSection)
    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    server: ServerSection = field(default_factory=ServerSection)
    privacy: PrivacySection = field(default_factory=PrivacySection)
    budgets: BudgetsSection = field(default_factory=BudgetsSection)
    app: AppSection = field(default_factory=AppSection)

    @property
    def clip(self) -> str:
        """The clipping in force: `auto` is per record for the record unit, the update otherwise."""
        if self.privacy.clip != "auto":
            return self.privacy.clip
        return "record" if self.privacy.unit == "record" else "update"

    @property
    def sums_need_rows(self) -> bool:
        """Whether a sum of clipped means takes every client's own mean: it does where these are
        clipped, and not where single records are and nothing else."""
        return self.clip != "record" or self.privacy.client_clip is not None

    @property
    def relation(self) -> str:
        """The neighbouring relation of the guarantee.

        Where the partition is computed from the labels it is one of data sets that are cut into
        clients already: what the partition tells of the labels is not covered.
        """
        return (
            "replace-one after the partition by label"
            if self.data.dealt_by_label
            else ("replace-one")
        )

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain nested tables; unset optional values are left out, as TOML has no null."""
        return {
            section.name: {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in dataclasses.asdict(getattr(self, section.name)).items()
                if value is not None
            }
            for section in dataclasses.fields(self)
        }

    def to_json(self) -> str:
        """The configuration as one JSON text, as it travels to the apps and into the ledger."""
        return json.dumps(self.to_dict(), sort_keys=True)

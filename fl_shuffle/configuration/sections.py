"""The configuration: every setting once, with its type, default, range and meaning.

An unknown key, a wrong type or a value out of range raises `ConfigError` or `InvalidValueError`
with one line that names `section.key`, the value and what is allowed. Nothing is guessed: a field
has the default written here or the value in the file.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from fl_shuffle.declare import one_of, setting

TORCHVISION_SOURCES = (
    "mnist", "fashion-mnist", "kmnist", "qmnist", "emnist", "usps", "svhn", "cifar10", "cifar100",
    "stl10",
)  # fmt: skip
"""Data sets of torchvision.datasets that a configuration names (`data/sources/image_sets`)."""
SOURCES = ("digits", "gapminder", "files", "huggingface", *TORCHVISION_SOURCES)


@dataclass(frozen=True)
class RunSection:
    """How long, how seeded, on what."""

    rounds: int = setting(10, "rounds to play", low=1, high=1_000_000, flag="--rounds N")
    seed: int = setting(
        0, "root of all randomness of a seeded run", high=2**63 - 1, flag="--seed N"
    )
    entropy: str = one_of(
        ("seeded", "system"), "`system`: noise and permutations from the operating system"
    )
    engine: str = one_of(
        ("in-process", "ray", "flwr"),
        "what plays the clients: `in-process`, `ray` (its processes, here or on a cluster), or "
        "`flwr`: the app of this folder on Flower's Simulation Runtime, as `flwr run .` does",
        flag="--engine NAME",
    )
    ray_address: str = setting("", "a Ray cluster to join; empty: this machine, or `$RAY_ADDRESS`")
    noise: str = one_of(
        ("per-report", "pooled"),
        "`pooled`: one vector of noise a round, of the same law (simulation)",
    )
    out: str = setting("runs", "folder below which run directories are made", empty=False)
    device: str = one_of(("cpu", "cuda"), "where gradients are computed", flag="--device NAME")
    jobs: int = setting(
        0, "threads or processes; 0: as many as pay; changes no result", high=1024, flag="--jobs N"
    )
    evaluate_every: int = setting(1, "rounds between two evaluations on the test records", low=1)
    timeout: float = setting(3600.0, "seconds a round waits for reports", above=0.0)
    supernodes: str = setting("", "deployments: CSV file that ties SuperNodes' keys to clients")


@dataclass(frozen=True)
class DataSection:
    """Which records, cut into which clients, seen through which features."""

    source: str = one_of(SOURCES, "`digits` and `gapminder` are shipped", own="data_sources")
    source_options: dict[str, Any] = setting({}, "options of the source")
    root: str = setting(
        "",
        "folder that holds the data (MNIST/raw); for MNIST then `$FL_SHUFFLE_DATA`",
        flag="--data DIR",
    )
    clients: int = setting(50, "number of clients", low=1, high=100_000_000, flag="--clients N")
    records: int = setting(0, "records a client; 0: all records are dealt out", low=0)
    partition: str = one_of(
        ("iid", "dirichlet", "shards", "ordered", "natural"),
        "`dirichlet` and `shards` go by label; `natural`: the source's own clients",
    )
    alpha: float = setting(
        0.5, "concentration of `dirichlet`", above=0.0, needs="partition = dirichlet"
    )
    shards_per_client: int = setting(2, "of `shards`", low=1, needs="partition = shards")
    sizes: str = one_of(("equal", "unequal"), "how many records clients have")
    features: str = one_of(
        ("raw", "pca", "hog", "pixels", "none"),
        "`pca` is fitted on private records: not covered",
        own="features",
    )
    feature_options: dict[str, Any] = setting({}, "options of the features")
    validation: float = setting(
        0.0, "share of private training records to evaluate on: not covered", low=0.0, high=0.5
    )
    seed: int = setting(0, "seed of the partition", low=0)

    @property
    def dealt_by_label(self) -> bool:
        """Whether the labels decide which client holds which records."""
        return self.partition in ("dirichlet", "shards")


@dataclass(frozen=True)
class ModelSection:
    """What is trained."""

    kind: str = one_of(("linear", "mlp"), "the model", own="models")
    hidden: tuple[int, ...] = setting(
        (), "widths of the hidden layers of `mlp`", low=1, needs="kind = linear or mlp"
    )
    init: str = one_of(("default", "zeros"), "first weights", needs="kind = linear or mlp")
    bias: bool = setting(True, "whether layers have one", needs="kind = linear or mlp")
    loss: str = one_of(("cross-entropy", "squared-error"), "one number a record", own="losses")
    metrics: str = one_of(("default",), "accuracy, or errors in regression", own="metrics")


@dataclass(frozen=True)
class TrainingSection:
    """What a client computes, and who takes part."""

    schedule: str = one_of(
        ("aggregate", "sequential"),
        "the mean of a round's reports, or one report after another in random order",
    )
    participation: float = setting(
        1.0, "share of the clients that is asked each round", above=0.0, high=1.0
    )
    local_steps: int = setting(1, "gradient steps of a client before it reports", low=1)
    local_learning_rate: float = setting(0.1, "of these steps", above=0.0, unless="local_steps = 1")


@dataclass(frozen=True)
class ServerSection:
    """What the server does with the mean of the shuffled reports."""

    optimizer: str = one_of(("sgd", "momentum", "adam"), "of the model")
    learning_rate: float = setting(1.0, "of the step on the mean report", above=0.0)
    momentum: float = setting(
        0.9,
        "of `momentum`; the first moment of `adam`",
        low=0.0,
        below=1.0,
        needs="optimizer = momentum or adam",
    )
    beta2: float = setting(
        0.999, "the second moment of `adam`", low=0.0, below=1.0, needs="optimizer = adam"
    )
    decay: str = one_of(("constant", "linear", "cosine"), "of the learning rate")
    decay_to: float = setting(
        0.0,
        "share of the learning rate that is left at the end",
        low=0.0,
        below=1.0,
        unless="decay = constant",
    )
    averaging: float = setting(
        0.0, "weight of the past in the published running average; 0: none", low=0.0, high=1.0
    )
    weights: str = one_of(
        ("uniform", "inverse-variance"), "of reports; `inverse-variance`: by noise scale"
    )
    analyzer: str = one_of(
        ("mean", "coordinate-median", "trimmed-mean"),
        "what makes one update of the reports",
        own="analyzers",
    )
    trim: float = setting(
        0.1,
        "share cut off on each side by `trimmed-mean`",
        low=0.0,
        below=0.5,
        needs="analyzer = trimmed-mean",
    )


@dataclass(frozen=True)
class PrivacySection:
    """Unit of privacy, clipping, local randomizer, and what the run may spend."""

    unit: str = one_of(
        ("record", "client"), "what is protected: one record of one client, or all a client holds"
    )
    clip: str = one_of(
        ("auto", "record", "average", "update"), "what is clipped; `auto`: by the unit"
    )
    # Beyond these, noise scales leave what randomizers allow, and squares the range of float32.
    clip_norm: float = setting(1.0, "the radius", low=1e-10, high=1e10)
    client_clip: float | None = setting(
        None, "a second radius, for a client's mean", low=1e-10, high=1e10
    )
    randomizer: str = one_of(
        ("gaussian", "laplace", "discrete-gaussian", "discrete-laplace", "declared"),
        "noise of a report; `declared`: clients of an own app add it themselves",
        own="randomizers",
    )
    declared_sigma: float | None = setting(
        None,
        "noise that clients add to each step's sum of gradients, clipped to `clip_norm`",
        above=0.0,
        needs="randomizer = declared",
    )
    declared_steps: int = setting(
        1, "such steps of a client in a round", low=1, high=1_000_000, needs="randomizer = declared"
    )
    calibration: str = one_of(
        ("analytic", "classical", "as-published"), "Gaussian noise from (epsilon0, delta0)"
    )
    personalization: str = one_of(
        ("noise", "clipping"),
        "what budgets decide: the noise scale, or the clipping radius at equal noise",
    )
    target_delta: float = setting(1e-5, "the delta of every epsilon of the run", above=0.0, below=1)
    target_epsilon: float | None = setting(
        None, "the run stops before the round that would exceed it", above=0.0
    )
    client_epsilon: float | None = setting(
        None, "a client stops before the report that would take it beyond", above=0.0
    )
    min_reports: int = setting(
        2, "a round with fewer reports is not released; at most `data.clients`", low=1
    )
    reports_per_round: int = setting(
        1, "so many reports a client and round, each in a batch of its own", low=1, high=10_000
    )
    release: str = one_of(
        ("reports", "sum"), "who is feared: a reader of shuffled reports, or of their sum alone"
    )
    shuffler: str = one_of(("in-server", "apart"), "`apart`: a process of its own in deployments")
    assumed_honest: int | float | None = setting(
        None, "count, or share, of a round's reports that hide others; not set: all"
    )


_GROUPS = "distribution = groups"


@dataclass(frozen=True)
class BudgetsSection:
    """Who has which local (epsilon0, delta0)."""

    distribution: str = one_of(
        ("constant", "uniform", "unif1", "unif2", "unif3", "mixed", "groups", "listed", "file"),
        "of the clients' budgets",
        own="module",
    )
    epsilon: float = setting(
        0.5, "of `constant`, per report", above=0.0, needs="distribution = constant"
    )
    low: float = setting(0.01, "of `uniform`", above=0.0, needs="distribution = uniform")
    high: float = setting(1.0, "of `uniform`", above=0.0, needs="distribution = uniform")
    delta: float = setting(1e-5, "of a report", low=0.0, below=1.0, unless="distribution = file")
    file: str = setting(
        "",
        "personal budgets: client_id,epsilon,delta and, if wanted, lifetime_epsilon",
        flag="--budgets FILE.csv",
        needs="distribution = file",
    )
    epsilons: tuple[float, ...] = setting(
        (), "of `listed`: one a client, client 0 first", above=0.0, needs="distribution = listed"
    )
    levels: int = setting(0, "round budgets down to so many values; 0: as drawn", high=10_000)
    conservative: float = setting(0.1, "of `groups`", above=0.0, needs=_GROUPS)
    moderate: float = setting(0.5, "of `groups`", above=0.0, needs=_GROUPS)
    liberal: float = setting(1.0, "of `groups`", above=0.0, needs=_GROUPS)
    conservative_fraction: float = setting(
        0.54, "share of conservative clients", low=0.0, high=1.0, needs=_GROUPS
    )
    moderate_fraction: float = setting(
        0.37, "share of moderate clients", low=0.0, high=1.0, needs=_GROUPS
    )
    seed: int = setting(0, "seed of the draw", low=0)


@dataclass(frozen=True)
class AppSection:
    """The Flower apps that play the two sides; a user's own go here."""

    server: str = setting("fl_shuffle.pages.server.app:app", "the Flower ServerApp", own="module")
    client: str = setting("fl_shuffle.pages.clients.app:app", "the Flower ClientApp", own="module")
    config: dict[str, Any] = setting(
        {}, "what an app of your own reads in context.run_config; beside [tool.flwr.app.config]"
    )

    @property
    def custom_server(self) -> bool:
        """Whether the ServerApp is a user's own."""
        return self.server != AppSection().server

    @property
    def custom_client(self) -> bool:
        """Whether the ClientApp is a user's own."""
        return self.client != AppSection().client

    @property
    def custom(self) -> bool:
        """Whether either is."""
        return self.custom_server or self.custom_client


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

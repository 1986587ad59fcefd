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

BY_LABEL = ("dirichlet", "dirichlet-by-class", "classes", "shards")
"""Partitions in which the labels decide which client holds which records."""


@dataclass(frozen=True)
class RunSection:
    """How long, how seeded, on what."""

    rounds: int = setting(10, low=1, high=1_000_000, flag="--rounds N")
    """rounds to play"""
    seed: int = setting(0, high=2**63 - 1, flag="--seed N")
    """root of all randomness of a seeded run"""
    entropy: str = one_of(("seeded", "system"))
    """`system`: noise and permutations from the operating system"""
    engine: str = one_of(("in-process", "ray", "flwr"), flag="--engine NAME")
    """what plays the clients: `in-process`, `ray` (its processes, here or on a cluster), or `flwr`:
    the app of this folder on Flower's Simulation Runtime, as `flwr run .` does"""
    ray_address: str = setting("")
    """a Ray cluster to join; empty: this machine, or `$RAY_ADDRESS`"""
    noise: str = one_of(("per-report", "pooled"))
    """`pooled`: one vector of noise a round, of the same law (simulation)"""
    out: str = setting("runs", empty=False)
    """folder below which run directories are made"""
    device: str = one_of(("cpu", "cuda"), flag="--device NAME")
    """where gradients are computed"""
    jobs: int = setting(0, high=1024, flag="--jobs N")
    """threads or processes; 0: as many as pay; changes no result"""
    evaluate_every: int = setting(1, low=1)
    """rounds between two evaluations on the test records"""
    timeout: float = setting(3600.0, above=0.0)
    """seconds a round waits for reports"""
    supernodes: str = setting("")
    """deployments: CSV file that ties SuperNodes' keys to clients"""


@dataclass(frozen=True)
class DataSection:
    """Which records, cut into which clients, seen through which features."""

    source: str = one_of(SOURCES, own="data_sources")
    """`digits` and `gapminder` are shipped"""
    source_options: dict[str, Any] = setting({})
    """options of the source"""
    root: str = setting("", flag="--data DIR")
    """folder that holds the data (MNIST/raw); for MNIST then `$FL_SHUFFLE_DATA`"""
    clients: int = setting(50, low=1, high=100_000_000, flag="--clients N")
    """number of clients"""
    records: int = setting(0, low=0)
    """records a client; 0: all records are dealt out"""
    partition: str = one_of(("iid", *BY_LABEL, "ordered", "natural"))
    """`dirichlet` draws each client's classes, `dirichlet-by-class` each class's clients; these,
    `classes` and `shards` go by label; `natural`: the source's own clients"""
    alpha: float = setting(0.5, above=0.0, needs="partition = dirichlet or dirichlet-by-class")
    """concentration of the Dirichlet distribution: the smaller, the more clients differ"""
    shards_per_client: int = setting(2, low=1, needs="partition = shards")
    """Number of runs of records, sorted by label, of each client"""
    classes_per_client: int = setting(2, low=1, needs="partition = classes")
    """Number of classes of each client"""
    sizes: str = one_of(("equal", "unequal", "dirichlet"))
    """how many records clients have; `unequal`: log-normal"""
    sizes_alpha: float = setting(1.0, above=0.0, needs="sizes = dirichlet")
    """concentration of the clients' shares of the records"""
    features: str = one_of(("raw", "pca", "hog", "pixels", "none"), own="features")
    """`pca` is fitted on private records: not covered"""
    feature_options: dict[str, Any] = setting({})
    """options of the features"""
    validation: float = setting(0.0, low=0.0, high=0.5)
    """share of private training records to evaluate on: not covered"""
    seed: int = setting(0, low=0)
    """seed of the partition"""

    @property
    def dealt_by_label(self) -> bool:
        """Whether the labels decide which client holds which records."""
        return self.partition in BY_LABEL

    @property
    def sizes_fixed(self) -> bool:
        """Whether the partition itself says how many records each client has."""
        return self.partition in ("natural", "dirichlet-by-class", "classes")


@dataclass(frozen=True)
class ModelSection:
    """What is trained."""

    kind: str = one_of(("linear", "mlp"), own="models")
    """the model"""
    hidden: tuple[int, ...] = setting((), low=1, needs="kind = linear or mlp")
    """widths of the hidden layers of `mlp`"""
    init: str = one_of(("default", "zeros"), needs="kind = linear or mlp")
    """first weights"""
    bias: bool = setting(True, needs="kind = linear or mlp")
    """whether layers have one"""
    loss: str = one_of(("cross-entropy", "squared-error"), own="losses")
    """one number a record"""
    metrics: str = one_of(("default",), own="metrics")
    """accuracy, or errors in regression"""


@dataclass(frozen=True)
class TrainingSection:
    """What a client computes, and who takes part."""

    schedule: str = one_of(("aggregate", "sequential"))
    """the mean of a round's reports, or one report after another in random order"""
    participation: float = setting(1.0, above=0.0, high=1.0)
    """share of the clients that is asked each round"""
    local_steps: int = setting(1, low=1)
    """gradient steps of a client before it reports"""
    local_learning_rate: float = setting(0.1, above=0.0, unless="local_steps = 1")
    """of these steps"""


@dataclass(frozen=True)
class ServerSection:
    """What the server does with the mean of the shuffled reports."""

    optimizer: str = one_of(("sgd", "momentum", "adam"))
    """of the model"""
    learning_rate: float = setting(1.0, above=0.0)
    """of the step on the mean report"""
    momentum: float = setting(0.9, low=0.0, below=1.0, needs="optimizer = momentum or adam")
    """of `momentum`; the first moment of `adam`"""
    beta2: float = setting(0.999, low=0.0, below=1.0, needs="optimizer = adam")
    """the second moment of `adam`"""
    decay: str = one_of(("constant", "linear", "cosine"))
    """of the learning rate"""
    decay_to: float = setting(0.0, low=0.0, below=1.0, unless="decay = constant")
    """share of the learning rate that is left at the end"""
    averaging: float = setting(0.0, low=0.0, high=1.0)
    """weight of the past in the published running average; 0: none"""
    weights: str = one_of(("uniform", "inverse-variance"))
    """of reports; `inverse-variance`: by noise scale"""
    analyzer: str = one_of(("mean", "coordinate-median", "trimmed-mean"), own="analyzers")
    """what makes one update of the reports"""
    trim: float = setting(0.1, low=0.0, below=0.5, needs="analyzer = trimmed-mean")
    """share cut off on each side by `trimmed-mean`"""


@dataclass(frozen=True)
class PrivacySection:
    """Unit of privacy, clipping, local randomizer, and what the run may spend."""

    unit: str = one_of(("record", "client"))
    """what is protected: one record of one client, or all a client holds"""
    clip: str = one_of(("auto", "record", "average", "update"))
    """what is clipped; `auto`: by the unit"""
    # Beyond these, noise scales leave what randomizers allow, and squares the range of float32.
    clip_norm: float = setting(1.0, low=1e-10, high=1e10)
    """the radius"""
    client_clip: float | None = setting(None, low=1e-10, high=1e10)
    """a second radius, for a client's mean"""
    randomizer: str = one_of(
        ("gaussian", "laplace", "discrete-gaussian", "discrete-laplace", "declared"),
        own="randomizers",
    )
    """noise of a report; `declared`: clients of an own app add it themselves"""
    declared_sigma: float | None = setting(None, above=0.0, needs="randomizer = declared")
    """noise that clients add to each step's sum of gradients, clipped to `clip_norm`"""
    declared_steps: int = setting(1, low=1, high=1_000_000, needs="randomizer = declared")
    """such steps of a client in a round"""
    calibration: str = one_of(("analytic", "classical", "as-published"))
    """Gaussian noise from (epsilon0, delta0)"""
    personalization: str = one_of(("noise", "clipping"))
    """what budgets decide: the noise scale, or the clipping radius at equal noise"""
    target_delta: float = setting(1e-5, above=0.0, below=1)
    """the delta of every epsilon of the run"""
    target_epsilon: float | None = setting(None, above=0.0)
    """the run stops before the round that would exceed it"""
    client_epsilon: float | None = setting(None, above=0.0)
    """a client stops before the report that would take it beyond"""
    min_reports: int = setting(2, low=1)
    """a round with fewer reports is not released; at most `data.clients`"""
    reports_per_round: int = setting(1, low=1, high=10_000)
    """so many reports a client and round, each in a batch of its own"""
    release: str = one_of(("reports", "sum"))
    """who is feared: a reader of shuffled reports, or of their sum alone"""
    shuffler: str = one_of(("in-server", "apart"))
    """`apart`: a process of its own in deployments"""
    assumed_honest: int | float | None = setting(None)
    """count, or share, of a round's reports that hide others; not set: all"""


_GROUPS = "distribution = groups"


@dataclass(frozen=True)
class BudgetsSection:
    """Who has which local (epsilon0, delta0)."""

    distribution: str = one_of(
        ("constant", "uniform", "unif1", "unif2", "unif3", "mixed", "groups", "listed", "file"),
        own="module",
    )
    """of the clients' budgets"""
    epsilon: float = setting(0.5, above=0.0, needs="distribution = constant")
    """of `constant`, per report"""
    low: float = setting(0.01, above=0.0, needs="distribution = uniform")
    """of `uniform`"""
    high: float = setting(1.0, above=0.0, needs="distribution = uniform")
    """of `uniform`"""
    delta: float = setting(1e-5, low=0.0, below=1.0, unless="distribution = file")
    """of a report"""
    file: str = setting("", flag="--budgets FILE.csv", needs="distribution = file")
    """personal budgets: client_id,epsilon,delta and, if wanted, lifetime_epsilon"""
    epsilons: tuple[float, ...] = setting((), above=0.0, needs="distribution = listed")
    """of `listed`: one a client, client 0 first"""
    levels: int = setting(0, high=10_000)
    """round budgets down to so many values; 0: as drawn"""
    conservative: float = setting(0.1, above=0.0, needs=_GROUPS)
    """of `groups`"""
    moderate: float = setting(0.5, above=0.0, needs=_GROUPS)
    """of `groups`"""
    liberal: float = setting(1.0, above=0.0, needs=_GROUPS)
    """of `groups`"""
    conservative_fraction: float = setting(0.54, low=0.0, high=1.0, needs=_GROUPS)
    """share of conservative clients"""
    moderate_fraction: float = setting(0.37, low=0.0, high=1.0, needs=_GROUPS)
    """share of moderate clients"""
    seed: int = setting(0, low=0)
    """seed of the draw"""


@dataclass(frozen=True)
class AppSection:
    """The Flower apps that play the two sides; a user's own go here."""

    server: str = setting("fl_shuffle.pages.server.app:app", own="module")
    """the Flower ServerApp"""
    client: str = setting("fl_shuffle.pages.clients.app:app", own="module")
    """the Flower ClientApp"""
    config: dict[str, Any] = setting({})
    """what an app of your own reads in context.run_config; beside [tool.flwr.app.config]"""

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
        return "replace-one" + " after the partition by label" * self.data.dealt_by_label

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

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

from fl_shuffle._internal.renamed import renamed_attribute
from fl_shuffle.settings_schema import one_of, setting

TORCHVISION_SOURCES = (
    "mnist", "fashion-mnist", "kmnist", "qmnist", "emnist", "usps", "svhn", "cifar10", "cifar100",
    "stl10",
)  # fmt: skip
"""Data sets of torchvision.datasets that a configuration names (`data/sources/image_sets`)."""
SOURCES = ("digits", "gapminder", "files", "images", "huggingface", *TORCHVISION_SOURCES)

OPTIMIZERS = {
    "sgd": "sgd",
    "momentum": "momentum",
    "adam": "adam",
    "fedavg": "sgd",
    "fedavgm": "momentum",
    "fedadam": "adam",
    "fedyogi": "yogi",
    "fedadagrad": "adagrad",
}
"""Name -> the step behind it. The first three are older names of the next three."""

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
    noise: str = one_of(("per-report", "per-sum"))
    """`per-sum`: one vector of noise a round, of the same distribution (simulation)"""
    out: str = setting("runs", empty=False)
    """folder below which run directories are made"""
    device: str = one_of(("cpu", "cuda"), flag="--device NAME")
    """where gradients are computed"""
    jobs: int = setting(0, high=1024, flag="--jobs N")
    """threads or processes; 0: as many as pay; changes no result"""
    evaluate_every: int = setting(1, low=1)
    """rounds between two evaluations on the test records"""
    checkpoint_every: int = setting(0, low=0, high=1_000_000)
    """rounds between two models that are saved in the run's folder; 0: only the last model"""
    timeout: float = setting(3600.0, above=0.0)
    """seconds a round waits for reports"""
    supernodes: str = setting("")
    """deployments: CSV file that ties SuperNodes' keys to clients"""

    @property
    def aggregate_noise(self) -> bool:
        """Whether the noise of a round is one vector: a simulation in which no client makes a
        report."""
        return self.noise == "per-sum"


@dataclass(frozen=True)
class DataSection:
    """Which records, cut into which clients, seen through which features."""

    source: str = one_of(SOURCES, own="data_sources")
    """`digits` and `gapminder` are shipped; `files` are tables and arrays, `images` a folder of
    pictures"""
    source_options: dict[str, Any] = setting({})
    """options of the source"""
    root: str = setting("", flag="--data DIR")
    """folder that holds the data (MNIST/raw); for MNIST then `$FL_SHUFFLE_DATA`"""
    clients: int = setting(50, low=1, high=100_000_000, flag="--clients N")
    """number of clients"""
    records_per_client: int = setting(0, low=0)
    """records of each client; 0: all records are dealt out"""
    partition: str = one_of(("iid", *BY_LABEL, "ordered", "natural"))
    """`dirichlet` draws each client's classes, `dirichlet-by-class` each class's clients; these,
    `classes` and `shards` go by label; `natural`: the source's own clients"""
    dirichlet_alpha: float = setting(
        0.5, above=0.0, needs="partition = dirichlet or dirichlet-by-class"
    )
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
    validation_fraction: float = setting(0.0, low=0.0, high=0.5)
    """share of private training records to evaluate on: not covered"""
    seed: int = setting(0, low=0)
    """seed of the partition"""

    records = renamed_attribute("records", "records_per_client")
    alpha = renamed_attribute("alpha", "dirichlet_alpha")
    validation = renamed_attribute("validation", "validation_fraction")

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

    kind: str = one_of(("linear", "mlp", "cnn", "resnet", "lstm"), own="models")
    """the model: `linear` and `mlp` take flat features, `cnn` and `resnet` pictures
    (`data.features = "pixels"`), `lstm` tokens (`data.features = "none"`)"""
    hidden: tuple[int, ...] = setting((), low=1, needs="kind = linear or mlp")
    """widths of the hidden layers of `mlp`"""
    width: int = setting(0, low=0, high=4096, needs="kind = cnn or resnet or lstm")
    """channels of the first convolution, or numbers of an `lstm`'s state; 0: 16, or 128"""
    vocabulary: int = setting(0, low=0, high=1_000_000, needs="kind = lstm")
    """number of different tokens, 0 and up; 0: as many as classes"""
    init: str = one_of(("default", "zeros"), needs="kind = linear or mlp")
    """first weights"""
    bias: bool = setting(True, needs="kind = linear or mlp")
    """whether layers have one"""
    fix: bool = setting(False)
    """of a model of your own: put group norms in the place of batch norms, which mix records"""
    loss: str = one_of(("cross-entropy", "squared-error"), own="losses")
    """one number a record"""
    metrics: str = one_of(("default",), own="metrics")
    """accuracy, or errors in regression"""


SEVERAL_STEPS = {
    "needs": "single_step = False",
    "told": "several local steps, epochs, or batches",
}


@dataclass(frozen=True)
class TrainingSection:
    """What a client computes, and who takes part."""

    schedule: str = one_of(("aggregate", "sequential"))
    """the mean of a round's reports, or one report after another in random order"""
    participation: float = setting(1.0, above=0.0, high=1.0)
    """share of the clients that is asked each round"""
    local_steps: int = setting(1, low=1)
    """gradient steps of a client before it reports"""
    local_epochs: int = setting(0, low=0, high=100_000)
    """passes of a client over its records before it reports; 0: as many steps as `local_steps`"""
    batch_size: int = setting(0, low=0)
    """records of a local step, in an order that is drawn anew for each pass; 0: all of them"""
    local_optimizer: str = one_of(("sgd", "momentum"), **SEVERAL_STEPS)
    """of the local steps"""
    local_learning_rate: float = setting(0.1, above=0.0, **SEVERAL_STEPS)
    """of the local steps"""
    local_momentum: float = setting(0.9, low=0.0, below=1.0, needs="local_optimizer = momentum")
    """share of the past in the direction of a local step"""
    proximal_mu: float = setting(0.0, low=0.0, **SEVERAL_STEPS)
    """weight mu of FedProx's term mu/2 |w - w0|^2, which keeps a client near the broadcast model"""

    @property
    def single_step(self) -> bool:
        """Whether a client reports one gradient of all its records, and trains nothing itself."""
        return self.local_steps == 1 and not self.local_epochs and not self.batch_size


@dataclass(frozen=True)
class ServerSection:
    """What the server does with the mean of the shuffled reports."""

    optimizer: str = one_of(tuple(OPTIMIZERS))
    """step on the mean report: `fedavg` moves by the learning rate times the mean, `fedavgm` adds
    momentum, `fedadam`, `fedyogi` and `fedadagrad` divide by a moving root mean square; `sgd`,
    `momentum` and `adam` are other names of the first three"""
    learning_rate: float = setting(1.0, above=0.0)
    """of the step on the mean report"""
    momentum: float = setting(
        0.9, low=0.0, below=1.0, unless="optimizer = sgd or fedavg or fedadagrad"
    )
    """share of the past in the step's direction (beta 1 of the adaptive optimizers)"""
    beta2: float = setting(
        0.999, low=0.0, below=1.0, needs="optimizer = adam or fedadam or fedyogi"
    )
    """share of the past in the mean square that the step is divided by"""
    tau: float = setting(
        1e-8, above=0.0, needs="optimizer = adam or fedadam or fedyogi or fedadagrad"
    )
    """added to the root mean square: the larger, the less the optimizer adapts"""
    lr_schedule: str = one_of(("constant", "linear", "cosine"))
    """how the learning rate falls over the rounds"""
    lr_final_fraction: float = setting(0.0, low=0.0, below=1.0, unless="lr_schedule = constant")
    """share of the learning rate that is left at the end"""
    warmup: int = setting(0, low=0, high=1_000_000)
    """first rounds, in which the learning rate rises in equal steps; `lr_schedule` begins after
    them"""
    averaging_fraction: float = setting(0.0, low=0.0, high=1.0)
    """share of the rounds, the last ones, whose models are averaged into the published one; 0: the
    last model alone"""
    weights: str = one_of(("uniform", "inverse-variance"))
    """of reports; `inverse-variance`: by noise scale"""
    analyzer: str = one_of(("mean", "coordinate-median", "trimmed-mean"), own="analyzers")
    """what makes one update of the reports"""
    trim_fraction: float = setting(0.1, low=0.0, below=0.5, needs="analyzer = trimmed-mean")
    """share cut off on each side by `trimmed-mean`"""

    decay = renamed_attribute("decay", "lr_schedule")
    decay_to = renamed_attribute("decay_to", "lr_final_fraction")
    averaging = renamed_attribute("averaging", "averaging_fraction")
    trim = renamed_attribute("trim", "trim_fraction")


@dataclass(frozen=True)
class PrivacySection:
    """Unit of privacy, clipping, local randomizer, and what the run may spend."""

    unit: str = one_of(("record", "client"))
    """what is protected: one record of one client, or all a client holds"""
    clipping: str = one_of(("auto", "record", "average", "update"))
    """what is clipped; `auto`: by the unit"""
    # Beyond these, noise scales leave what randomizers allow, and squares the range of float32.
    clip_norm: float = setting(1.0, low=1e-10, high=1e10)
    """the radius"""
    client_clip_norm: float | None = setting(None, low=1e-10, high=1e10)
    """a second radius, for a client's mean"""
    randomizer: str = one_of(
        ("gaussian", "laplace", "discrete-gaussian", "discrete-laplace", "declared", "none"),
        own="randomizers",
    )
    """noise of a report; `declared`: clients of an own app add it themselves; `none`: neither clip
    nor noise, a simulated baseline that protects nobody"""
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
    lifetime_epsilon: float | None = setting(None, above=0.0)
    """a client stops before the report that would take it beyond"""
    min_reports: int = setting(2, low=1)
    """a round with fewer reports is not released; at most `data.clients`"""
    reports_per_round: int = setting(1, low=1, high=10_000)
    """number of reports of a client in a round, each in its own batch"""
    release: str = one_of(("reports", "sum"))
    """what the attacker sees: shuffled reports, or only their sum"""
    shuffler: str = one_of(("server", "separate"))
    """who shuffles: the `server`, or a `separate` party in a process of its own (deployments)"""
    assumed_honest: int | float | None = setting(None)
    """count, or share, of a round's reports that hide others; not set: all"""

    clip = renamed_attribute("clip", "clipping")
    client_clip = renamed_attribute("client_clip", "client_clip_norm")
    client_epsilon = renamed_attribute("client_epsilon", "lifetime_epsilon")


_GROUPS = "distribution = groups"


@dataclass(frozen=True)
class BudgetsSection:
    """Which client has which budget: of one report, or of the whole run."""

    of: str = one_of(("report", "run"))
    """what a budget covers: one `report` (a local budget), or the `run` (a total, which also limits
    the client); a file with `total_epsilon` says `run` by itself"""
    expected_share: float | None = setting(None, above=0.0, high=1.0)
    """share of the clients whose reports a round is planned for, with totals; not set: 0.9 of those
    that `training.participation` asks"""
    against: str = one_of(("release", "everybody"))
    """whom a total holds against: the attacker of the headline (`privacy.release`), or everybody,
    who opens the reports as well (column `local`): then its own noise alone keeps it"""
    distribution: str = one_of(
        ("constant", "uniform", "unif1", "unif2", "unif3", "mixed", "groups", "listed", "file"),
        own="module",
    )
    """of the clients' budgets"""
    epsilon: float = setting(0.5, above=0.0, needs="distribution = constant")
    """of `constant`"""
    low: float = setting(0.01, above=0.0, needs="distribution = uniform")
    """of `uniform`"""
    high: float = setting(1.0, above=0.0, needs="distribution = uniform")
    """of `uniform`"""
    delta: float = setting(1e-5, low=0.0, below=1.0, unless="distribution = file")
    """of a report; a total has `privacy.target_delta`"""
    file: str = setting("", flag="--budgets FILE.csv", needs="distribution = file")
    """budgets of reports: client_id,epsilon,delta; or totals: client_id,total_epsilon and, if
    wanted, total_delta; both may end with lifetime_epsilon"""
    epsilons: tuple[float, ...] = setting((), above=0.0, needs="distribution = listed")
    """of `listed`: one a client, client 0 first"""
    levels: int = setting(0, high=10_000)
    """number of values to which budgets are rounded down; 0: as drawn"""
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

    clip = renamed_attribute("clip", "clipping")

    @property
    def clipping(self) -> str:
        """The clipping in force: `auto` is per record for the record unit, the update otherwise."""
        if self.privacy.clipping != "auto":
            return self.privacy.clipping
        if self.privacy.randomizer == "none":
            return "average" if self.privacy.unit == "record" else "update"
        return "record" if self.privacy.unit == "record" else "update"

    @property
    def relation(self) -> str:
        """The neighboring relation of the guarantee.

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

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
    """number of rounds to run"""
    seed: int = setting(0, high=2**63 - 1, flag="--seed N")
    """root of all randomness of a seeded run: the same seed gives the same model, for example 7"""
    entropy: str = one_of(("seeded", "system"))
    """where noise and permutations come from: `seeded` draws them from `run.seed`, so that a
    simulation can be repeated and protects nobody; `system` draws them from the operating system,
    as every deployment does"""
    engine: str = one_of(("in-process", "ray", "flwr"), flag="--engine NAME")
    """what runs the clients: `in-process`, `ray` (its processes, here or on a cluster), or
    `flwr`: the app of this folder on Flower's Simulation Runtime, as `flwr run .` does"""
    ray_address: str = setting("")
    """address of a Ray cluster to join, for example "ray://10.0.0.1:10001"; empty: start Ray on
    this machine, or take `$RAY_ADDRESS`"""
    noise: str = one_of(("per-report", "per-sum"))
    """who adds noise in a simulation: `per-report`, every client; `per-sum`, one vector of the
    same distribution for the sum of a round, which is faster, and protects nobody"""
    out: str = setting("runs", empty=False)
    """folder below which each run makes its own directory"""
    device: str = one_of(("cpu", "cuda"), flag="--device NAME")
    """device on which gradients are computed"""
    jobs: int = setting(0, high=1024, flag="--jobs N")
    """number of threads, or of Ray's processes; 0: as many as speed a round up; the number changes
    no result"""
    evaluate_every: int = setting(1, low=1)
    """number of rounds from one evaluation on the test records to the next"""
    checkpoint_every: int = setting(0, low=0, high=1_000_000)
    """number of rounds from one model saved in the run's directory to the next; 0: save the last
    model only"""
    timeout: float = setting(3600.0, above=0.0)
    """seconds that a round waits for reports, for example 600.0"""
    supernodes: str = setting("")
    """CSV file of a deployment that maps the public key of each SuperNode to its clients; empty:
    no SuperNode is bound to clients"""

    @property
    def aggregate_noise(self) -> bool:
        """Whether the noise of a round is one vector: a simulation in which no client reports."""
        return self.noise == "per-sum"


@dataclass(frozen=True)
class DataSection:
    """Which records, cut into which clients, seen through which features."""

    source: str = one_of(SOURCES, own="data_sources")
    """data set: `digits` and `gapminder` ship with the package, `files` reads tables and arrays,
    `images` a folder of pictures"""
    source_options: dict[str, Any] = setting({})
    """options of the data source, for example `{ label = "diagnosis" }` for `files`"""
    root: str = setting("", flag="--data DIR")
    """folder that holds the data (for MNIST, with `MNIST/raw` in it); empty: `$FL_SHUFFLE_DATA`,
    or the folder `data`, for torchvision's data sets"""
    clients: int = setting(50, low=1, high=100_000_000, flag="--clients N")
    """number of clients"""
    records_per_client: int = setting(0, low=0)
    """number of training records that each client holds; 0: deal all records out"""
    partition: str = one_of(("iid", *BY_LABEL, "ordered", "natural"))
    """how records are dealt to clients: `iid` at random; `dirichlet` draws each client's classes
    and `dirichlet-by-class` each class's clients; `classes` and `shards` give each client few
    labels; `ordered` keeps the order of the records; `natural` keeps the clients of the data
    source"""
    dirichlet_alpha: float = setting(
        0.5, above=0.0, needs="partition = dirichlet or dirichlet-by-class"
    )
    """concentration of the Dirichlet distribution: the smaller it is, the more the clients' labels
    differ"""
    shards_per_client: int = setting(2, low=1, needs="partition = shards")
    """number of shards (runs of records that are sorted by label) that each client gets"""
    classes_per_client: int = setting(2, low=1, needs="partition = classes")
    """number of classes whose records each client gets"""
    sizes: str = one_of(("equal", "unequal", "dirichlet"))
    """how many records clients hold: `equal` numbers, `unequal` ones from a log-normal
    distribution, or shares from a Dirichlet distribution"""
    sizes_alpha: float = setting(1.0, above=0.0, needs="sizes = dirichlet")
    """concentration of the Dirichlet distribution of the clients' shares: the smaller it is, the
    more their sizes differ"""
    features: str = one_of(("raw", "pca", "hog", "pixels", "none"), own="features")
    """what a model sees of a record: `raw` values, `hog` features (histograms of oriented
    gradients), whole pictures as `pixels`, or `none` for the source's own values; `pca` is fitted
    on private records, which no epsilon covers"""
    feature_options: dict[str, Any] = setting({})
    """options of the features, for example `{ components = 32 }` for `hog`"""
    validation_fraction: float = setting(0.0, low=0.0, high=0.5)
    """share of the private training records that is set aside to evaluate on; no epsilon covers
    what such an evaluation tells"""
    seed: int = setting(0, low=0)
    """seed of the partition: which records each client gets"""

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
    """widths of the hidden layers of `mlp`, for example `[128, 64]`"""
    width: int = setting(0, low=0, high=4096, needs="kind = cnn or resnet or lstm")
    """number of channels of the first convolution, or size of an `lstm`'s state; 0: 16 channels,
    or a state of 128"""
    vocabulary: int = setting(0, low=0, high=1_000_000, needs="kind = lstm")
    """number of different tokens that an `lstm` reads; 0: the number of classes"""
    init: str = one_of(("default", "zeros"), needs="kind = linear or mlp")
    """first weights: PyTorch's own, or zeros"""
    bias: bool = setting(True, needs="kind = linear or mlp")
    """whether the layers add a bias"""
    fix: bool = setting(False)
    """in a model of your own, replace batch norms, which mix records, by group norms"""
    loss: str = one_of(("cross-entropy", "squared-error"), own="losses")
    """loss of one record; a function of your own gives one number per record"""
    metrics: str = one_of(("default",), own="metrics")
    """what is measured on the test records: `default` is accuracy, or errors in a regression"""


SEVERAL_STEPS = {
    "needs": "single_step = False",
    "told": "several local steps, epochs, or batches",
}


@dataclass(frozen=True)
class TrainingSection:
    """What a client computes, and who takes part."""

    schedule: str = one_of(("aggregate", "sequential"))
    """how reports change the model: `aggregate` takes one step on the mean of a round's reports;
    `sequential` takes one step on each report, in random order"""
    participation: float = setting(1.0, above=0.0, high=1.0)
    """share of the clients that is asked in each round, for example 0.5"""
    local_steps: int = setting(1, low=1)
    """number of gradient steps that a client takes before it reports"""
    local_epochs: int = setting(0, low=0, high=100_000)
    """number of passes over its records that a client makes before it reports; 0: take
    `local_steps` steps"""
    batch_size: int = setting(0, low=0)
    """number of records in a local step, in an order that is drawn anew for each pass; 0: all
    records of the client"""
    local_optimizer: str = one_of(("sgd", "momentum"), **SEVERAL_STEPS)
    """optimizer of the local steps"""
    local_learning_rate: float = setting(0.1, above=0.0, **SEVERAL_STEPS)
    """learning rate of the local steps"""
    local_momentum: float = setting(0.9, low=0.0, below=1.0, needs="local_optimizer = momentum")
    """share of the previous direction that a local step keeps"""
    proximal_mu: float = setting(0.0, low=0.0, **SEVERAL_STEPS)
    """weight mu of FedProx's term mu/2 |w - w0|^2, which keeps a client near the broadcast model;
    0: no such term"""

    @property
    def single_step(self) -> bool:
        """Whether a client reports one gradient of all its records, and trains nothing itself."""
        return self.local_steps == 1 and not self.local_epochs and not self.batch_size


@dataclass(frozen=True)
class ServerSection:
    """What the server does with the mean of the shuffled reports."""

    optimizer: str = one_of(tuple(OPTIMIZERS))
    """optimizer that steps on the mean report: `fedavg` moves by the learning rate times the mean,
    `fedavgm` adds momentum, `fedadam`, `fedyogi` and `fedadagrad` divide by a moving root mean
    square; `sgd`, `momentum` and `adam` are other names of the first three"""
    learning_rate: float = setting(1.0, above=0.0)
    """learning rate of the step on the mean report"""
    learning_rate_unit: str = one_of(("absolute", "clipping-norm"))
    """unit of the learning rate: `absolute` steps on the mean report as it is; `clipping-norm`
    divides the mean report by `privacy.clip_norm` first, so that the same learning rate suits every
    clipping norm that is small enough to be reached"""
    momentum: float = setting(
        0.9, low=0.0, below=1.0, unless="optimizer = sgd or fedavg or fedadagrad"
    )
    """share of the previous direction that a step keeps (beta 1 of the adaptive optimizers)"""
    beta2: float = setting(
        0.999, low=0.0, below=1.0, needs="optimizer = adam or fedadam or fedyogi"
    )
    """share of the previous mean square, by whose root a step is divided, that is kept"""
    tau: float = setting(
        1e-8, above=0.0, needs="optimizer = adam or fedadam or fedyogi or fedadagrad"
    )
    """number that is added to the root mean square: the larger it is, the less the optimizer
    adapts"""
    lr_schedule: str = one_of(("constant", "linear", "cosine"))
    """how the learning rate falls over the rounds"""
    lr_final_fraction: float = setting(0.0, low=0.0, below=1.0, unless="lr_schedule = constant")
    """share of the learning rate that is left in the last round"""
    warmup: int = setting(0, low=0, high=1_000_000)
    """number of first rounds in which the learning rate rises in equal steps; `lr_schedule` begins
    after them"""
    averaging_fraction: float = setting(0.0, low=0.0, high=1.0)
    """share of the rounds, counted from the end, whose models are averaged into the published
    model; 0: publish the last model"""
    weights: str = one_of(("uniform", "inverse-variance"))
    """weights of the reports in their mean: `uniform`, or `inverse-variance` by each client's
    noise scale"""
    analyzer: str = one_of(("mean", "coordinate-median", "trimmed-mean"), own="analyzers")
    """how the server makes one update of the reports"""
    trim_fraction: float = setting(0.1, low=0.0, below=0.5, needs="analyzer = trimmed-mean")
    """share of the values of each coordinate that `trimmed-mean` cuts off on each side"""

    decay = renamed_attribute("decay", "lr_schedule")
    decay_to = renamed_attribute("decay_to", "lr_final_fraction")
    averaging = renamed_attribute("averaging", "averaging_fraction")
    trim = renamed_attribute("trim", "trim_fraction")


@dataclass(frozen=True)
class PrivacySection:
    """Unit of privacy, clipping, local randomizer, and what the run may spend."""

    unit: str = one_of(("record", "client"))
    """unit of privacy: one record of one client, or everything that one client holds"""
    clipping: str = one_of(("auto", "record", "average", "update"))
    """what is clipped to `clip_norm`: the gradient of each `record`, their `average`, or a
    client's whole `update`; `auto` clips records for the unit record, and updates for the unit
    client"""
    # Beyond these, noise scales leave what randomizers allow, and squares the range of float32.
    clip_norm: float = setting(1.0, low=1e-10, high=1e10)
    """clipping norm: largest length of what is clipped, in the l2 norm, or in the l1 norm for
    Laplace noise"""
    client_clip_norm: float | None = setting(None, low=1e-10, high=1e10)
    """second clipping norm, for a client's mean of clipped records; not set: no second clipping"""
    randomizer: str = one_of(
        ("gaussian", "laplace", "discrete-gaussian", "discrete-laplace", "declared", "none"),
        own="randomizers",
    )
    """local randomizer: the noise that a client adds to its report; with `declared`, the clients
    of your own app add it themselves; `none` neither clips nor adds noise, a simulated baseline
    that protects nobody"""
    declared_sigma: float | None = setting(None, above=0.0, needs="randomizer = declared")
    """noise multiplier that clients declare: standard deviation of the noise on each step's sum of
    gradients, divided by `clip_norm`, for example 1.1"""
    declared_steps: int = setting(1, low=1, high=1_000_000, needs="randomizer = declared")
    """number of such steps that a client takes in a round"""
    calibration: str = one_of(("analytic", "classical", "as-published"))
    """how Gaussian noise follows from a budget (epsilon, delta): `analytic`, the least noise that
    keeps it; `classical`, the older formula; `as-published`, with the sensitivity of the papers,
    which is too small where an average or an update is clipped"""
    personalization: str = one_of(("noise", "clipping"))
    """what a client's budget decides: its `noise` scale, or, with `clipping`, its clipping norm at
    the same noise scale for all clients"""
    target_delta: float = setting(1e-5, above=0.0, below=1)
    """delta at which every epsilon of the run is stated, for example 1e-6"""
    target_epsilon: float | None = setting(None, above=0.0)
    """epsilon (nats) of the headline column that the run must not exceed: it stops before the
    round that would; not set: no limit"""
    lifetime_epsilon: float | None = setting(None, above=0.0)
    """epsilon (nats) of the headline column that no client exceeds: a client stops before the
    report that would; not set: no limit"""
    min_reports: int = setting(2, low=1)
    """smallest number of reports with which a round is released, at most `data.clients`"""
    reports_per_round: int = setting(1, low=1, high=10_000)
    """number of reports that a client sends in a round, each about its own batch of records"""
    report_bits: int = setting(0, low=0, high=16)
    """number of bits of each coordinate of a report: with 2 to 16, a report is rounded to so few
    levels after its noise is added, and 4 bits are an eighth of the bytes; 0: float32"""
    release: str = one_of(("reports", "sum"))
    """what the attacker sees: every shuffled report, or only the sum of a round's reports"""
    shuffler: str = one_of(("server", "separate"))
    """who shuffles: the `server`, or a `separate` party in a process of its own (deployments)"""
    assumed_honest: int | float | None = setting(None)
    """number (for example 100), or share (for example 0.9), of a round's reports that are assumed
    to hide a client; not set: all of them"""

    clip = renamed_attribute("clip", "clipping")
    client_clip = renamed_attribute("client_clip", "client_clip_norm")
    client_epsilon = renamed_attribute("client_epsilon", "lifetime_epsilon")


_GROUPS = "distribution = groups"


@dataclass(frozen=True)
class BudgetsSection:
    """Which client has which budget: of one report, or of the whole run."""

    of: str = one_of(("report", "run"))
    """what a budget covers: one `report` (a local budget), or the `run` (a total, which also
    limits the client); a file with `total_epsilon` says `run` by itself"""
    expected_share: float | None = setting(None, above=0.0, high=1.0)
    """with totals, share of the clients whose reports a round is planned for; not set: 0.9 of
    those that `training.participation` asks"""
    against: str = one_of(("release", "everybody"))
    """whom a total holds against: the attacker of the headline (`release`, by `privacy.release`),
    or `everybody`, also who opens the reports: a client's own noise alone then keeps it"""
    distribution: str = one_of(
        ("constant", "uniform", "unif1", "unif2", "unif3", "mixed", "groups", "listed", "file"),
        own="module",
    )
    """how the clients' budgets are distributed: the same for all (`constant`), drawn from
    `uniform`, in three `groups`, `listed` one by one, from a `file`, or as the GSPA paper has them
    (`unif1`, `unif2`, `unif3`, `mixed`)"""
    epsilon: float = setting(0.5, above=0.0, needs="distribution = constant")
    """epsilon (nats) of every client, with `constant`"""
    low: float = setting(0.01, above=0.0, needs="distribution = uniform")
    """smallest epsilon (nats) of `uniform`"""
    high: float = setting(1.0, above=0.0, needs="distribution = uniform")
    """largest epsilon (nats) of `uniform`"""
    delta: float = setting(1e-5, low=0.0, below=1.0, unless="distribution = file")
    """delta of one report; a total has `privacy.target_delta`"""
    file: str = setting("", flag="--budgets FILE.csv", needs="distribution = file")
    """CSV file with budgets of reports: client_id,epsilon,delta; or with totals:
    client_id,total_epsilon and, if wanted, total_delta; both may end with lifetime_epsilon"""
    epsilons: tuple[float, ...] = setting((), above=0.0, needs="distribution = listed")
    """epsilons (nats) of the clients, with `listed`, in the order of the clients, for example
    `[0.5, 1.0, 2.0]`"""
    levels: int = setting(0, high=10_000)
    """number of different values to which budgets are rounded down; 0: keep them as they are"""
    conservative: float = setting(0.1, above=0.0, needs=_GROUPS)
    """epsilon (nats) of a conservative client, with `groups`"""
    moderate: float = setting(0.5, above=0.0, needs=_GROUPS)
    """epsilon (nats) of a moderate client, with `groups`"""
    liberal: float = setting(1.0, above=0.0, needs=_GROUPS)
    """epsilon (nats) of a liberal client, with `groups`"""
    conservative_fraction: float = setting(0.54, low=0.0, high=1.0, needs=_GROUPS)
    """share of the clients that are conservative"""
    moderate_fraction: float = setting(0.37, low=0.0, high=1.0, needs=_GROUPS)
    """share of the clients that are moderate; the rest is liberal"""
    seed: int = setting(0, low=0)
    """seed of the draw of budgets"""


@dataclass(frozen=True)
class AppSection:
    """The Flower apps that play the two sides; a user's own go here."""

    server: str = setting("fl_shuffle.pages.server.app:app", own="module")
    """Flower ServerApp of the run, as module:object, for example `my_server:app`"""
    client: str = setting("fl_shuffle.pages.clients.app:app", own="module")
    """Flower ClientApp of the run, as module:object, for example `my_client:app`"""
    config: dict[str, Any] = setting({})
    """values that an app of your own reads in `context.run_config`, beside those of
    [tool.flwr.app.config]"""

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
    """A whole run, as resolved from a file and its overrides.

    Its attributes are the sections of the configuration, each with the settings of its table:
    `run`, `data`, `model`, `training`, `server`, `privacy`, `budgets`, and `app`. The configuration
    reference (docs/reference/configuration.md) lists every setting.

    Examples
    --------
    >>> import fl_shuffle as fs
    >>> config = fs.Config()
    >>> config.privacy.unit, config.clipping, config.relation
    ('record', 'record', 'replace-one')
    """

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
    def report_unit(self) -> float:
        """The length of a report that the server's step takes for 1."""
        return self.privacy.clip_norm if self.server.learning_rate_unit == "clipping-norm" else 1.0

    @property
    def relation(self) -> str:
        """The neighboring relation of the guarantee.

        Where the partition is computed from the labels it is one of data sets that are cut into
        clients already: what the partition tells of the labels is not covered.
        """
        return "replace-one" + " after the partition by label" * self.data.dealt_by_label

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain nested tables; unset optional values are left out, as TOML has no null."""
        return {
            section.name: {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in dataclasses.asdict(getattr(self, section.name)).items()
                if value is not None
            }
            for section in dataclasses.fields(self)
        }

    def to_json(self) -> str:
        """Return the configuration as one JSON text.

        This is how it travels to the apps and into the ledger.
        """
        return json.dumps(self.to_dict(), sort_keys=True)

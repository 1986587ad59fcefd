"""Settings that do not go together: each of them is allowed, their combination is not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fl_shuffle.configuration.sections import BudgetsSection, Config, DataSection

AUDIT_CLIENT = "fl_shuffle.auditing.published:client"
"""The ClientApp of an audit's own runs. They are seeded, whatever the configuration says: two of
them are compared byte by byte."""


@dataclass(frozen=True)
class Conflict:
    """A setting that does not go with others.

    Attributes
    ----------
    setting : str
        The setting that a user is asked to change, as `section.key`.
    reason : str
        Why its value is refused.
    remedy : str
        What to do instead; empty where the reason says so.
    found : bool
        Whether the configuration has this conflict.
    """

    setting: str
    reason: str
    remedy: str = ""
    found: bool = field(kw_only=True)


def rules(config: Config) -> list[Conflict]:
    """Return what may not be, found in this configuration or not; a user reads of the first."""
    return [
        *_noise(config),
        *_discrete_noise(config),
        *_declared_noise(config),
        *_no_noise(config),
        *_clients(config),
        *_shuffler(config),
        *_release(config),
        *_data_and_schedule(config),
        *_noise_per_sum(config),
        *_local_training(config),
        *_report_bits(config),
        Conflict(
            "model.fix",
            "replaces layers of a model of your own (model.kind)",
            "leave it out: the networks here have group norms",
            found=config.model.fix
            and config.model.kind in ("linear", "mlp", "cnn", "resnet", "lstm"),
        ),
        Conflict(
            "app.config",
            "is for apps of your own (app.server, app.client)",
            found=bool(config.app.config) and not config.app.custom,
        ),
    ]


def _noise(config: Config) -> list[Conflict]:
    """Return conflicts of clipping, the formula of the noise, and the budgets that it is calibrated
    to."""
    privacy, budgets = config.privacy, config.budgets
    client, listed = privacy.unit == "client", len(budgets.epsilons)
    clips, share = ("update",) if client else ("record", "average"), budgets.conservative_fraction
    return [
        Conflict(
            "privacy.clipping",
            f"with privacy.unit = {privacy.unit!r} must be auto or {' or '.join(clips)}",
            found=config.clipping not in clips,
        ),
        Conflict(
            "privacy.calibration",
            "is a Gaussian formula",
            "use analytic",
            found=privacy.randomizer == "laplace" and privacy.calibration == "classical",
        ),
        Conflict(
            "budgets.delta",
            "the Gaussian randomizer needs a value in (0, 1)",
            found=privacy.randomizer in ("gaussian", "discrete-gaussian") and budgets.delta == 0.0,
        ),
        Conflict(
            "budgets.delta",
            "is the delta of one report, and with budgets.of = 'run' every total has "
            "privacy.target_delta",
            "leave it out",
            found=budgets.of == "run" and budgets.delta != BudgetsSection().delta,
        ),
        Conflict(
            "budgets.of",
            "'run' with privacy.release = 'reports' is solved for by a search, and machines of a "
            "Ray cluster may each find other noise",
            "leave out run.ray_address",
            found=budgets.of == "run"
            and budgets.against == "release"
            and config.privacy.release == "reports"
            and bool(config.run.ray_address),
        ),
        Conflict(
            "budgets.expected_share",
            "applies to totals of the run, but the budgets are those of one report",
            "leave it out, or set budgets.of = 'run'",
            found=budgets.expected_share is not None
            and budgets.of != "run"
            and budgets.distribution != "file",
        ),
        Conflict(
            "budgets.against",
            "applies to totals of the run, but the budgets are those of one report",
            "leave it out, or set budgets.of = 'run'",
            found=budgets.against != "release"
            and budgets.of != "run"
            and budgets.distribution != "file",
        ),
        Conflict(
            "budgets.expected_share",
            "plans for absent clients, who change nothing for a total against everybody: a "
            "client's own noise alone keeps it",
            "leave it out",
            found=budgets.against == "everybody" and budgets.expected_share is not None,
        ),
        Conflict(
            "budgets.against",
            "needs training.participation = 1: clients that are drawn send as many "
            "reports as the draws say, which nobody can plan for",
            "set training.participation = 1, or budgets.against = 'release'",
            found=budgets.against == "everybody" and config.training.participation < 1.0,
        ),
        Conflict(
            "budgets.file",
            "is missing: budgets.distribution = 'file' reads a CSV",
            found=budgets.distribution == "file" and not budgets.file,
        ),
        Conflict(
            "budgets.epsilons",
            f"holds {listed} numbers, and data.clients is {config.data.clients}: "
            "budgets.distribution = 'listed' takes one a client",
            found=budgets.distribution == "listed" and listed != config.data.clients,
        ),
        Conflict(
            "budgets.low",
            f"must be <= high = {budgets.high:g}",
            found=budgets.distribution == "uniform" and budgets.low > budgets.high,
        ),
        Conflict(
            "budgets.moderate_fraction",
            f"must be at most 1 with budgets.conservative_fraction = {share:g} "
            "(the liberal group is the rest)",
            # The default fractions are decimals, whose sum is rounded.
            found=share + budgets.moderate_fraction > 1.0 + 1e-12,
        ),
        Conflict(
            "privacy.calibration",
            "the papers publish a record-level formula",
            "set privacy.unit = 'record'",
            found=privacy.calibration == "as-published" and client,
        ),
    ]


def _of_randomizer(concerned: bool, conflicts: Iterable[Conflict]) -> list[Conflict]:
    """Return the conflicts of one kind of noise, which other runs do not have."""
    return [replace(each, found=concerned and each.found) for each in conflicts]


def _discrete_noise(config: Config) -> list[Conflict]:
    """Return conflicts of discrete noise: it is offered where its guarantee is proven, and where
    its distribution matters."""
    run, privacy, key = config.run, config.privacy, "privacy.randomizer"
    conflicts = (
        Conflict(
            key,
            "run.entropy = 'seeded' draws noise that is no secret",
            "use system, or continuous noise",
            found=run.entropy != "system" and config.app.client != AUDIT_CLIENT,
        ),
        Conflict(
            key,
            f"privacy.clipping = {config.clipping!r} bounds no norm of whole steps",
            "use average or update",
            found=config.clipping == "record",
        ),
        Conflict(
            key,
            "server.weights = 'inverse-variance' leaves the grid",
            "use uniform",
            found=config.server.weights != "uniform",
        ),
        Conflict(
            key,
            "privacy.personalization = 'clipping' is calibrated for continuous noise",
            "use noise",
            found=privacy.personalization != "noise",
        ),
        Conflict(
            key,
            f"privacy.calibration = {privacy.calibration!r} is for continuous noise",
            "use analytic",
            found=privacy.calibration != "analytic",
        ),
        Conflict(
            key,
            "run.device = 'cuda' has no such sampler",
            "use cpu",
            found=run.device == "cuda",
        ),
    )
    return _of_randomizer(privacy.randomizer.startswith("discrete-"), conflicts)


def _without_noise_of_budgets(
    config: Config, personal: str, calibrated: str, weighed: str
) -> tuple[Conflict, ...]:
    """Refuse settings of noise that follows budgets, where there is none; a reason for each."""
    privacy, key = config.privacy, "privacy.randomizer"
    return (
        Conflict(
            key,
            personal,
            "set privacy.personalization = 'noise'",
            found=privacy.personalization != "noise",
        ),
        Conflict(
            key,
            calibrated,
            "leave privacy.calibration out",
            found=privacy.calibration != "analytic",
        ),
        Conflict(
            key,
            weighed,
            "set server.weights = 'uniform'",
            found=config.server.weights != "uniform",
        ),
    )


def _without_report_unit(config: Config, why: str) -> Conflict:
    """Refuse the clipping norm as a unit of the server's step where it bounds no report."""
    return Conflict(
        "privacy.randomizer",
        why,
        "set server.learning_rate_unit = 'absolute'",
        found=config.server.learning_rate_unit != "absolute",
    )


def _declared_noise(config: Config) -> list[Conflict]:
    """Return conflicts of a mechanism that clients declare: it is their own training, which nothing
    else may change."""
    privacy, key = config.privacy, "privacy.randomizer"
    conflicts = (
        Conflict(
            key,
            "needs privacy.declared_sigma, the noise that a client adds to each step's sum",
            found=privacy.declared_sigma is None,
        ),
        Conflict(
            key,
            "is what clients of an app of your own do (app.client)",
            found=not config.app.custom_client,
        ),
        Conflict(
            key,
            "is noise for single records",
            "set privacy.unit = 'record'",
            found=privacy.unit != "record",
        ),
        Conflict(
            key,
            "clips each record",
            "leave privacy.clipping out",
            found=config.clipping != "record",
        ),
        *_without_noise_of_budgets(
            config, "has one noise for all", "is not calibrated here", "has no weights"
        ),
        _without_report_unit(config, "clips each step's gradients, and a report is longer"),
    )
    return _of_randomizer(privacy.randomizer == "declared", conflicts)


def _no_noise(config: Config) -> list[Conflict]:
    """Return conflicts of a baseline, which has no privacy: what is set of it would have no effect,
    or could not be kept."""
    privacy, key = config.privacy, "privacy.randomizer"
    conflicts = (
        Conflict(
            key,
            "sends clients' updates as they are, and run.entropy = 'system' is for real data",
            "use gaussian",
            found=config.run.entropy == "system",
        ),
        Conflict(
            key,
            "sends clients' updates as they are: it is for simulations",
            "leave out run.supernodes, or use gaussian",
            found=bool(config.run.supernodes) or privacy.shuffler == "separate",
        ),
        Conflict(
            key, "clips nothing", "leave privacy.clipping out", found=privacy.clipping != "auto"
        ),
        Conflict(
            key,
            "clips nothing",
            "leave privacy.client_clip_norm out",
            found=privacy.client_clip_norm is not None,
        ),
        *_without_noise_of_budgets(
            config,
            "has no noise to personalize",
            "has no noise to calibrate",
            "has no noise to weigh reports by",
        ),
        _without_report_unit(config, "clips nothing"),
        Conflict(
            key,
            "has an infinite epsilon",
            "leave out privacy.target_epsilon and privacy.lifetime_epsilon",
            found=privacy.target_epsilon is not None or privacy.lifetime_epsilon is not None,
        ),
        Conflict(
            key,
            "has an infinite epsilon, which no total of the run allows",
            "set budgets.of = 'report'",
            found=config.budgets.of == "run",
        ),
        Conflict(
            key,
            "sends the same report each time",
            "set privacy.reports_per_round = 1",
            found=privacy.reports_per_round > 1,
        ),
    )
    return _of_randomizer(privacy.randomizer == "none", conflicts)


def _clients(config: Config) -> list[Conflict]:
    """Return conflicts of the number of clients, and of those who are assumed to be honest."""
    privacy, clients, honest = config.privacy, config.data.clients, config.privacy.assumed_honest
    remedy = "raise data.clients"
    if clients > 1:
        remedy += f", or lower privacy.min_reports to at most {clients}"
    elif privacy.release != "sum":
        remedy += ", or set privacy.min_reports = 1: one client's reports, which nothing hides"
    return [
        Conflict(
            "privacy.assumed_honest",
            f"must be at most the number of clients, {clients}",
            found=isinstance(honest, int) and honest > clients,
        ),
        Conflict(
            "data.clients",
            f"is below privacy.min_reports = {privacy.min_reports}, so no round could be released",
            remedy,
            found=privacy.min_reports > clients,
        ),
        Conflict(
            "privacy.assumed_honest",
            "changes nothing in a sequential schedule: only `local` holds there, and it counts on "
            "nobody else",
            "leave it out",
            found=honest is not None and config.training.schedule == "sequential",
        ),
    ]


def _shuffler(config: Config) -> list[Conflict]:
    """Return conflicts of a shuffler of its own, which is for a deployment, in rounds that are
    batches of whole reports."""
    privacy, sequential = config.privacy, config.training.schedule == "sequential"
    separate, several = privacy.shuffler == "separate", privacy.reports_per_round > 1
    return [
        Conflict(
            "privacy.shuffler",
            "training.schedule = 'sequential' has no batch to shuffle",
            "use aggregate",
            found=separate and sequential,
        ),
        Conflict(
            "privacy.shuffler",
            "run.entropy = 'seeded' is noise that the server can remove",
            "use system",
            found=separate and config.run.entropy == "seeded",
        ),
        Conflict(
            "privacy.shuffler",
            "with privacy.release = 'sum' it adds up reports on a known grid: not those of a "
            "privacy.randomizer of your own",
            found=separate and privacy.release == "sum" and ":" in privacy.randomizer,
        ),
        Conflict(
            "privacy.reports_per_round",
            "must be 1 in a sequential schedule: each report meets the model alone",
            found=several and sequential,
        ),
        Conflict(
            "privacy.reports_per_round",
            "must be 1 with privacy.randomizer = 'declared': several reports would be the same",
            found=several and privacy.randomizer == "declared",
        ),
    ]


def _release(config: Config) -> list[Conflict]:
    """Return conflicts of what leaves the shuffler, which must fit what takes it in."""
    privacy, summed = config.privacy, config.privacy.release == "sum"
    single = "or set privacy.release = 'reports'"
    return [
        Conflict(
            "training.schedule",
            "with privacy.release = 'sum' must be aggregate: in a sequential schedule each report "
            "meets the model alone, and only `local` holds",
            single,
            found=summed and config.training.schedule == "sequential",
        ),
        Conflict(
            "server.analyzer",
            "with privacy.release = 'sum' must be mean: an analyzer gets single reports, and only "
            "sums leave",
            single,
            found=summed and config.server.analyzer != "mean",
        ),
        Conflict(
            "privacy.min_reports",
            "with privacy.release = 'sum' must be at least 2: a sum of one report is that report",
            found=summed and privacy.min_reports < 2,
        ),
    ]


def _local_training(config: Config) -> list[Conflict]:
    """Return conflicts of what a client may do with its records before it reports."""
    training = config.training
    by_record = config.privacy.unit != "client"
    several = "have no per-record sensitivity", "set privacy.unit = 'client'"
    return [
        Conflict(
            "training.local_epochs",
            "and training.local_steps both say how many steps a client takes",
            "leave one of them out",
            found=training.local_epochs > 0 and training.local_steps > 1,
        ),
        Conflict(
            "training.local_steps",
            f"several local steps {several[0]}",
            several[1],
            found=by_record and training.local_steps > 1,
        ),
        Conflict(
            "training.local_epochs",
            f"several local steps {several[0]}",
            several[1],
            found=by_record and training.local_epochs > 0,
        ),
        Conflict(
            "training.batch_size",
            "in the record unit every record is in every report: a batch that is drawn at random "
            "gets no credit here",
            several[1],
            found=by_record and training.batch_size > 0,
        ),
    ]


def _data_and_schedule(config: Config) -> list[Conflict]:
    """Return conflicts of settings that another one has made up for, and would change nothing."""
    run, data, plain = config.run, config.data, DataSection()
    no_use = f"changes nothing with data.partition = {data.partition!r}, which says whose all are"
    return [
        Conflict(
            "data.records_per_client",
            no_use,
            "leave it out",
            found=data.sizes_fixed and data.records_per_client != plain.records_per_client,
        ),
        Conflict(
            "data.sizes",
            no_use,
            "leave it out",
            found=data.sizes_fixed and data.sizes != plain.sizes,
        ),
        Conflict(
            "server.weights",
            "a sequential schedule applies reports one by one",
            "use uniform",
            found=config.training.schedule == "sequential" and config.server.weights != "uniform",
        ),
        Conflict(
            "run.ray_address",
            f"is for run.engine = 'ray'; it is {run.engine!r}",
            found=bool(run.ray_address) and run.engine == "in-process",
        ),
    ]


def _noise_per_sum(config: Config) -> list[Conflict]:
    """Return conflicts of pooled noise, which stands for reports that nobody sees: it is refused
    where somebody does."""
    randomizer, analyzer = config.privacy.randomizer, config.server.analyzer
    reasons = [
        (
            "training.schedule = 'sequential' applies every report by itself",
            config.training.schedule == "sequential",
        ),
        (f"server.analyzer = {analyzer!r} wants the reports", analyzer != "mean"),
        (
            f"app.server = {config.app.server!r} is your own and expects reports",
            config.app.custom_server,
        ),
        (
            f"app.client = {config.app.client!r} is your own and sends reports",
            config.app.custom_client and config.app.client != AUDIT_CLIENT,
        ),
        (
            "run.entropy = 'system' is for noise that protects somebody: each client draws its own",
            config.run.entropy == "system",
        ),
        (
            f"privacy.randomizer = {randomizer!r} has no known distribution of a sum",
            randomizer not in ("gaussian", "laplace"),
        ),
    ]
    return [
        Conflict(
            "run.noise",
            f"makes no reports, and {reason}",
            "use per-report",
            found=config.run.aggregate_noise and found,
        )
        for reason, found in reasons
    ]


def _report_bits(config: Config) -> list[Conflict]:
    """Return conflicts of reports that are rounded to few bits: nothing is proven of their sums but
    what is proven of the reports."""
    privacy, key = config.privacy, "privacy.report_bits"
    few = privacy.report_bits > 0
    return [
        Conflict(
            key,
            "tells two levels apart, which biases every mean",
            "use 2 to 16, or 0 (float32)",
            found=privacy.report_bits == 1,
        ),
        Conflict(
            key,
            f"rounds after Gaussian or Laplace noise, and privacy.randomizer = "
            f"{privacy.randomizer!r}",
            "leave it out",
            found=few and privacy.randomizer not in ("gaussian", "laplace"),
        ),
        Conflict(
            key,
            "rounds every report, and the proof for privacy.release = 'sum' needs a fine grid",
            "use release = 'reports', or leave report_bits out",
            found=few and privacy.release == "sum",
        ),
        Conflict(
            key,
            "rounds every report, and run.noise = 'per-sum' makes none",
            "set run.noise = 'per-report'",
            found=few and config.run.noise == "per-sum",
        ),
    ]

"""What `import fl_shuffle as fs` offers: runs, sweeps and audits, bounds, costs, certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_shuffle._internal.lazy import lazy_names
from fl_shuffle._internal.plugins import require_extra
from fl_shuffle._internal.threads import with_one_blas_thread
from fl_shuffle.accounting.guarantee import Guarantee
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.configuration.reading import QUICKSTART, ConfigLike, resolve_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import (
    ConfigError,
    FlShuffleError,
    InvalidValueError,
    RunError,
    require_integer,
)
from fl_shuffle.settings_schema import asks

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    from fl_shuffle.auditing.audit import audit
    from fl_shuffle.estimators.private import PrivateEstimate, private_frequencies, private_mean
    from fl_shuffle.planner.cost import Cost, TotalCost
    from fl_shuffle.results import Result, load_model
    from fl_shuffle.runs.directory import RunDirectory, RunPlace
    from fl_shuffle.runs.events import RoundOutcome, RunEvent
    from fl_shuffle.sweeps.points import Sweep
    from fl_shuffle.sweeps.results import SweepResult
    from fl_shuffle.sweeps.running import SweepEvent
    from fl_shuffle.together import ComposedRuns, compose_runs

    OnRound = Callable[[RoundOutcome], None]
    OnEvent = Callable[[RunEvent], None]
    OnSweepEvent = Callable[[SweepEvent], None]

__all__ = [
    "BoundQuery",
    "ComposedRuns",
    "Config",
    "Cost",
    "FlShuffleError",
    "Guarantee",
    "PrivateEstimate",
    "Result",
    "SolveResult",
    "SweepResult",
    "TotalCost",
    "audit",
    "bound",
    "bound_many",
    "calibrate",
    "certify",
    "compare",
    "compose_runs",
    "cost",
    "load_model",
    "private_frequencies",
    "private_mean",
    "resume",
    "resume_sweep",
    "simulate",
    "solve",
    "sweep",
    "to_dp_accounting",
]  # fmt: skip

# What needs libraries, and is loaded when it is first asked for.
__getattr__, _ = lazy_names(
    __name__,
    {
        "fl_shuffle.auditing.audit": ("audit",),
        "fl_shuffle.estimators.private": ("PrivateEstimate", "private_frequencies", "private_mean"),
        "fl_shuffle.planner.cost": ("Cost", "TotalCost"),
        "fl_shuffle.results": ("Result", "load_model"),
        "fl_shuffle.together": ("ComposedRuns", "compose_runs"),
        "fl_shuffle.sweeps.results": ("SweepResult",),
    },
    renamed={"Question": "BoundQuery", "Solved": "SolveResult"},
)


def simulate(
    config: ConfigLike = QUICKSTART,
    *,
    overrides: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    on_round: OnRound | None = None,
    on_event: OnEvent | None = None,
) -> Result:
    """Run a federation to its end and return its result.

    The function trains the configured model over simulated clients, accounts for the privacy of
    every round, and writes a run directory. It prints nothing.

    Parameters
    ----------
    config : str, Path, mapping, or Config, default the quickstart
        What to run. A string or path names a TOML file or a shipped configuration. A mapping holds
        the sections as nested tables.
    overrides : mapping of str to object, optional
        Values that replace settings of `config`, by ``"section.key"``.
    out : str or Path, optional
        Run directory to create. It must not hold a run. By default, a new directory below
        `run.out`.
    on_round : callable, optional
        Called as ``on_round(outcome)`` with a `RoundOutcome` after every round.
    on_event : callable, optional
        Called as ``on_event(event)`` with every event of `fl_shuffle.runs.events`.

    Returns
    -------
    Result
        The finished run. Its numbers are read from the ledger in the run directory.

    Raises
    ------
    ConfigError
        If the configuration is missing or malformed.
    InvalidValueError
        If a setting has a value that is not allowed.
    DataError
        If the data cannot be read, or do not fit the configuration.
    PrivacyBudgetError
        If fewer reports arrive in a round than may be released.
    RunError
        If `out` already holds a run, or the run ends without a result.

    Notes
    -----
    All of these exceptions are subclasses of `FlShuffleError`. An exception that `on_round` or
    `on_event` raises ends the run; `resume` continues it. With ``run.entropy = "seeded"``, the same
    configuration gives the same bits with every engine, and protects nobody: the seed reproduces
    all noise.

    See Also
    --------
    cost : Compute the privacy cost of a configuration without running it.
    sweep : Run a grid of settings with several seeds.
    resume : Continue an unfinished run.

    Examples
    --------
    >>> import tempfile
    >>> import fl_shuffle as fs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = fs.simulate(overrides={"run.rounds": 2, "run.out": folder})
    ...     len(result.metrics["round"])
    2
    """
    from fl_shuffle.runs.directory import RunPlace, require_free

    resolved = resolve_config(config, overrides)
    directory = None if out is None else Path(out).resolve()
    if directory is not None:
        require_free(directory)
    return _play(resolved, RunPlace(directory), on_round, on_event)


def resume(
    directory: str | Path,
    *,
    rounds: int | None = None,
    settings: Sequence[str] = (),
    data_unchanged: bool = False,
    on_round: OnRound | None = None,
    on_event: OnEvent | None = None,
) -> Result:
    """Continue the run in `directory`, with its own configuration, to its end.

    Parameters
    ----------
    directory : str or Path
        Run directory.
    rounds : int, optional
        Number of rounds in all. A finished run needs one above the number it was planned with. By
        default, the number that an unfinished run was planned with.
    settings : sequence of str, optional
        Settings to change, each ``"section.key=value"``. Only some may change
        (docs/how-to/resume-a-run.md).
    data_unchanged : bool, default False
        Whether you vouch that the data are still the same, where the run cannot check it.
    on_round, on_event : callable, optional
        As for `simulate`.

    Returns
    -------
    Result
        The finished run.

    Raises
    ------
    RunError
        If the directory holds no run with rounds left, if a setting may not change, if what was
        released could not be accounted for any more, or if nobody can tell whether the data are
        still the same and `data_unchanged` is False.
    ConfigError
        If a setting is malformed.

    Notes
    -----
    The ledger keeps every round that was released before the run stopped. A round that is attempted
    again counts every attempt whose reports may have been released. Rounds that are added cost what
    they would have cost in one longer run. The learning rate and the averaging stay those of the
    number of rounds that the run was planned with first; added rounds keep the rate of the last
    planned one.

    See Also
    --------
    simulate : Start a run.

    Examples
    --------
    Stop a run after its first round, then continue it:

    >>> import tempfile
    >>> import fl_shuffle as fs
    >>> def stop(outcome):
    ...     raise KeyboardInterrupt
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     settings = {"run.rounds": 2, "run.checkpoint_every": 1}
    ...     try:
    ...         run = fs.simulate(overrides=settings, out=f"{folder}/run", on_round=stop)
    ...     except KeyboardInterrupt:
    ...         run = fs.resume(f"{folder}/run")
    ...     len(run.metrics["round"])
    2

    Add a round to a finished run:

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = fs.simulate(overrides={"run.rounds": 2}, out=f"{folder}/run")
    ...     longer = fs.resume(first.directory, rounds=3)
    ...     len(longer.metrics["round"])
    3
    """
    from fl_shuffle.runs.directory import RunPlace
    from fl_shuffle.runs.resume import continued_config

    path = Path(directory).resolve()
    if rounds is not None:
        settings = [*settings, f"run.rounds={require_integer('rounds', rounds, minimum=1)}"]
    place = RunPlace(path, "data-unchanged" if data_unchanged else "yes")
    return _play(continued_config(path, settings), place, on_round, on_event)


def _play(
    config: Config, place: RunPlace, on_round: OnRound | None, on_event: OnEvent | None
) -> Result:
    from fl_shuffle._internal.threads import one_thread
    from fl_shuffle.federation.launch import simulate as launch
    from fl_shuffle.results import Result
    from fl_shuffle.runs.events import RoundFinished, RunFinished

    finished: list[Path] = []

    def observe(event: RunEvent) -> None:
        if on_event is not None:
            on_event(event)
        if on_round is not None and isinstance(event, RoundFinished):
            on_round(event.outcome)
        elif isinstance(event, RunFinished):
            finished.append(Path(event.summary["run_directory"]))

    with one_thread():
        launch(config, place, observe)
    if not finished:
        raise RunError("the run ended without a result; see its run.log")
    return Result(finished[0])


def sweep(
    config: ConfigLike = QUICKSTART,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 1,
    jobs: int = 1,
    baselines: bool = False,
    overrides: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    on_event: OnSweepEvent | None = None,
) -> SweepResult:
    """Run every combination of `grid` with `seeds` seeds each.

    Parameters
    ----------
    config : str, Path, mapping, or Config, default the quickstart
        The configuration that all runs share, as for `simulate`.
    grid : mapping of str to sequence, optional
        Values of each swept setting, by ``"section.key"``. By default, a single combination.
    seeds : int, default 1
        Number of runs of each combination: the configuration's own seed and those that follow it.
    jobs : int, default 1
        Number of runs at once, each in a process of its own. It changes no result.
    baselines : bool, default False
        Whether to run each combination four times: as it is (`shuffled`), at the same epsilon of
        the most exposed client with a trusted server, which adds noise once, at the same epsilon
        with local privacy alone, and without privacy. ``result.table["baseline"]`` names them. In
        the row `local`, `epsilon` is the local one.
    overrides : mapping of str to object, optional
        Values that replace settings of `config`, by ``"section.key"``.
    out : str or Path, optional
        Sweep directory, which must be empty or absent. By default, a new one below `run.out`.
    on_event : callable, optional
        Called as ``on_event(event)`` with a `SweepEvent` for every round, finished run, and failed
        run.

    Returns
    -------
    SweepResult
        Tables and figures of the finished runs. A run that fails is missing, and stops no other
        run.

    Raises
    ------
    FlShuffleError
        If any combination is not allowed (before anything runs), or the directory is not empty.

    See Also
    --------
    resume_sweep : Continue a sweep.
    cost : Compute the cost of one configuration without running it.

    Examples
    --------
    Three learning rates with two seeds each, in two processes:

    >>> import fl_shuffle as fs
    >>> rates = {"server.learning_rate": [0.5, 1.0, 2.0]}
    >>> found = fs.sweep(grid=rates, seeds=2, jobs=2)  # doctest: +SKIP
    >>> found.table["accuracy"]  # doctest: +SKIP
    """
    from fl_shuffle.sweeps.directory import new_sweep
    from fl_shuffle.sweeps.points import Sweep

    swept = {key: list(values) for key, values in (grid or {}).items()}
    base = resolve_config(config, overrides).to_dict()
    plan = Sweep.of(base, swept, seeds, baselines=baselines)
    return played(new_sweep(plan, None if out is None else Path(out)), plan, jobs, on_event)


def resume_sweep(
    directory: str | Path, *, jobs: int = 1, on_event: OnSweepEvent | None = None
) -> SweepResult:
    """Continue a sweep: keep finished runs, resume unfinished ones, and start the others.

    Parameters
    ----------
    directory : str or Path
        Sweep directory.
    jobs : int, default 1
        Number of runs at once, each in a process of its own.
    on_event : callable, optional
        As for `sweep`.

    Returns
    -------
    SweepResult
        Tables and figures of the finished runs.

    Raises
    ------
    FlShuffleError
        If the directory holds no sweep, or `jobs` is not allowed.

    See Also
    --------
    sweep : Start a sweep.

    Examples
    --------
    >>> import fl_shuffle as fs
    >>> result = fs.resume_sweep("runs/sweep", jobs=2)  # doctest: +SKIP
    """
    from fl_shuffle.sweeps.directory import reopen_sweep

    return played(*reopen_sweep(Path(directory)), jobs, on_event)


def played(
    directory: RunDirectory, plan: Sweep, jobs: int, on_event: OnSweepEvent | None
) -> SweepResult:
    """Run what has no result yet, write tables and page, and return what the sweep holds."""
    from fl_shuffle.sweeps.results import SweepResult
    from fl_shuffle.sweeps.running import run_sweep

    try:
        run_sweep(directory.path, plan, jobs=jobs, observe=on_event)
        result = SweepResult(directory.path)
        result.write_tables()
        result.report()
    finally:
        directory.close()
    return result


@asks(BoundQuery)
@with_one_blas_thread
def bound(question: BoundQuery) -> Guarantee:
    """Compute the privacy guarantee of shuffled reports.

    Give `delta` to get the smallest proven epsilon, or `epsilon` to get the smallest proven delta.
    Describe one report by a named `randomizer` with `epsilon0`, by `sigma`, by `profile`, by
    `matrix`, or by personal `budgets`.

    Parameters
    ----------
    randomizer : str, optional
        Local randomizer of every client: "krr", "blh", "rappor", "oue", "hadamard", "laplace", or
        "gaussian", or a composition, "joint:PART,PART,..." or "parallel:WEIGHT*PART,...". If
        omitted, the bound holds for any randomizer with the given local budget.
    k : int, optional
        Number of categories, at least 2. Required by "krr".
    epsilon0 : float, optional
        Local epsilon of one report, in nats, 0 to 200.
    delta0 : float, default 0.0
        Local delta of one report, in [0, 1). Gaussian noise needs a value above 0.
    sigma : float, optional
        Standard deviation of the noise in each coordinate, in multiples of the clipping norm. It
        replaces `epsilon0` and `delta0`.
    profile : str or sequence of (float, float), optional
        Several (epsilon, delta) guarantees that all hold for one report, or ``"gdp:MU"``.
    matrix : str or sequence, optional
        Your own randomizer: one row of output probabilities per input, or a JSON or CSV file.
    clients : int
        Number of shuffled reports per round, 1 to 10^12. Counted from `budgets` if those are given.
    delta, epsilon : float
        Give exactly one. `delta` is in (0, 1), at least 1e-290; `epsilon` is in nats, 0 to 400.
    rounds : int, default 1
        Number of rounds, each with a fresh shuffle.
    unit : {"record", "client"}, optional
        What neighbors replace. Required if `records` is greater than 1; else "record".
    records : int, default 1
        Number of records that one report averages.
    calibration : {"analytic", "classical"}, default "analytic"
        How Gaussian noise follows from (`epsilon0`, `delta0`).
    participation : float, default 1.0
        Probability that a client takes part, by its own coin, if it stays secret who does.
    sampling : {"each-round", "once"}, default "each-round"
        When these coins are drawn: in each round anew, or once for all rounds.
    release : {"reports", "sum"}, default "reports"
        What the attacker sees of a round: the shuffled reports, or only their sum.
    assumed_honest : int or float, optional
        Number or share of reports whose noise counts. Needs ``release="sum"``. By default, all.
    budgets : str or sequence, optional
        Personal budgets: a CSV file, or ``[epsilon0, delta0, count]`` lists.
    order : float, optional
        Renyi order, above 1, of the methods that use one. By default, the best one.
    method : str, optional
        A specific bound, by a name that `compare` lists. By default, the smallest proven one.

    Returns
    -------
    Guarantee
        The pair (`epsilon`, `delta`) with its `status`, `method`, `source`, and `assumptions`. Only
        an answer with `is_guarantee` may be published as a guarantee.

    Raises
    ------
    InvalidValueError
        If a value is out of range, missing, or contradicts another one.
    NotApplicableError
        If no proven bound applies, or if `method` does not apply. The message states the condition.

    Notes
    -----
    Neighbors are replace-one: the number of units is the same, and one unit has other content.
    Every numerical error (discretization, truncation, round-off) is added to the result, so a
    proven answer is never too small. The bounds reference (docs/reference/bounds.md) lists every
    method with its statement, source, and proof.

    See Also
    --------
    compare : Every method's answer.
    bound_many : Many questions at once.
    solve : The value of one parameter that meets a target.

    Examples
    --------
    The smallest proven epsilon of 10,000 randomized responses over ten categories:

    >>> import fl_shuffle as fs
    >>> answer = fs.bound(randomizer="krr", k=10, epsilon0=1.0, clients=10_000, delta=1e-6)
    >>> print(answer.method, answer.status, round(answer.epsilon, 4))
    blanket proven 0.0233

    The published GSPA formula for the same reports is not a guarantee:

    >>> published = fs.bound(
    ...     randomizer="krr", k=10, epsilon0=1.0, clients=10_000, delta=1e-6, method="gspa"
    ... )
    >>> published.is_guarantee
    False
    """
    from fl_shuffle.accounting.queries.methods import bound as ask

    return ask(question)


@with_one_blas_thread
def bound_many(
    questions: Iterable[BoundQuery | Mapping[str, Any]],
) -> list[Guarantee | FlShuffleError]:
    """Compute the answer of `bound` to each question, in order.

    Parameters
    ----------
    questions : iterable of BoundQuery or mapping
        Each a `BoundQuery`, or a mapping of its names to values.

    Returns
    -------
    list of Guarantee or FlShuffleError
        One entry per question; the error in the place of a question that has no answer.

    Notes
    -----
    No question makes the call raise, and an answer does not depend on the other questions. Equal
    questions are answered once, and those that differ in `epsilon` or `delta` alone share the
    composition of their rounds. Where the work takes longer than a second, a process for each
    further core helps. Statements, neighbors, and the direction of error are those of `bound`.

    See Also
    --------
    bound : One question.

    Examples
    --------
    >>> import fl_shuffle as fs
    >>> asked = {"randomizer": "krr", "k": 10, "epsilon0": 1.0, "delta": 1e-6}
    >>> answers = fs.bound_many({**asked, "clients": n} for n in (1_000, 10_000, -5))
    >>> answers[0].epsilon > answers[1].epsilon
    True
    >>> print(answers[2])
    clients = -5: must be a whole number in [1, 1000000000000]
    """
    from fl_shuffle.accounting.queries.many import bound_many as ask_many

    return ask_many(questions)


@asks(BoundQuery)
@with_one_blas_thread
def compare(question: BoundQuery) -> dict[str, Guarantee | FlShuffleError]:
    """Compute the answer of every method to one question.

    Parameters
    ----------
    **question
        As for `bound`, without `method`.

    Returns
    -------
    dict of str to Guarantee or FlShuffleError
        Each method's answer, or the error that says why it does not apply; the best proven answer
        first.

    Raises
    ------
    InvalidValueError
        If a value is out of range, missing, or contradicts another one.

    Notes
    -----
    Each answer states its own `status`, `source`, and `assumptions`. Only one with `is_guarantee`
    is a guarantee.

    See Also
    --------
    bound : The smallest proven answer alone.

    Examples
    --------
    >>> import fl_shuffle as fs
    >>> answers = fs.compare(epsilon0=1.0, clients=10_000, delta=1e-6)
    >>> next(iter(answers))
    'profile'
    """
    from fl_shuffle.accounting.queries.methods import compare as ask_all

    return ask_all(question)


@dataclass(frozen=True)
class SolveResult:
    """What `solve` found: the largest or smallest value of one parameter that meets the target.

    Attributes
    ----------
    name : str
        The parameter.
    value : float
        The value that was found.
    answer : Guarantee
        The guarantee at that value. Its delta does not exceed the target's.
    """

    name: str
    value: float
    answer: Guarantee


@with_one_blas_thread
def solve(name: str, question: BoundQuery, *, delta: float) -> SolveResult:
    """Find the value of one parameter that meets a privacy target.

    The target is ``question.epsilon`` at `delta`. The function returns the largest value if the
    parameter costs privacy, and the smallest value if it buys privacy.

    Parameters
    ----------
    name : str
        Parameter to solve for: "epsilon0", "delta0", "rounds", or "participation" (the largest), or
        "clients", "sigma", "records", or "assumed_honest" (the smallest).
    question : BoundQuery
        All other parameters, with `epsilon` as the target. The value that it gives for `name` is
        ignored, but must be valid.
    delta : float
        Delta of the target, in (0, 1).

    Returns
    -------
    SolveResult
        `name`, the `value` that was found, and the `answer` at that value.

    Raises
    ------
    InvalidValueError
        If `name` is unknown, or the question has no target epsilon.
    NotApplicableError
        If no value in the allowed range meets the target.

    Notes
    -----
    Asked again with the returned value, for epsilon at `delta` or for delta at epsilon, the method
    keeps the target. If the question names no method, the search uses the one with the smallest
    proven answer at its starting point; another method could allow a slightly better value.
    Neighbors and the direction of error are those of `bound`.

    See Also
    --------
    bound : The guarantee at given parameters.
    calibrate : Clipping norms and noise for personal totals.

    Examples
    --------
    How many clients are needed for epsilon 0.1?

    >>> import fl_shuffle as fs
    >>> question = fs.BoundQuery(randomizer="krr", k=10, epsilon0=1.0, clients=1, epsilon=0.1)
    >>> fs.solve("clients", question, delta=1e-6).value
    661
    """
    from fl_shuffle.accounting.queries.solve import solve as search

    return SolveResult(name, *search(question, name, delta))


@with_one_blas_thread
def to_dp_accounting(*, discretization: float = 1e-4, **question: Any) -> PrivacyLossDistribution:
    """Return the bound as a privacy loss distribution of Google's dp-accounting.

    There it composes with other mechanisms whose distributions have the same `discretization` and
    are about replacing the same unit.

    Parameters
    ----------
    discretization : float, default 1e-4
        Step of the grid of privacy losses, in nats, 1e-6 to 1.
    **question
        As for `bound`, without `epsilon` and `delta`: the distribution has them all.

    Returns
    -------
    PrivacyLossDistribution
        A distribution that dominates the shuffled reports of all rounds.

    Raises
    ------
    ConfigError
        If dp-accounting is not installed, or `epsilon` or `delta` is given.
    InvalidValueError
        If a value is out of range, missing, or contradicts another one.
    NotApplicableError
        If the method's answer is not a proven upper bound.

    Notes
    -----
    Neighbors are replace-one. Direction of error: losses are rounded up to the grid, so an epsilon
    of the composition is never too small, but for dp-accounting's own round-off, which it does not
    bound (about 1e-15 in delta for every composition).

    See Also
    --------
    bound : The guarantee at one epsilon or delta.

    Examples
    --------
    >>> import fl_shuffle as fs
    >>> reports = {"randomizer": "krr", "k": 10, "epsilon0": 1.0, "clients": 10_000}
    >>> shuffled = fs.to_dp_accounting(**reports, rounds=50)  # doctest: +SKIP
    >>> shuffled.compose(another).get_epsilon_for_delta(1e-6)  # doctest: +SKIP
    """
    from fl_shuffle.accounting.numerics import dp_accounting_export as export
    from fl_shuffle.accounting.queries.composed_query import query_composition

    for name in ("epsilon", "delta"):
        if question.get(name) is not None:
            raise ConfigError(
                f"{name} cannot be selected here: the answer has all of them; leave it out"
            )
    export.require_dp_accounting()
    query = BoundQuery.from_mapping({**question, "delta": 1e-6})
    return export.to_dp_accounting(query_composition(query).profile, discretization=discretization)


@with_one_blas_thread
def cost(config: ConfigLike, *, overrides: Mapping[str, Any] | None = None) -> Cost:
    """Compute what a configuration will cost, without running it.

    Parameters
    ----------
    config : str, Path, mapping, or Config
        The configuration, as for `simulate`.
    overrides : mapping of str to object, optional
        Values that replace settings of `config`, by ``"section.key"``.

    Returns
    -------
    Cost
        The epsilon of the most exposed client at `privacy.target_delta`, the costs of each class of
        clients, and the noise of the mean report relative to the clipping norm.

    Raises
    ------
    ConfigError, InvalidValueError, DataError
        As for `simulate`.
    NotApplicableError
        If the distribution of the randomizer is unknown, as that of your own randomizer is.

    Notes
    -----
    If every client takes part in every round, `certain` is true and `epsilon` is proven. With
    ``training.participation < 1`` the participants are random: `epsilon` is then exceeded with a
    probability of at most 1%, and the run counts what really happens. Neighbors: replace-one.

    See Also
    --------
    simulate : Run the configuration.
    bound : The guarantee of reports that no configuration describes.

    Examples
    --------
    >>> import fl_shuffle as fs
    >>> plan = fs.cost("quickstart", overrides={"run.rounds": 2})
    >>> print(plan.certain, round(plan.epsilon, 4), plan.rounds)
    True 0.2462 2
    """
    from fl_shuffle.planner.cost import cost_of

    return cost_of(resolve_config(config, overrides))


@with_one_blas_thread
def calibrate(
    config: ConfigLike,
    *,
    totals: Sequence[float] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> tuple[TotalCost, ...]:
    """Compute what each distinct total of a run buys: clipping norm, noise scale, and epsilons.

    Nothing is run.

    Parameters
    ----------
    config : str, Path, mapping, or Config
        The configuration, as for `simulate`.
    totals : sequence of float, optional
        The clients' own totals for the whole run, in nats at `privacy.target_delta`, client 0
        first. They replace the configuration's `[budgets]` and `data.clients`.
    overrides : mapping of str to object, optional
        Values that replace settings of `config`, by ``"section.key"``.

    Returns
    -------
    tuple of TotalCost
        One entry for each distinct total, the smallest total first.

    Raises
    ------
    InvalidValueError
        If the budgets are those of one report, not totals of the run.
    FlShuffleError
        As for `simulate`.

    Notes
    -----
    The epsilon of each client after all rounds is at most its total. Neighbors: replace-one.

    See Also
    --------
    cost : The cost of the most exposed client.

    Examples
    --------
    >>> import fl_shuffle as fs
    >>> totals = [0.5] * 300 + [2.0] * 100
    >>> strict, loose = fs.calibrate("configs/quickstart_totals.toml", totals=totals)
    >>> strict.clients, strict.epsilon <= 0.5, loose.clip_norm
    (300, True, 0.05)
    """
    from fl_shuffle.budgets import are_totals
    from fl_shuffle.planner.cost import cost_of

    settings = dict(overrides or {})
    if totals is not None:
        listed = [float(each) for each in totals]
        settings |= {"data.clients": len(listed), "budgets.of": "run", "budgets.levels": 0,
                     "budgets.distribution": "listed", "budgets.epsilons": listed}  # fmt: skip
    resolved = resolve_config(config, settings)
    if not are_totals(resolved.budgets):
        raise InvalidValueError(
            "budgets.of", resolved.budgets.of, "must be run to calibrate for totals",
            "set budgets.of = 'run', or give totals = [...]",
        )  # fmt: skip
    return cost_of(resolved).totals


def certify(
    run: str | Path, *, client: int | None = None, column: str | None = None, short: bool = False
) -> dict[str, Any]:
    """Return a certificate of one client of a finished run, as `fl-shuffle verify` reads it.

    Parameters
    ----------
    run : str or Path
        Run directory.
    client : int, optional
        Number of the client. By default, the most exposed client.
    column : {"shuffled", "sum", "local"}, optional
        Which number to prove. By default, the run's headline.
    short : bool, default False
        Whether to use the one-page proof alone (column "shuffled"): a larger epsilon, verified
        faster.

    Returns
    -------
    dict
        The certificate, ready for JSON. Its claim's epsilon is in nats, at the run's delta.

    Raises
    ------
    RunError
        If the directory does not hold a finished run of this version.
    InvalidValueError
        If the run has no such client.
    NotApplicableError
        If there is no such certificate, for example because the client has spent nothing.
    ConfigError
        If the extra `certificates` is not installed.

    Notes
    -----
    The claim is about replacing one unit of the client (replace-one). Its epsilon is what the
    verifier proves in ball arithmetic, which may lie above the epsilon that the run printed.

    See Also
    --------
    fl_shuffle.verify : The independent verifier.

    Examples
    --------
    Needs the extra `certificates`:

    >>> import fl_shuffle as fs
    >>> certificate = fs.certify("runs/quickstart", client=17)  # doctest: +SKIP
    >>> certificate["claim"]["epsilon"]  # doctest: +SKIP
    """
    require_extra("flint", "certificates", "certify")
    from fl_shuffle.certificates.runs import certificate_of_run

    return certificate_of_run(Path(run), client, column, short=short)[0]

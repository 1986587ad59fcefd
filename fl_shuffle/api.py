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
from fl_shuffle.errors import ConfigError, FlShuffleError, InvalidValueError, RunError
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

    OnRound = Callable[[RoundOutcome], None]
    OnEvent = Callable[[RunEvent], None]
    OnSweepEvent = Callable[[SweepEvent], None]

__all__ = [
    "BoundQuery",
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
    """Run a federation to its end and return what it left behind.

    `config` is a TOML file, nested tables or a `Config`; `overrides` maps `section.key` to a value.
    The run's folder is `out`, which must not hold a run, or a new one below `run.out`. `on_round`
    is called after every round with its spend and metrics, `on_event` with every event of
    `fl_shuffle.runs.events`; what they raise ends the run. Nothing is printed. Raises
    `FlShuffleError`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = simulate(overrides={"run.rounds": 2, "run.out": folder})
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
    settings: Sequence[str] = (),
    data_unchanged: bool = False,
    on_round: OnRound | None = None,
    on_event: OnEvent | None = None,
) -> Result:
    """Go on with the unfinished run in `directory`, with its own configuration, to its end.

    `settings` (`section.key=value`) change what may change (docs/how-to/resume-a-run.md).
    Raises `RunError` where there is none, where what was released could not be accounted any more,
    and where nobody can tell whether the data are still the same, unless `data_unchanged` vouches
    for them. The callbacks are those of `simulate`.
    """
    from fl_shuffle.runs.directory import RunPlace
    from fl_shuffle.runs.resume import unfinished_config

    path = Path(directory).resolve()
    place = RunPlace(path, "data-unchanged" if data_unchanged else "yes")
    return _play(unfinished_config(path, settings), place, on_round, on_event)


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
    """Run every combination of `grid` (`section.key` to its values) with `seeds` seeds each.

    With `baselines` each combination is run four times: as it is (`shuffled`), and at the same
    epsilon of the most exposed client with a trusted server, which adds noise once, and with local
    privacy alone; and without privacy. `result.table["baseline"]` names them. Then `epsilon` is the
    local one in the row `local`.

    `jobs` runs go on at once, each in a process of its own; their number changes no result. The
    sweep's folder is `out`, which must be empty or absent, or a new one below `run.out`;
    `resume_sweep` continues one. `on_event` is called with every round, finished and failed run.
    A run that fails leaves the others alone: it is missing in the result. Nothing is printed.
    Raises `FlShuffleError`, before anything runs if any combination is not allowed.
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
    """Go on with a sweep: finished runs are kept, unfinished ones resumed, the others started.

    Raises `FlShuffleError`.
    """
    from fl_shuffle.sweeps.directory import reopen_sweep

    return played(*reopen_sweep(Path(directory)), jobs, on_event)


def played(
    directory: RunDirectory, plan: Sweep, jobs: int, on_event: OnSweepEvent | None
) -> SweepResult:
    """Run what has no result yet, write tables and page, and give the folder back."""
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
    """Return the guarantee of one method, in nats, for replacing one unit (client or record).

    Without `method` it is the smallest proven one; `compare` has them all.
    Raises `InvalidValueError` for a value out of range and `NotApplicableError` where the method
    states nothing.

    >>> answer = bound(randomizer="krr", k=10, epsilon0=1.0, clients=10_000, delta=1e-6)
    >>> answer.method, str(answer.status), answer.epsilon < 0.1
    ('blanket', 'proven', True)
    """
    from fl_shuffle.accounting.queries.methods import bound as ask

    return ask(question)


@with_one_blas_thread
def bound_many(
    questions: Iterable[BoundQuery | Mapping[str, Any]],
) -> list[Guarantee | FlShuffleError]:
    """Return the answer of `bound` to each question, in order; in the place of one without, its
    error.

    A question is a `BoundQuery`, or a mapping of its names to values. Equal questions are answered
    once, and those that differ in `epsilon` or `delta` alone share the composition of their rounds.
    Where the work takes longer than a second, a process for each further core helps. An answer does
    not depend on the others. Nothing that a question says raises.

    >>> asked = {"randomizer": "krr", "k": 10, "epsilon0": 1.0, "delta": 1e-6}
    >>> answers = bound_many({**asked, "clients": n} for n in (1_000, 10_000, -5))
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
    """Return every method's answer, or the error that says why it does not apply; best proven
    first.

    >>> answers = compare(epsilon0=1.0, clients=10_000, delta=1e-6)
    >>> next(iter(answers))
    'profile'
    """
    from fl_shuffle.accounting.queries.methods import compare as ask_all

    return ask_all(question)


@dataclass(frozen=True)
class SolveResult:
    """The most, or the least, of one number of a question that keeps a target; and the answer."""

    name: str
    value: float
    answer: Guarantee


@with_one_blas_thread
def solve(name: str, question: BoundQuery, *, delta: float) -> SolveResult:
    """Return the most, or least, of the question's number `name` that keeps its epsilon at `delta`.

    What the question says of `name` is where nothing begins: any value will do. Raises
    `NotApplicableError` where no value keeps the target.

    >>> question = BoundQuery(randomizer="krr", k=10, epsilon0=1.0, clients=1, epsilon=0.1)
    >>> solve("clients", question, delta=1e-6).value
    661
    """
    from fl_shuffle.accounting.queries.solve import solve as search

    return SolveResult(name, *search(question, name, delta))


@with_one_blas_thread
def to_dp_accounting(*, discretization: float = 1e-4, **question: Any) -> PrivacyLossDistribution:
    """Return the bound of `bound(**question)` as a privacy loss distribution of Google's
    dp-accounting.

    There it composes with other mechanisms whose distributions have the same `discretization` and
    are about replacing the same unit. Neither `epsilon` nor `delta` is given: the distribution has
    them all. It is an upper bound as the answers are. Raises `FlShuffleError`; among others
    `ConfigError` where dp-accounting is not installed and `NotApplicableError` for a method whose
    answer is no proven upper bound.

        shuffled = to_dp_accounting(randomizer="krr", k=10, epsilon0=1.0, clients=10_000, rounds=50)
        shuffled.compose(another).get_epsilon_for_delta(1e-6)
    """
    from fl_shuffle.accounting.numerics import dp_accounting_export as export
    from fl_shuffle.accounting.queries.composed_query import query_composition

    for name in ("epsilon", "delta"):
        if question.get(name) is not None:
            raise ConfigError(f"{name} is no part of this question: the answer has all of them")
    export.require_dp_accounting()
    query = BoundQuery.from_mapping({**question, "delta": 1e-6})
    return export.to_dp_accounting(query_composition(query).profile, discretization=discretization)


@with_one_blas_thread
def cost(config: ConfigLike, *, overrides: Mapping[str, Any] | None = None) -> Cost:
    """Return what a configuration will cost, before it is run; raises `FlShuffleError`.

    >>> cost("configs/digits_record.toml", overrides={"run.rounds": 2}).certain
    True
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
    """Return what each distinct total of the run buys: clipping norm, noise scale, epsilons.

    `totals` are the clients' own (nats, at `privacy.target_delta`), client 0 first, in the place of
    the configuration's `[budgets]` and `data.clients`. The smallest total comes first. Nothing is
    run. Raises `FlShuffleError`, among others `InvalidValueError` for budgets of one report.

    >>> totals = [0.5] * 300 + [2.0] * 100
    >>> strict, loose = calibrate("configs/quickstart_totals.toml", totals=totals)
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
    """Return a certificate, as `fl-shuffle verify` reads it, of one client of a finished run.

    `run` is the run's folder; `client` its number, by default the most exposed one; `column` is
    "shuffled", "sum" or "local", by default the run's headline. The claim's epsilon (nats, at the
    run's delta, for replacing one unit of the client) is what the verifier proves, which may lie
    above the printed one. `short`: column "shuffled" by the one-page proof alone, a larger number,
    sooner checked. Raises `RunError` where there is no finished run, `NotApplicableError`
    where there is no such certificate, `ConfigError` without the extra `certificates`.
    """
    require_extra("flint", "certificates", "certify")
    from fl_shuffle.certificates.runs import certificate_of_run

    return certificate_of_run(Path(run), client, column, short=short)[0]

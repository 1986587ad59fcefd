"""Privacy bounds for shuffled reports: one by name, or all that apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict, Unpack

from fl_shuffle.api.queries import read_query
from fl_shuffle.errors import ConfigError
from fl_shuffle.threads import with_one_blas_thread

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
    from fl_shuffle.accounting.guarantee import Guarantee
    from fl_shuffle.errors import FlShuffleError


class Question(TypedDict, total=False):
    """What can be asked; see `fl_shuffle.accounting.queries.bound_query.BoundQuery`.

    Exactly one of `epsilon` and `delta` is given, the other is the answer. `budgets` are personal
    ones: a list of (epsilon0, delta0, clients), or a CSV file. `profile` lists (epsilon, delta)
    pairs that all hold for one report, or is "gdp:MU".
    """

    method: str
    randomizer: str | None
    k: int | None
    cap: float | None
    epsilon0: float
    delta0: float
    clients: int
    epsilon: float
    delta: float
    rounds: int
    joint: int
    parallel: str | Sequence[tuple[str, float]]
    unit: str
    records: int
    calibration: str
    participation: float
    relative_error: float | None
    release: str
    assumed_honest: int | float | None
    budgets: str | Sequence[LocalBudget] | Sequence[Sequence[float]]
    profile: str | Sequence[tuple[float, float]]


@with_one_blas_thread
def bound(**question: Unpack[Question]) -> Guarantee:
    """The guarantee of one method, in nats, for replacing one unit (client or record).

    Without `method` a proven one for the kind of report is asked: `sum` for Gaussian or Laplace
    noise where `release="sum"`, `proven` for Gaussian noise, `blanket` for any other randomizer
    named, `gspa-exact` for personal budgets alone, `profile` for a profile, and `clone` for any
    randomizer of that local budget; `compare` finds the tightest. Raises `InvalidValueError` for a
    value out of range and `NotApplicableError` where the method states nothing.

    >>> answer = bound(randomizer="krr", k=10, epsilon0=1.0, clients=10_000, delta=1e-6)
    >>> answer.method, str(answer.status), answer.epsilon < 0.1
    ('blanket', 'proven', True)
    >>> noise = {"randomizer": "gaussian", "unit": "client", "epsilon0": 1.0, "delta0": 1e-5}
    >>> round(bound(**noise, clients=100, delta=1e-6, release="sum").epsilon, 3)
    0.073
    """
    from fl_shuffle.accounting.queries.methods import bound as ask

    return ask(read_query(dict(question)))


@with_one_blas_thread
def compare(**question: Unpack[Question]) -> dict[str, Guarantee | FlShuffleError]:
    """Every method's answer, or the error that says why it does not apply; best proven first.

    >>> answers = compare(epsilon0=1.0, clients=10_000, delta=1e-6)
    >>> next(iter(answers))
    'profile'
    """
    from fl_shuffle.accounting.queries.methods import compare as ask_all

    return ask_all(read_query(dict(question)))


@with_one_blas_thread
def to_dp_accounting(
    *, discretization: float = 1e-4, **question: Unpack[Question]
) -> PrivacyLossDistribution:
    """The bound of `bound(**question)` as a privacy loss distribution of Google's dp-accounting.

    There it composes with other mechanisms whose distributions have the same `discretization` and
    are about replacing the same unit. Neither `epsilon` nor `delta` is given: the distribution has
    them all. It is an upper bound as the answers are. Raises `FlShuffleError`; among others
    `ConfigError` where dp-accounting is not installed and `NotApplicableError` for a method whose
    answer is no proven upper bound.

        shuffled = to_dp_accounting(randomizer="krr", k=10, epsilon0=1.0, clients=10_000, rounds=50)
        shuffled.compose(another).get_epsilon_for_delta(1e-6)
    """
    from fl_shuffle.accounting.engine.dp_accounting_export import (
        require_dp_accounting,
        to_dp_accounting,
    )
    from fl_shuffle.accounting.queries.composed_query import query_composition

    for name in ("epsilon", "delta"):
        if question.get(name) is not None:
            raise ConfigError(f"{name} is no part of this question: the answer has all of them")
    require_dp_accounting()
    query = read_query({**question, "delta": 1e-6})
    return to_dp_accounting(query_composition(query), discretization=discretization)

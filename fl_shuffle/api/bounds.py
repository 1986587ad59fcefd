"""Privacy bounds for shuffled reports: one by name, or all that apply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fl_shuffle.accounting.guarantee import Guarantee
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.declare import asks
from fl_shuffle.errors import ConfigError, FlShuffleError
from fl_shuffle.threads import with_one_blas_thread

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


@asks(Question)
@with_one_blas_thread
def bound(question: Question) -> Guarantee:
    """The guarantee of one method, in nats, for replacing one unit (client or record).

    Without `method` it is the smallest proven one; `compare` has them all.
    Raises `InvalidValueError` for a value out of range and `NotApplicableError` where the method
    states nothing.

    >>> answer = bound(randomizer="krr", k=10, epsilon0=1.0, clients=10_000, delta=1e-6)
    >>> answer.method, str(answer.status), answer.epsilon < 0.1
    ('blanket', 'proven', True)
    """
    from fl_shuffle.accounting.queries.methods import bound as ask

    return ask(question)


@asks(Question)
@with_one_blas_thread
def compare(question: Question) -> dict[str, Guarantee | FlShuffleError]:
    """Every method's answer, or the error that says why it does not apply; best proven first.

    >>> answers = compare(epsilon0=1.0, clients=10_000, delta=1e-6)
    >>> next(iter(answers))
    'profile'
    """
    from fl_shuffle.accounting.queries.methods import compare as ask_all

    return ask_all(question)


@dataclass(frozen=True)
class Solved:
    """The most, or the least, of one number of a question that keeps a target; and the answer."""

    name: str
    value: float
    answer: Guarantee


@with_one_blas_thread
def solve(name: str, question: Question, *, delta: float) -> Solved:
    """The most, or least, of the question's number `name` that keeps its epsilon at `delta`.

    What the question says of `name` is where nothing begins: any value will do. Raises
    `NotApplicableError` where no value keeps the target.

    >>> question = Question(randomizer="krr", k=10, epsilon0=1.0, clients=1, epsilon=0.1)
    >>> solve("clients", question, delta=1e-6).value
    661
    """
    from fl_shuffle.accounting.queries.solve import solve as search

    value, answer = search(question, name, delta)
    return Solved(name, value, answer)


@with_one_blas_thread
def to_dp_accounting(*, discretization: float = 1e-4, **question: Any) -> PrivacyLossDistribution:
    """The bound of `bound(**question)` as a privacy loss distribution of Google's dp-accounting.

    There it composes with other mechanisms whose distributions have the same `discretization` and
    are about replacing the same unit. Neither `epsilon` nor `delta` is given: the distribution has
    them all. It is an upper bound as the answers are. Raises `FlShuffleError`; among others
    `ConfigError` where dp-accounting is not installed and `NotApplicableError` for a method whose
    answer is no proven upper bound.

        shuffled = to_dp_accounting(randomizer="krr", k=10, epsilon0=1.0, clients=10_000, rounds=50)
        shuffled.compose(another).get_epsilon_for_delta(1e-6)
    """
    from fl_shuffle.accounting.engine import dp_accounting_export as export
    from fl_shuffle.accounting.queries.composed_query import query_composition

    for name in ("epsilon", "delta"):
        if question.get(name) is not None:
            raise ConfigError(f"{name} is no part of this question: the answer has all of them")
    export.require_dp_accounting()
    query = Question.from_mapping({**question, "delta": 1e-6})
    law = query_composition(query).profile
    return export.to_dp_accounting(law, discretization=discretization)

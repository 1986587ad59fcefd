"""Every bound by name: a `BoundQuery` in, a `Guarantee` out.

`bound(query)` evaluates the method the query names; `compare(query)` all that apply. A method asked
outside its validity raises `NotApplicableError` with the condition that failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from fl_shuffle._internal.renamed import RenamedKeys
from fl_shuffle.accounting.guarantee import Guarantee, Status, proof_over_attack
from fl_shuffle.accounting.lower_bounds.chosen_datasets import binary_lower_delta
from fl_shuffle.accounting.queries.fixed_sample import fixed_sample_guarantee
from fl_shuffle.accounting.queries.guarantees import Method
from fl_shuffle.accounting.queries.published_methods import PUBLISHED_METHODS
from fl_shuffle.accounting.queries.query import MAX_EPSILON, OLD_METHODS, BoundQuery
from fl_shuffle.accounting.queries.randomizer_methods import BLANKET, CLONE, GSPA, LOWER, PROFILE
from fl_shuffle.accounting.queries.renyi_methods import RENYI_METHODS
from fl_shuffle.accounting.queries.sum_methods import SUM, SUM_ATTACK
from fl_shuffle.accounting.queries.vector_methods import ATTACK, VECTOR
from fl_shuffle.errors import (
    FlShuffleError,
    InvalidValueError,
    NotApplicableError,
    require_choice,
)


def bound(query: BoundQuery) -> Guarantee:
    """Return the answer of the method that the query names, or else the smallest proven answer.

    Parameters
    ----------
    query : BoundQuery
        The question.

    Returns
    -------
    Guarantee
        Epsilon in nats, for replacing one `query.unit`.

    Raises
    ------
    InvalidValueError
        If the method is unknown.
    NotApplicableError
        If the method does not apply, or if no bound for the query is proven.

    Notes
    -----
    Where neighbors change one of several records in a report, another client's report may differ in
    all of them, by `records` times epsilon0: methods that take epsilon0 for any two reports then
    state nothing true, and are refused. Published formulas are still printed as what they are.

    Examples
    --------
    >>> from fl_shuffle.accounting import BoundQuery, bound
    >>> answer = bound(BoundQuery(randomizer="krr", k=2, epsilon0=1.0, clients=1_000, delta=1e-6))
    >>> answer.method, answer.epsilon < 1.0
    ('blanket', True)
    """
    if query.method is None:
        _require_no_order(query, "the smallest proven bound")
        return _smallest_proven(query)
    require_choice("method", query.method, METHODS)
    method = METHODS[query.method]
    if not method.orders:
        _require_no_order(query, query.method)
    if query.participation < 1.0 and not method.absence:
        raise NotApplicableError(
            f"{query.method} is stated for clients that all take part: use blanket, clone, vector "
            "or lower, or participation = 1"
        )
    _require_release(query, method)
    # The rounds then share one sample, so they must not be composed as independent ones.
    if query.drawn_once:
        return fixed_sample_guarantee(query, bound)
    answer = method.answer(query)
    one_of_many = query.unit == "record" and query.records > 1
    # Another client's report may differ in all of its records, at `records` times epsilon0: the
    # bound's premise, any two reports, would fail.
    if one_of_many and not method.of_records and answer.status is not Status.AS_PUBLISHED:
        raise NotApplicableError(
            f"{query.method} takes epsilon0 for any two reports, here it is for one of "
            f"{query.records} records: use vector (gaussian or laplace), or records = 1 and the "
            "epsilon0 of a whole report"
        )
    return answer


def _smallest_proven(query: BoundQuery) -> Guarantee:
    """Raise `NotApplicableError` where no bound for the query is proven."""
    answers: dict[str, Guarantee | FlShuffleError] = {}
    best: Guarantee | None = None
    # Once a good answer is there, a method that cannot beat it is ruled out by one point of its
    # curve.
    for name, method in METHODS.items():
        if (
            not method.headline
            or name in LOWER_METHODS
            or (best is not None and _costs_more(query, name, best))
        ):
            continue
        answers |= _answers(query, [name])
        answer = answers[name]
        if isinstance(answer, Guarantee) and answer.status is Status.PROVEN:
            best = answer if best is None else min(best, answer, key=partial(asked_number, query))
    if best is not None:
        return best
    given = [each for each in answers.values() if isinstance(each, Guarantee)]
    found = sorted(given, key=partial(_rank, query))
    # One that nothing could answer is a mistake in the question: the first refusal says which.
    mistakes = [each for each in answers.values() if isinstance(each, InvalidValueError)]
    if mistakes and len(mistakes) == len(answers):
        raise mistakes[0]
    reasons = "; ".join(
        f"{name}: {each}" for name, each in answers.items() if isinstance(each, FlShuffleError)
    )
    named = f"name one that is not proven, for example {found[0].method}, " if found else ""
    raise NotApplicableError(
        f"no bound is proven for this query; {named}or give the randomizer ({reasons})"
    )


def _require_no_order(query: BoundQuery, asked: str) -> None:
    if query.order is not None:
        names = ", ".join(name for name, method in METHODS.items() if method.orders)
        raise NotApplicableError(
            f"order = {query.order:g} has no effect on {asked}: leave it out, or name a method "
            f"that takes one ({names})"
        )


def _costs_more(query: BoundQuery, name: str, best: Guarantee) -> bool:
    """Return whether a point of the method's curve shows that its epsilon is above that of `best`.

    Its delta there is above the query's, and no curve rises. A search takes many points.
    """
    # A point of a one-round curve is cheap. Over rounds it would cost the whole composition.
    if query.delta is None or query.rounds > 1 or not best.epsilon <= MAX_EPSILON:
        return False
    if METHODS[name].any_randomizer and _binary_loses(query, best.epsilon) > query.delta:
        return True
    try:
        there = bound(replace(query, method=name, epsilon=best.epsilon, delta=None))
    except FlShuffleError:
        return False  # the method itself will say why
    return there.delta > query.delta


def _binary_loses(query: BoundQuery, epsilon: float) -> float:
    """Return a delta that binary randomized response of the query's pure budget certainly reaches.

    A bound on every randomizer of that budget is a bound on this one, so it cannot be smaller. It
    takes one evaluation of a curve with three outcomes, where such a bound takes many.
    """
    pure = query.epsilon0 is not None and query.delta0 == 0.0 and not query.profile
    if not pure or query.personal or query.participation < 1.0 or query.clients is None:
        return 0.0
    return binary_lower_delta(query.epsilon0 or 0.0, query.clients, epsilon)


def _require_release(query: BoundQuery, method: Method) -> None:
    """Raise `NotApplicableError` where what is released is not what the method is about."""
    if method.sees not in ("any", query.release):
        needed = "sums alone" if method.sees == "sum" else "single reports"
        raise NotApplicableError(
            f"{method.name} holds against an attacker who sees {needed}: it needs release = "
            f"{method.sees!r}"
        )
    if query.assumed_honest is not None and method.sees != "sum":
        raise NotApplicableError(
            f"{method.name} assumes that every report is honest: leave assumed_honest out, or "
            "give the number of honest clients"
        )


def compare(query: BoundQuery, *, lower: bool = True) -> dict[str, Guarantee | FlShuffleError]:
    """Return every method's answer, or the error that says why it does not apply.

    Parameters
    ----------
    query : BoundQuery
        The question, without a method.
    lower : bool, default True
        Whether to ask all methods, or only those that a headline can come from.

    Returns
    -------
    dict of str to Guarantee or FlShuffleError
        Proven upper bounds from small to large, then published ones, then lower bounds, then those
        that do not apply.

    Examples
    --------
    >>> from fl_shuffle.accounting import BoundQuery, compare
    >>> found = compare(BoundQuery(epsilon0=1.0, clients=1_000, delta=1e-6), lower=False)
    >>> next(iter(found.values())).is_guarantee
    True
    """
    names = [
        name
        for name, method in METHODS.items()
        if lower or (method.headline and name not in LOWER_METHODS)
    ]
    answers = sorted(_answers(query, names).items(), key=lambda item: _rank(query, item[1]))
    return RenamedKeys(dict(answers), OLD_METHODS)


def _answers(query: BoundQuery, names: Iterable[str]) -> dict[str, Guarantee | FlShuffleError]:
    answers: dict[str, Guarantee | FlShuffleError] = {}
    for name in names:
        try:
            order = query.order if METHODS[name].orders else None
            answers[name] = bound(replace(query, method=name, order=order))
        except FlShuffleError as refusal:
            answers[name] = refusal
    return answers


LOWER_METHODS = ("lower", "attack", "sum-attack")
"""What the randomizer asked for certainly loses."""


def lower_answers(query: BoundQuery) -> dict[str, Guarantee]:
    """Return what is certainly lost in the situation of `query`, by every method that can say."""
    answers = _answers(query, LOWER_METHODS)
    return {name: each for name, each in answers.items() if isinstance(each, Guarantee)}


def tightness(query: BoundQuery, answers: Mapping[str, Guarantee | FlShuffleError]) -> float | None:
    """Return the smallest proven number over the largest lower bound; None without both."""
    found = [each for each in answers.values() if isinstance(each, Guarantee)]
    proven = [asked_number(query, each) for each in found if each.status is Status.PROVEN]
    lower = [asked_number(query, each) for each in found if each.method in LOWER_METHODS]
    return proof_over_attack(min(proven, default=None), max(lower, default=None))


def asked_number(query: BoundQuery, answer: Guarantee) -> float:
    """Return what the query asks for: epsilon at its delta, or delta at its epsilon."""
    return answer.epsilon if query.delta is not None else answer.delta


def _rank(query: BoundQuery, value: Guarantee | FlShuffleError) -> tuple[int, float]:
    if isinstance(value, FlShuffleError):
        return len(Status), 0.0
    order = (Status.PROVEN, Status.AS_PUBLISHED, Status.LOWER_BOUND)
    return order.index(value.status), asked_number(query, value)


METHODS = {
    method.name: method
    for method in (
        VECTOR,
        SUM,
        BLANKET,
        CLONE,
        PROFILE,
        GSPA,
        *RENYI_METHODS,
        *PUBLISHED_METHODS,
        LOWER,
        ATTACK,
        SUM_ATTACK,
    )
}
"""Each stands beside its theorem's conditions, where it answers."""

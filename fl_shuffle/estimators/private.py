"""From raw values and budgets to an estimate, its error, and its central epsilon: one call each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.guarantee import Guarantee
from fl_shuffle.errors import require_choice, require_integer
from fl_shuffle.estimators.central import central_guarantee
from fl_shuffle.estimators.estimates import (
    Estimate,
    estimate_mean,
    expected_frequency_error,
    expected_mean_error,
    frequencies_from,
    frequency_plan,
    frequency_tally,
)
from fl_shuffle.estimators.inputs import (
    COIN_EPSILON0,
    require_budgets,
    require_values,
)
from fl_shuffle.estimators.numbers import BoundedRandomizer
from fl_shuffle.estimators.oracles import ORACLES

CHUNK_REPORTS = 2**24
"""Cells of reports that are in memory at a time."""


@dataclass(frozen=True)
class PrivateEstimate(Estimate):
    """What the server learns from the shuffled reports, and what that costs each user.

    Attributes
    ----------
    expected_error : float
        Largest standard error that any data can have with these budgets. It does not depend on the
        data. The attributes of `Estimate` come from the reports.
    central : Guarantee
        Central epsilon (nats) of the most exposed user, with its status and assumptions.
    local_epsilon : float
        Largest local budget (nats): what holds against an attacker who sees who sent a report.
    """

    expected_error: float
    central: Guarantee
    local_epsilon: float


def private_frequencies(
    values: NDArray[Any],
    epsilon0: float | FloatArray,
    *,
    categories: int,
    delta: float,
    randomizer: str = "krr",
    estimator: str = "published",
    confidence: float = 0.95,
    seed: int | np.random.Generator | None = None,
) -> PrivateEstimate:
    """Randomize, shuffle, and count: each category's share of the users, with personal budgets.

    Parameters
    ----------
    values : integers in [0, categories - 1], shape (n,)
        What the users hold.
    epsilon0 : float or float array of shape (n,), in (0, 20], nats
        Local budget of all users, or of each. Budgets are public.
    categories : int, in [2, 2^31]
        Number of categories, chosen without looking at the values.
    delta : float, in [1e-290, 1)
        Central delta.
    randomizer : str, default "krr"
        "krr", "oue", "rappor", "blh", or "hadamard".
    estimator : str, default "published"
        "published": Algorithm 2 of Chen, Cao, Ge 2024 (GSPA). The server needs no report's budget;
        unbiased only if budgets are independent of the data. "unbiased": always unbiased, but
        reports carry their budgets, so only equal budgets hide each other. "inverse-variance": the
        smallest error, with both of these conditions. With one budget for all users the three are
        the same.
    confidence : float, in (0, 1), default 0.95
        Level of each interval.
    seed : int or numpy.random.Generator, optional
        Source of all randomness. Left out: fresh entropy.

    Returns
    -------
    PrivateEstimate
        Entries of shape (categories,).

    Raises
    ------
    InvalidValueError
        If an argument is outside its range, or the numbers of values and budgets differ.

    Notes
    -----
    The function plays users, shuffler, and server in one process: for studies, and for planning.
    Neighbors: replace-one, one user's value. A seed that somebody knows protects nobody.

    See Also
    --------
    private_mean : The same for numbers.
    fl_shuffle.estimators : Randomizers, estimates, and guarantees as separate steps.

    Examples
    --------
    1,000 conservative users and 9,000 with twice their budget:

    >>> import numpy as np
    >>> values = np.arange(10_000) % 4
    >>> budgets = np.where(np.arange(10_000) < 1_000, 0.5, 1.0)
    >>> found = private_frequencies(
    ...     values, budgets, categories=4, randomizer="hadamard", delta=1e-6, seed=1
    ... )
    >>> bool(np.abs(found.value - 0.25).max() < 5 * found.expected_error)
    True
    >>> found.central.epsilon < 0.1, str(found.central.status)
    (True, 'proven')
    """
    require_choice("randomizer", randomizer, ORACLES)
    oracle = ORACLES[randomizer](require_integer("categories", categories, minimum=2))
    truth = require_values(values, "iu", 0, oracle.categories - 1)
    budgets = require_budgets(epsilon0, truth.size, largest=COIN_EPSILON0)
    central = central_guarantee(oracle, budgets, delta=delta, estimator=estimator)
    plan = frequency_plan(budgets, oracle, estimator)
    generator = _generator(seed)
    # A report of k bits is counted and forgotten before the next chunk of users is drawn.
    rows = max(1, CHUNK_REPORTS // (oracle.categories if randomizer in ("oue", "rappor") else 1))
    tally = np.zeros((len(plan.rows), oracle.categories))
    for start in range(0, truth.size, rows):
        users = slice(start, start + rows)
        reports = oracle.randomize(truth[users], budgets[users], generator)
        tally += frequency_tally(reports, plan, oracle, users)
    found = frequencies_from(tally, plan, estimator=estimator, confidence=confidence)
    expected = expected_frequency_error(budgets, oracle, estimator=estimator)
    return _with_cost(found, expected, central, budgets)


def private_mean(
    values: NDArray[Any],
    epsilon0: float | FloatArray,
    *,
    low: float,
    high: float,
    delta: float,
    randomizer: str = "laplace",
    estimator: str = "published",
    confidence: float = 0.95,
    seed: int | np.random.Generator | None = None,
) -> PrivateEstimate:
    """Randomize, shuffle, and average: the users' mean, with personal budgets.

    Parameters
    ----------
    values : numbers in [low, high], shape (n,)
        What the users hold. Clip them first.
    epsilon0 : float or float array of shape (n,), nats
        Local budget of all users, or of each: in (0, 20] for duchi, (0, 200] for laplace. Budgets
        are public.
    low, high : float, low < high
        Public range, chosen without looking at the values.
    delta : float, in [1e-290, 1)
        Central delta.
    randomizer : str, default "laplace"
        "laplace" or "duchi".
    estimator : str, default "published"
        "published": for laplace Algorithm 1 of Chen, Cao, Ge 2024 (GSPA), the plain average, which
        is always unbiased; for duchi the weights of Algorithm 2, unbiased only if budgets are
        independent of the data. A duchi report is then one bit, the end of the range that it names.
        "unbiased": the plain average. "inverse-variance": the smallest error, unbiased under the
        same condition. Where the server needs each report's budget, only equal budgets hide each
        other.
    confidence : float, in (0, 1), default 0.95
        Level of the interval.
    seed : int or numpy.random.Generator, optional
        Source of all randomness. Left out: fresh entropy.

    Returns
    -------
    PrivateEstimate
        Entries of shape (1,).

    Raises
    ------
    InvalidValueError
        If an argument is outside its range, or the numbers of values and budgets differ.

    Notes
    -----
    The function plays users, shuffler, and server in one process: for studies, and for planning.
    Neighbors: replace-one, one user's value. A seed that somebody knows protects nobody. Laplace
    noise is drawn in double precision, whose last digits the guarantee does not cover.

    See Also
    --------
    private_frequencies : The same for categories.

    Examples
    --------
    >>> import numpy as np
    >>> ages = np.linspace(20, 80, 10_000)
    >>> budgets = np.where(np.arange(10_000) % 2, 0.5, 1.0)
    >>> found = private_mean(ages, budgets, low=20, high=80, delta=1e-6, seed=1)
    >>> bool(abs(found.value[0] - 50) < 5 * found.expected_error)
    True
    >>> found.unbiased, str(found.central.status)
    ('always', 'proven')
    """
    kind = BoundedRandomizer(randomizer, low, high)
    generator = _generator(seed)
    truth = require_values(values, "iuf", kind.low, kind.high)
    budgets = require_budgets(epsilon0, truth.size)
    reports = kind.randomize(truth, budgets, generator)
    central = central_guarantee(kind, budgets, delta=delta, estimator=estimator)
    found = estimate_mean(reports, budgets, kind, estimator=estimator, confidence=confidence)
    expected = expected_mean_error(budgets, kind, estimator=estimator)
    return _with_cost(found, expected, central, budgets)


def _generator(seed: int | np.random.Generator | None) -> np.random.Generator:
    if isinstance(seed, np.random.Generator):
        return seed
    if seed is not None:
        require_integer("seed", seed, minimum=0)
    return np.random.default_rng(seed)


def _with_cost(
    found: Estimate, expected: float, central: Guarantee, budgets: FloatArray
) -> PrivateEstimate:
    known = {each.name: getattr(found, each.name) for each in fields(found)}
    largest = float(budgets.max())
    return PrivateEstimate(**known, expected_error=expected, central=central, local_epsilon=largest)

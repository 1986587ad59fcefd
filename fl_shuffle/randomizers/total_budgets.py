"""Budgets of one report that spend given totals over a run: calibration before round one.

A client's total bounds its headline epsilon after all rounds. Where sums of Gaussian reports are
released the budget of one report follows in closed form; where shuffled reports are, a fixed point
is searched for (`shuffled_totals`). Everything after that, from noise to ledger, is the same as for
budgets of reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.attendance import FAILURE_PROBABILITY, rounds_taken, surely
from fl_shuffle.accounting.bounds.sum_release.gaussian import SUM_DELTA_SHARE
from fl_shuffle.accounting.bounds.sum_release.honest import honest_reports
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilons, gaussian_mus
from fl_shuffle.accounting.report_grid import GRID_SMOOTHING, coarsest_step
from fl_shuffle.accounting.rounds.shuffled_view import MAX_BALLS_TOLD_APART
from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.randomizers.shuffled_totals import (
    PlannedReports,
    SolvedReports,
    laplace_alone,
    solved_reports,
)

Tell = Callable[[str], None]
"""Receives a progress line for the screen of the data's owner, never for a file."""
EXPECTED = 0.9
"""Share of the asked clients whose reports are planned with, where the configuration names none:
one absent client in ten then costs nobody a round."""
MARGIN = 1e-7
"""A report's parameter is smaller by this share, which covers every rounding on the way from a
total to a scale and back: inverse profiles and sums of squares (each below 1e-9)."""


def silent(text: str) -> None:
    """Ignore the text: nobody listens."""


def report_budgets(
    config: Config, budgets: Budgets, records: NDArray[np.int64], tell: Tell = silent
) -> Budgets:
    """Return the budgets of one report with which `budgets`, totals, are spent over the run.

    Raises `InvalidValueError` for totals that nothing can be solved for.
    """
    _require_solvable(config, budgets, records)
    privacy = config.privacy
    budgets.require_target_delta(privacy.target_delta)
    times = reports_of_a_client(config, len(budgets))
    if against_everybody(config):
        mu = _mus_alone(config, budgets, times)
    elif privacy.release == "sum":
        mu = _mus_of_sums(config, budgets, records, times)
    else:
        mu = _mus_of_reports(config, budgets, records, tell)
    mu *= 1.0 - MARGIN
    delta = 0.0 if privacy.randomizer == "laplace" else privacy.target_delta
    epsilon = mu if privacy.randomizer == "laplace" else gaussian_epsilons(delta, mu)
    for client in np.flatnonzero(epsilon == 0.0)[:1]:
        raise InvalidValueError(
            f"{budgets.where(int(client))}: total epsilon", float(budgets.epsilon[client]),
            f"is too small for {times:,} reports at privacy.target_delta = "
            f"{privacy.target_delta:g}", "plan fewer rounds, or a larger total",
        )  # fmt: skip
    return Budgets(epsilon, np.full(len(budgets), delta))


def against_everybody(config: Config) -> bool:
    """Return whether totals hold against those who open the reports, too: others hide nobody."""
    return config.budgets.against == "everybody"


def searched(config: Config) -> bool:
    """Return whether the noise of totals is searched for, and not solved for in closed form."""
    return config.privacy.release == "reports" and not against_everybody(config)


def _mus_alone(config: Config, budgets: Budgets, reports: int) -> NDArray[np.float64]:
    """Return the parameter of each client's report, shape (clients,), with which this number of
    `reports`, seen alone, spends its total: for Gaussian noise mu(total, delta) / sqrt(reports)."""
    delta = config.privacy.target_delta
    if config.privacy.randomizer != "laplace":
        found: NDArray[np.float64] = gaussian_mus(budgets.epsilon, delta) / math.sqrt(reports)
        return found
    values, inverse = np.unique(budgets.epsilon, return_inverse=True)
    each = np.array([laplace_alone(total, reports, delta) for total in values.tolist()])
    return each[inverse.reshape(-1)]


def _mus_of_sums(
    config: Config, budgets: Budgets, records: NDArray[np.int64], sums: int
) -> NDArray[np.float64]:
    """Return the Gaussian-DP parameter of each client's report, shape (clients,).

    A sum of h honest Gaussian reports of one noise scale is mu_i / sqrt(h)-GDP for client i, whose
    report alone is mu_i-GDP (docs/research/proofs, section 14). S such sums are mu_i sqrt(S /
    h)-GDP, and client i may spend m_i = mu(total_i, target delta). Hence

        mu_i = m_i sqrt(h / S),

    and the budget of a report is the epsilon of mu_i at the target delta. h is what is planned to
    arrive (`planned_reports`), less what their grids take (`_counted_reports`): with more reports a
    client spends less.
    """
    privacy = config.privacy
    honest = honest_reports(privacy.assumed_honest, planned_reports(config))
    own = gaussian_mus(budgets.epsilon, privacy.target_delta * SUM_DELTA_SHARE) / math.sqrt(sums)
    # A report's clip in noise scales is at most mu / 2 times the records that share it.
    batch = records if privacy.unit == "record" else np.ones(len(budgets))
    counted = _counted_reports(honest, 0.5 * float(np.max(own * batch)))
    found: NDArray[np.float64] = own * math.sqrt(counted)
    return found


def _mus_of_reports(
    config: Config, budgets: Budgets, records: NDArray[np.int64], tell: Tell
) -> NDArray[np.float64]:
    """Return how far each client's report may move, in noise scales, shape (clients,)."""
    found, level = _solved_reports(config, budgets.epsilon, int(records[0]), tell)
    return found.moves[level]


def beside_a_jump(config: Config, totals: NDArray[np.float64], records: int) -> NDArray[np.bool_]:
    """Return which clients of shuffled reports would exceed their total by far with any less noise:
    a theorem then begins to hide them from nobody. `records` are those of each client."""
    found, level = _solved_reports(config, totals, records, silent)
    return found.at_jump[level]


def _solved_reports(
    config: Config, wanted: NDArray[np.float64], records: int, tell: Tell
) -> tuple[SolvedReports, NDArray[np.int64]]:
    """Return what is solved for reports of each level of totals, and the level of each client."""
    privacy, share = config.privacy, config.training.participation
    solved = solved_totals(config, wanted)
    totals, level, counts = np.unique(solved, return_inverse=True, return_counts=True)
    present = counts
    if share < 1.0:
        rare = 0.5 * FAILURE_PROBABILITY / (config.run.rounds * (len(totals) + 1))
        # A client that reports is there itself.
        present = np.array([max(1, surely(count, share, rare)) for count in counts.tolist()])
    averaged = privacy.unit == "record" and config.clipping == "record"
    asked = PlannedReports(
        noise=privacy.randomizer,
        totals=tuple(totals.tolist()),
        batch=(records if averaged else 1,) * len(totals),
        counts=tuple(counts.tolist()),
        present=tuple(present.tolist()),
        rounds=reports_of_a_client(config, len(wanted)),
        delta=privacy.target_delta,
        absent=absent_reports(config, int(present.sum())),
        honest=privacy.assumed_honest,
        unit=privacy.unit,
        clipping=privacy.personalization == "clipping",
    )
    return solved_reports(asked, tell), level.reshape(-1)


def reports_of_a_client(config: Config, clients: int) -> int:
    """Return how many reports a client is planned to send in the run; where clients are drawn, it
    is drawn for more with probability FAILURE_PROBABILITY / 2 at most."""
    rounds = rounds_taken(config.run.rounds, config.training.participation, clients)
    return rounds * config.privacy.reports_per_round


def solved_totals(config: Config, totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what the noise is solved for, shape (clients,): `totals`, or fewer, smaller ones.

    Of shuffled reports the accountant tells at most `MAX_BALLS_TOLD_APART` sizes apart, and charges
    each client the largest of its size. More totals are rounded down to this number of levels: to
    those whose smallest ratio of level and total is the largest. With a given ratio the fewest
    levels are those from the smallest total upwards, each the first total that the one before does
    not cover.
    """
    values = np.unique(totals)
    if not searched(config) or len(values) <= MAX_BALLS_TOLD_APART:
        return totals

    def levels(ratio: float) -> list[float]:
        found, place = [], 0
        while place < len(values):
            found.append(float(values[place]))
            place = int(np.searchsorted(values, values[place] * ratio, side="right"))
        return found

    low, high = 1.0, float(values[-1] / values[0])
    # 40 halvings: the ratio is then as exact as the totals are.
    for _ in range(40):
        middle = math.sqrt(low * high)
        enough = len(levels(middle)) <= MAX_BALLS_TOLD_APART
        low, high = (low, middle) if enough else (middle, high)
    known = np.array(levels(high))
    return known[np.searchsorted(known, totals, side="right") - 1]


def solved_words(config: Config, totals: NDArray[np.float64]) -> str:
    """Return what rounding totals down to levels costs, in words; empty where nothing is
    rounded."""
    lost = 1.0 - solved_totals(config, totals) / totals
    if not lost.any():
        return ""
    levels = len(np.unique(solved_totals(config, totals)))
    return (
        f"reports tell {levels} sizes apart, so totals are rounded down to {levels} levels: "
        f"{int((lost > 0.0).sum()):,} clients give up {lost[lost > 0.0].mean():.1%} of their total "
        f"on average, {lost.max():.1%} at most"
    )


def _counted_reports(honest: int, ball: float) -> float:
    """Return how many reports' noise `honest` reports on their grids count for, at least 1.

    A report of scale s on a grid of step g counts s^2 - (2 c g)^2, c = `GRID_SMOOTHING`, but a
    client's own always counts s^2. The grid follows from the largest clip: if f reports count, that
    is `ball` sqrt(f) noise scales. More noise allows larger clips, which need coarser grids, so f
    is the largest number with f <= honest (1 - (2 c g(f) / s)^2).
    """

    def fits(counted: float) -> bool:
        step = coarsest_step(ball * math.sqrt(counted))
        return counted <= honest * (1.0 - (2.0 * GRID_SMOOTHING * step) ** 2)

    low, high = 1.0, float(honest)
    # 60 halvings: the bracket is as small as a float's last digits; `low` fits, or is 1.
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def planned_reports(config: Config) -> int:
    """Return the number of reports of a round that totals are planned for.

    A round of fewer than `privacy.min_reports` is never released.
    """
    share = config.budgets.expected_share
    if share is None:
        share = EXPECTED * config.training.participation
    return max(config.privacy.min_reports, _share_of(share, config.data.clients))


def expected_reports(config: Config, asked: int) -> int:
    """Return how many of the reports that a round asks for are expected to arrive."""
    share = config.budgets.expected_share
    arriving = EXPECTED if share is None else min(1.0, share / config.training.participation)
    return min(asked, max(config.privacy.min_reports, _share_of(arriving, asked)))


def absent_reports(config: Config, asked: int) -> int:
    """Return how many honest ones of the reports that a round asks for may be absent."""
    if against_everybody(config):
        return 0
    assumed = config.privacy.assumed_honest
    arriving = expected_reports(config, asked)
    return honest_reports(assumed, asked) - honest_reports(assumed, arriving)


def _share_of(share: float, clients: int) -> int:
    """Return a share of 0.93 of 100 clients is 93 of them, whatever the product rounds to."""
    return math.floor(share * clients * (1.0 + 1e-12))


def _require_solvable(config: Config, budgets: Budgets, records: NDArray[np.int64]) -> None:
    """Refuse totals for which no noise is solved for, with the reason."""
    privacy = config.privacy
    unsolved = {
        "privacy.randomizer": (
            privacy.randomizer,
            _unsolved_randomizer(
                privacy.randomizer,
                summed=privacy.release == "sum" and not against_everybody(config),
            ),
        ),
        "privacy.calibration": (
            privacy.calibration,
            "must be analytic with totals: the noise of a report is solved for exactly"
            * (privacy.calibration != "analytic"),
        ),
        "training.schedule": (
            config.training.schedule,
            "must be aggregate with totals: only whole rounds are planned"
            * (config.training.schedule == "sequential" and not against_everybody(config)),
        ),
    }
    for setting, (value, reason) in unsolved.items():
        if reason:
            remedy = "or give budgets of one report (budgets.of = 'report')"
            raise InvalidValueError(setting, value, reason, remedy)
    if against_everybody(config):
        return
    several = (
        config.clipping == "record" and privacy.unit == "record" and len(np.unique(records)) > 1
    )
    if privacy.release == "reports":
        if several:
            raise InvalidValueError(
                "privacy.unit", privacy.unit,
                f"must be client with totals of the run and clients of {records.min():,} to "
                f"{records.max():,} records: shuffled reports of several sizes are not solved for",
                "give all clients equally many records, or release sums (privacy.release = 'sum')",
            )  # fmt: skip
        return
    if privacy.personalization == "clipping":
        return
    low, high = float(budgets.epsilon.min()), float(budgets.epsilon.max())
    if low != high or several:
        differ = f"totals from {low:g} to {high:g}"
        if low == high:
            differ = f"clients of {records.min():,} to {records.max():,} records"
        raise InvalidValueError(
            "privacy.personalization", privacy.personalization,
            f"must be clipping with {differ}: the noise of a sum hides all clients equally, so "
            "noise scales cannot give each client its own epsilon",
            "set privacy.personalization = 'clipping'",
        )  # fmt: skip


def _unsolved_randomizer(name: str, *, summed: bool) -> str:
    """Return why totals are not solved for with this randomizer; empty where they are."""
    if name == "gaussian" or (name == "laplace" and not summed):
        return ""
    if name == "declared":
        return "adds no noise here, so there is none to solve for: clients' own training decides"
    if name == "laplace":
        return "must be gaussian with totals: sums of Laplace reports have no closed form"
    if name.startswith("discrete-"):
        return "must be gaussian with totals: discrete noise is calibrated for one report alone"
    return (
        "is user-defined: its distribution is unknown, so nothing can be solved for; use gaussian"
    )

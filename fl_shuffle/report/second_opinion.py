"""A client's epsilons by dp-accounting alone: a few lines of Python to paste, and their results.

The lines hold what the ledger says of the client: its noise, how far one replaced unit moves its
report, how many of its reports were released, and how much noise lay on each sum with one of them.
Everything else is Google's dp-accounting, which shares no code with this package.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fl_shuffle._internal.plugins import installed
from fl_shuffle.accounting.bounds.sum_release.honest import honest_reports
from fl_shuffle.accounting.client_classes import AS_GAUSSIAN, DISCRETE_GAUSSIAN, ClientClass
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.accounting.rounds.threat_model import ThreatModel
from fl_shuffle.errors import NotApplicableError
from fl_shuffle.report.history import spend_history
from fl_shuffle.report.record import RunRecord

PAIRS_PER_LINE = 3
"""Sums of different noise that stand in one line of the printed text."""
PLD = "from dp_accounting.pld import privacy_loss_distribution as pld"


@dataclass(frozen=True)
class SecondOpinion:
    """One client's local and sum epsilon, to be computed by dp-accounting.

    Parameters
    ----------
    run : RunRecord
        The run.
    client : int
        The client's number in the ledger.
    """

    run: RunRecord
    client: int

    def __post_init__(self) -> None:
        if self.own.noise == "none":
            raise NotApplicableError(
                f"{self.run.directory} protects nobody (privacy.randomizer = 'none'): there is no "
                "epsilon to check"
            )

    @property
    def own(self) -> ClientClass:
        """The client's randomizer."""
        return self.run.classes[int(self.run.class_of[self.client])]

    @property
    def is_gaussian(self) -> bool:
        """Whether the client's reports compose as Gaussian mechanisms do."""
        return self.own.noise in ("gaussian", *AS_GAUSSIAN)

    @property
    def move(self) -> float:
        """How far replacing one unit moves the client's report, as a norm."""
        return min(self.own.sensitivity, 2.0 * self.own.radius)

    @cached_property
    def columns(self) -> dict[str, float]:
        """This package's epsilons of the client (nats, at the run's delta), by column."""
        history = spend_history(self.run, np.array([self.client]))
        if not len(history.round_numbers):
            return dict.fromkeys(history.columns, 0.0)
        return {name: float(values[-1, 0]) for name, values in history.columns.items()}

    @property
    def ours(self) -> dict[str, float]:
        """The same in the columns that are checked."""
        # Of a sum of Laplace noise dp-accounting has no closed form.
        checked = ("local", "sum") if self.is_gaussian else ("local",)
        return {name: self.columns[name] for name in checked if name in self.columns}

    @cached_property
    def sums(self) -> list[tuple[float, int]]:
        """Standard deviation of the noise of a sum with a report of the client -> number of sums.

        It is that of the reports that hide the client: its own, and the assumed number of honest
        others with the smallest noise.
        """
        trust, scales = (
            ThreatModel.of(self.run.config),
            ClassTable.of(self.run.classes).hiding_scale,
        )
        found: Counter[float] = Counter()
        for _, present, unusable in self.run.attempts:
            if present[self.client]:
                squares = scales[self.run.class_of[present]] ** 2
                honest = honest_reports(trust.assumed_honest, squares.size) - unusable
                own = float(scales[self.run.class_of[self.client]] ** 2)
                rest = np.sort(squares)
                rest = np.delete(rest, np.searchsorted(rest, own))[: max(1, honest) - 1]
                found[math.sqrt(own + math.fsum(rest.tolist()))] += trust.reports_per_round
        return sorted(found.items())

    @property
    def reports(self) -> int:
        """How many reports of the client were released."""
        times = ThreatModel.of(self.run.config).reports_per_round
        return times * sum(bool(present[self.client]) for _, present, _ in self.run.attempts)

    def lines(self) -> list[str]:
        """Return the Python lines, which define `local` and, where it can be checked, `summed`."""
        command = f"fl-shuffle ledger {shlex.quote(str(self.run.directory))} --client {self.client}"
        head = [f"# {command} --check", f"delta = {self.run.delta!r}"]
        if not self.reports:
            return [*head, "local = summed = 0.0  # no report of this client was released"]
        return [*head, *self._local(), *(self._summed() if "sum" in self.ours else ())]

    def printing(self) -> str:
        """Return the line after them that prints what they define."""
        names = {"local": "local", "sum": "summed"}
        return f"print({', '.join(f'{name!r}, {names[name]}' for name in self.ours)})"

    def _local(self) -> Iterator[str]:
        own, reports = self.own, f"reports = {self.reports}"
        if own.noise == "user":
            yield "from dp_accounting.pld.common import DifferentialPrivacyParameters as Budget"
            yield PLD
            yield f"{reports}  # each with the declared budget (epsilon0, delta0)"
            yield f"one = pld.from_privacy_parameters(Budget({own.epsilon0!r}, {own.delta0!r}))"
            yield "local = one.self_compose(reports).get_epsilon_for_delta(delta)"
            return
        discrete = ", as good as the client's discrete noise" * (own.noise == DISCRETE_GAUSSIAN)
        kind = "standard deviation" if self.is_gaussian else "scale"
        yield "from dp_accounting import get_epsilon_gaussian" if self.is_gaussian else PLD
        yield f"scale = {own.hiding_scale!r}  # {kind} of the noise of a report{discrete}"
        yield f"move = {self.move!r}  # how far one replaced {self._unit} moves a report"
        yield f"{reports}  # that were released"
        if self.is_gaussian:
            yield "mu = move / scale * reports ** 0.5"
            yield "local = get_epsilon_gaussian(1 / mu, delta)"
        else:
            yield "one = pld.from_laplace_mechanism(scale, sensitivity=move)"
            yield "local = one.self_compose(reports).get_epsilon_for_delta(delta)"

    def _summed(self) -> Iterator[str]:
        pairs = [f"({deviation!r}, {times})" for deviation, times in self.sums]
        yield "sums = [  # (standard deviation of the noise of a sum, how many such sums)"
        for start in range(0, len(pairs), PAIRS_PER_LINE):
            yield f"    {', '.join(pairs[start : start + PAIRS_PER_LINE])},"
        yield "]"
        yield "mu = sum(times * (move / noise) ** 2 for noise, times in sums) ** 0.5"
        yield "summed = get_epsilon_gaussian(1 / mu, delta)"

    @property
    def _unit(self) -> str:
        return str(self.run.config["privacy"]["unit"])

    def theirs(self) -> dict[str, float]:
        """Return what the lines compute with dp-accounting; empty where that is not installed."""
        if not installed("dp_accounting"):
            return {}
        found: dict[str, Any] = {}
        # The text is this class's own: numbers of a ledger, each written by `repr` of a float.
        exec("\n".join(self.lines()), found)
        names = {"local": "local", "sum": "summed"}
        return {name: float(found[names[name]]) for name in self.ours}

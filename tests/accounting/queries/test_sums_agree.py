"""One setting, one number: what `bound` of a question or a plan and a run say of sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.bounds.sum_release.honest import AssumedHonest
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.accounting.queries.vector_methods import report_classes
from fl_shuffle.accounting.reports import ReportClass
from fl_shuffle.accounting.rounds.events import client_class
from fl_shuffle.accounting.rounds.trust import Trust

DELTA = 1e-6


@dataclass(frozen=True)
class Setting:
    """Budgets as (epsilon0, clients); `absent`: clients of the first of them that never report."""

    randomizer: str
    budgets: tuple[tuple[float, int], ...]
    rounds: int = 3
    unit: str = "client"
    records: int = 1
    assumed_honest: AssumedHonest = None
    absent: int = 0

    @property
    def arrived(self) -> list[LocalBudget]:
        delta0 = 0.0 if self.randomizer == "laplace" else 1e-5
        (first, count), *more = self.budgets
        shown = [(first, count - self.absent), *more]
        return [LocalBudget(epsilon0, delta0, number) for epsilon0, number in shown]


SETTINGS = {
    "gaussian, some honest": Setting("gaussian", ((0.5, 30), (2.0, 70)), 3, "record", 9, 0.3),
    "gaussian, absent": Setting("gaussian", ((0.5, 30), (2.0, 70)), 3, "record", 9, absent=12),
    "laplace, very few": Setting("laplace", ((0.5, 4),)),
    "laplace, personal scales": Setting("laplace", ((0.3, 50), (0.6, 900))),
    "laplace, some honest": Setting("laplace", ((0.5, 90),), assumed_honest=60),
    "laplace, absent": Setting("laplace", ((0.5, 60),), absent=10),
}


def of_a_run(setting: Setting, classes: list[ReportClass]) -> float:
    """The headline of a run whose reports have unknown dimension, after its last round."""
    counts = [kind.count for kind in classes]
    counts[0] += setting.absent
    class_of = np.repeat(np.arange(len(classes)), counts)
    present = np.arange(len(class_of)) >= setting.absent
    account = Accountant(
        [client_class(kind) for kind in classes],
        class_of,
        unit=setting.unit,
        schedule="aggregate",
        delta=DELTA,
        trust=Trust(release="sum", assumed_honest=setting.assumed_honest),
    )
    spend = None
    for number in range(1, setting.rounds + 1):
        spend = account.preview(number, present)
        account.commit(number, present)
    assert spend is not None
    totals = account.client_totals().headline
    assert float(totals.max()) == pytest.approx(spend.headline, rel=1e-9)
    worst = account.worst_client()
    assert worst is not None and worst.epsilon == pytest.approx(spend.headline, rel=1e-9)
    return spend.headline


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_every_command_says_the_same(setting: Setting) -> None:
    query = Question(
        method="sum",
        randomizer=setting.randomizer,
        budgets=tuple(setting.arrived),
        delta=DELTA,
        rounds=setting.rounds,
        unit=setting.unit,
        records=setting.records,
        calibration="analytic",
        release="sum",
        assumed_honest=setting.assumed_honest,
    )
    classes = report_classes(query, "")
    run = of_a_run(setting, classes)
    asked = bound(query).epsilon
    if setting.absent and setting.randomizer == "laplace":
        # The account of a run that expected more may round the shuffled batch down.
        assert asked <= run * (1 + 1e-9) < 1.1 * asked
    else:
        assert run == pytest.approx(asked, rel=1e-8)
    # The two questions of one answer.
    back = bound(replace(query, delta=None, epsilon=asked)).delta
    assert 0.5 * DELTA < back <= DELTA * (1 + 1e-6)

"""Random federations with totals, whose clients are absent at random: nobody is above its total."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass

import numpy as np
import pytest

from fl_shuffle._internal.arrays import Mask, Vector
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.allowed import allowed_round, exceeding
from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.sections import Config
from fl_shuffle.randomizers.calibration import Calibration, make_plan
from fl_shuffle.randomizers.total_budgets import absent_reports
from tests.randomizers.test_total_budgets import configured, totals_of

FEDERATIONS = int(os.environ.get("FL_SHUFFLE_FEDERATIONS", "4"))
"""Random federations to play; 60 take hours."""
FEW = FEDERATIONS < 10
"""Whether federations are small, and of few rounds."""
RECORD = os.environ.get("FL_SHUFFLE_FEDERATIONS_FILE")
"""A file that gets a line for each federation."""


@dataclass
class Played:
    """What a federation has spent."""

    rounds: int
    left_out: int
    totals: Vector
    spent: Vector


@dataclass
class Federation:
    """A random one: its settings follow from the seed."""

    config: Config
    totals: Vector
    often: Vector
    """How probable it is that each client reports in a round."""
    words: str

    @classmethod
    def of(cls, seed: int) -> Federation:
        rng = np.random.default_rng(1000 + seed)
        release = ("sum", "reports")[seed % 2]
        personalization = ("clipping", "noise")[seed // 2 % 2]
        shape = ("two", "three", "all different")[seed // 4 % 3]
        summed, small = release == "sum", FEW and release == "reports"
        clients = int(np.exp(rng.uniform(math.log(50), math.log(300 if small else 5000))))
        rounds = int(np.exp(rng.uniform(0.0, math.log(4 if small else 101))))
        share = float(rng.uniform(0.7, 1.0))
        config = configured(
            clients, rounds, {"expected_share": share}, release=release,
            personalization=personalization,
        )  # fmt: skip
        totals = totals_of(shape, clients, rng)
        if summed and personalization == "noise":
            # Noise of a sum hides all alike: only equal totals are allowed.
            shape, totals = "one", np.full(clients, totals[0])
        common = np.full(clients, rng.uniform(share - 0.1, 1.0))
        often = common if seed % 3 else rng.uniform(2.0 * share - 1.0, 1.0, clients)
        words = f"{clients} {rounds} {release} {shape} {personalization} share {share:.2f}"
        return cls(config, totals, often, words)

    def plan(self) -> Calibration:
        ones = np.ones(len(self.totals), dtype=np.int64)
        return make_plan(self.config, Budgets(self.totals, 0.0 * ones, of="run"), ones)


def played(federation: Federation, plan: Calibration, rng: np.random.Generator) -> Played:
    """As a run does: who would exceed is left out before a round, and a batch that would take a
    client above its total is not released."""
    config, totals = federation.config, federation.totals
    account = Accountant.of(config.to_dict(), plan.classes, plan.class_of, 10)
    everybody = np.ones(len(totals), dtype=bool)

    def absent(clients: Mask) -> int:
        return absent_reports(config, int(np.count_nonzero(clients)))

    left_out = number = 0
    spent = np.zeros(len(totals))
    for number in range(1, config.run.rounds + 1):
        asked = allowed_round(account, number, everybody, totals, absent).present
        left_out += int((~asked).sum())
        arrived = asked & (rng.random(len(totals)) < federation.often)
        if arrived.sum() < config.privacy.min_reports:
            break
        preview = account.preview(number, arrived)
        if exceeding(preview, totals).any():
            break
        account.commit(preview)
        spent = preview.client_epsilons()
    else:
        number += 1
    return Played(number - 1, left_out, totals, spent)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FEDERATIONS))
def test_random_absences_take_nobody_above_its_total(seed: int) -> None:
    federation = Federation.of(seed)
    started = time.process_time()
    plan = federation.plan()
    planned = time.process_time() - started
    found = played(federation, plan, np.random.default_rng(seed))
    ratio = found.spent / found.totals
    rounds = federation.config.run.rounds
    line = (
        f"{seed}: {federation.words}: {found.rounds} of {rounds} rounds, {found.left_out} left out,"
        f" ratio {ratio.min():.4f} {np.median(ratio):.4f} {ratio.max():.4f}, CPU {planned:.0f} + "
        f"{time.process_time() - started - planned:.0f} s"
    )
    print(line, flush=True)
    if RECORD:
        with open(RECORD, "a") as file:
            file.write(line + "\n")
    assert ratio.max() <= 1.0 and (found.rounds == 0 or ratio.max() > 0.0)

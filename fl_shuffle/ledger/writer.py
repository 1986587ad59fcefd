"""Writing a run's ledger: the accountant's numbers, durable before any release."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.configuration.sections import Config
from fl_shuffle.ledger.state_file import store_state
from fl_shuffle.ledger.store import Ledger

Mask = NDArray[np.bool_]

# A checkpoint is written at most this often: it only saves time after a crash, never privacy.
CHECKPOINT_SECONDS = 5.0


class LedgerWriter:
    """Reserve, commit, checkpoint: what the strategy tells, and the budgets it must obey.

    `privacy.target_epsilon` bounds the worst client's headline epsilon, that of the column which
    matches what is released; `lifetime` (shape [clients], inf where there is none) bounds each
    client's own: a client whose next report would exceed it stops taking part. A round of a seeded
    run that is repeated after a crash releases the same bits: a late checkpoint costs no privacy
    there. In a sequential round every report is used as it comes: it counts as released once it is
    reserved.
    """

    def __init__(
        self,
        accountant: Accountant,
        ledger: Ledger,
        config: Config,
        lifetime: NDArray[np.float64] | None = None,
    ) -> None:
        self.accountant = accountant
        self.ledger = ledger
        self._target = config.privacy.target_epsilon
        self._lifetime = lifetime
        self._seeded = config.run.entropy == "seeded"
        self._sequential = config.training.schedule == "sequential"
        self._last_checkpoint = -np.inf
        self._expected = 0
        self.seconds = 0.0
        """What accounting and writing have taken."""

    def reserve(self, round_number: int, participants: Mask) -> Mask | None:
        """See `fl_shuffle.flower.strategy.RoundLedger.reserve`."""
        started = time.perf_counter()
        allowed = self._within_lifetime(round_number, participants)
        self._expected = int(np.count_nonzero(allowed))
        planned = self.accountant.preview(round_number, allowed)
        too_much = self._too_much(planned, allowed)
        if not self._expected or too_much:
            spent = "no client may take part: lifetime budgets are spent"
            why = f"it would cost {too_much}" if too_much else spent
            self._stop(round_number, f"round {round_number} is not played: {why}")
            return None
        at_once = allowed if self._sequential else None
        self.ledger.reserve(round_number, self._expected, planned.headline, at_once)
        self.seconds += time.perf_counter() - started
        return allowed

    def commit(self, round_number: int, present: Mask) -> Spend | None:
        """See `fl_shuffle.flower.strategy.RoundLedger.commit`."""
        started = time.perf_counter()
        self.accountant.trust.require(round_number, int(np.count_nonzero(present)))
        spend = self.accountant.preview(round_number, present)
        too_much = self._too_much(spend, present)
        if too_much:
            arrived = f"only {spend.n_reports} reports arrived in round {round_number}"
            why = f"{arrived}; releasing them would cost {too_much}: thrown away"
            self._stop(round_number, why)
            return None
        counts, listed = self.accountant.class_counts(present), spend.columns["local"].epsilon
        self.ledger.record(spend, {i: int(counts[i]) for i in listed if counts[i]}, present)
        self.accountant.commit(round_number, present)
        if spend.n_reports < self._expected:
            lost = self._expected - spend.n_reports
            self.ledger.note(round_number, "dropped", f"{lost} clients sent no usable report")
        if not self._seeded:
            # What follows is the release: the file must know of it first.
            self.ledger.flush()
        self.seconds += time.perf_counter() - started
        return spend

    def _stop(self, round_number: int, why: str) -> None:
        self.ledger.note(round_number, "stopped", why)
        self.ledger.flush()

    def checkpoint(self, round_number: int, state: Mapping[str, Any]) -> None:
        """See the state that `fl_shuffle.flower.strategy.RoundLedger.record` is given."""
        now = time.monotonic()
        if self._seeded and now - self._last_checkpoint < CHECKPOINT_SECONDS:
            return
        self._last_checkpoint = now
        self.ledger.checkpoint(round_number, store_state(self.ledger.path.parent, state))

    def _too_much(self, spend: Spend, present: Mask) -> str:
        """Which budget this would exceed, in words; empty if none."""
        if self._target is not None and not spend.headline <= self._target:
            worst = f"{spend.headline:.6g} (column {spend.headline_column})"
            return f"the worst client {worst}, above the target {self._target}"
        over = self._over_lifetime(spend.round_number, present).any()
        return "a client more than its lifetime budget" if over else ""

    def _within_lifetime(self, round_number: int, participants: Mask) -> Mask:
        if self._lifetime is None:
            return participants
        allowed = participants.copy()
        while True:
            # Fewer reports hide each client less: ask again until nobody else must leave.
            leaving = self._over_lifetime(round_number, allowed)
            if not leaving.any():
                break
            allowed &= ~leaving
        out = int(participants.sum() - allowed.sum())
        if out:
            spent = f"{out} clients have spent their lifetime budget"
            self.ledger.note(round_number, "lifetime", spent)
        return allowed

    def _over_lifetime(self, round_number: int, present: Mask) -> Mask:
        """Which of these clients this round would bring above their lifetime budget."""
        if self._lifetime is None:
            return np.zeros_like(present)
        epsilon = self.accountant.client_epsilons_after(round_number, present)
        return np.asarray(present & ~(epsilon <= self._lifetime))

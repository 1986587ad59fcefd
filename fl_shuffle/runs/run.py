"""An open run: what its strategy asks and tells of every round, its ledger and other files."""

from __future__ import annotations

import math
import shlex
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.declare import json_ready
from fl_shuffle.durable_files import open_private, replace_file
from fl_shuffle.errors import PrivacyBudgetError, RunError, RunInterrupted, first_line
from fl_shuffle.ledger import LEDGER, METRICS
from fl_shuffle.ledger.reader import LedgerRecord, RunView
from fl_shuffle.ledger.state_file import store_state
from fl_shuffle.ledger.store import Ledger, create_ledger
from fl_shuffle.runs import events, resume
from fl_shuffle.runs.directory import CONFIG, MODEL, SUMMARY, RunDirectory, RunPlace, log
from fl_shuffle.runs.display import FlowerLog
from fl_shuffle.runs.facts import RunFacts
from fl_shuffle.runs.views import (
    metrics_line,
    metrics_of,
    quantiles_of,
    summary_of,
    summary_with,
)

Mask = NDArray[np.bool_]

# A checkpoint is written at most this often: it only saves time after a crash, never privacy.
CHECKPOINT_SECONDS = 5.0


class Run:
    """An open run directory: the `RoundLedger` of a `ShuffleStrategy`. Build with `open_run`.

    `privacy.target_epsilon` bounds the worst client's headline epsilon, that of the column which
    matches what is released; the facts' `lifetime` (shape [clients], inf where there is none)
    bounds each client's own: a client whose next report would exceed it stops taking part. A round
    of a seeded run that is repeated after a crash releases the same bits: a late checkpoint costs
    no privacy there. In a sequential round every report is used as it comes: it counts as released
    once it is reserved. `known` is what the ledger of a run that goes on holds; None for a new one.
    """

    def __init__(
        self,
        directory: RunDirectory,
        facts: RunFacts,
        ledger: Ledger,
        accountant: Accountant,
        observer: events.Observer,
        known: LedgerRecord | None = None,
    ) -> None:
        self.config = config = facts.config
        self.facts = facts
        self.ledger = ledger
        self.accountant = accountant
        self.run = ledger.run
        self.rounds = 0
        """The number of the last round that was played; 0 before there is one."""
        self.first_round = 1 if known is None else known.first_round
        self.counted: int | None = None
        """The round, if any, whose reports were counted before the run was stopped, and from which
        no step was taken: it is neither reserved nor counted again."""
        self.seconds = 0.0
        """What accounting and writing have taken."""
        self._known = known
        self._directory = directory
        self._observer = observer
        self._seeded = events.publishes_times(config)
        self._lifetime = facts.lifetime
        self._started = time.time()
        self._last_checkpoint = -math.inf
        self._expected = 0
        self._columns: tuple[str, ...] = ()
        self._lines: IO[str] = StringIO()  # until `restore` has made the file
        self._spend: Spend | None = None
        self._counted: Mask | None = None
        self._met = set[int]()
        directory.write(CONFIG, resume.as_text(config.to_dict()))

    def reserve(self, round_number: int, participants: Mask) -> Mask | None:
        """See `fl_shuffle.flower.strategy.RoundLedger.reserve`."""
        if self._counted is not None and round_number == self.counted:
            return self._counted.copy()
        started = time.perf_counter()
        allowed = self._within_lifetime(round_number, participants)
        self._expected = int(np.count_nonzero(allowed))
        self._tell_of_new(round_number, allowed)
        planned = self.accountant.preview(round_number, allowed)
        too_much = self._too_much(planned, allowed)
        if not self._expected or too_much:
            spent = "no client may take part: lifetime budgets are spent"
            why = f"it would cost {too_much}" if too_much else spent
            self._stop(round_number, f"round {round_number} is not played: {why}")
            return None
        at_once = allowed if self.config.training.schedule == "sequential" else None
        self.ledger.reserve(round_number, self._expected, planned.headline, at_once)
        self.seconds += time.perf_counter() - started
        return allowed

    def commit(self, round_number: int, present: Mask) -> Spend | None:
        """See `fl_shuffle.flower.strategy.RoundLedger.commit`. Raises `RunError` for a counted
        round that has other reports now."""
        if self._counted is not None and round_number == self.counted:
            if np.array_equal(present, self._counted):
                return self._spend
            raise RunError(
                f"the shuffler's batch of round {round_number} holds other clients' reports than "
                "the ledger has counted; put the run's own ledger back"
            )
        started = time.perf_counter()
        self.accountant.trust.require(round_number, int(np.count_nonzero(present)))
        self._tell_of_new(round_number, present)
        spend = self.accountant.preview(round_number, present)
        too_much = self._too_much(spend, present)
        if too_much:
            arrived = f"only {spend.n_reports} reports arrived in round {round_number}"
            why = f"{arrived}; releasing them would cost {too_much}: thrown away"
            self._stop(round_number, why)
            return None
        self.ledger.record(spend, self._listed_counts(spend, present), present)
        self.accountant.commit(round_number, present)
        if spend.n_reports < self._expected:
            lost = self._expected - spend.n_reports
            self.ledger.note(round_number, "dropped", f"{lost} clients sent no usable report")
        if not self._seeded:
            # What follows is the release: the file must know of it first.
            self.ledger.flush()
        self.seconds += time.perf_counter() - started
        return spend

    def amend(self, round_number: int, present: Mask, unusable: int) -> tuple[Spend, str]:
        """See `fl_shuffle.flower.strategy.RoundLedger.amend`."""
        started = time.perf_counter()
        self.accountant.take_back()
        spend = self.accountant.preview(round_number, present, unusable)
        too_much = self._too_much(spend, present, unusable)
        counts = self._listed_counts(spend, present)
        if self.ledger.amend(spend, counts, present, unusable):
            text = f"{unusable} of {spend.n_reports} clients sent a report that cannot be used"
            self.ledger.note(round_number, "unusable", f"{text}: such reports hide nobody")
        self.accountant.commit(round_number, present, unusable)
        self.ledger.flush()
        self.seconds += time.perf_counter() - started
        return spend, too_much

    def _tell_of_new(self, round_number: int, present: Mask) -> None:
        """Tell whoever watches of a round whose like was not met: its cost may take seconds."""
        counts = hash(self.accountant.class_counts(present).tobytes())
        if counts not in self._met:
            self._met.add(counts)
            self._observer(events.Certifying(f"certifying what round {round_number} costs ..."))

    def _listed_counts(self, spend: Spend, present: Mask) -> dict[int, int]:
        """Class -> reports, of the classes that are written down one by one."""
        counts = self.accountant.class_counts(present)
        return {i: int(counts[i]) for i in spend.columns["local"].epsilon if counts[i]}

    def record(self, outcome: events.RoundOutcome, state: dict[str, Any] | None) -> None:
        """See `fl_shuffle.flower.strategy.RoundLedger.record`; tells whoever watches."""
        seconds = outcome.seconds if self._seeded else None
        row = self.ledger.record_metrics(outcome.round_number, outcome.metrics, seconds)
        now = time.monotonic()
        due = not self._seeded or now - self._last_checkpoint >= CHECKPOINT_SECONDS
        if state is not None and due:
            self._last_checkpoint = now
            kept = store_state(self._directory.path, state)
            self.ledger.checkpoint(outcome.round_number, kept)
        self._lines.write(metrics_line(row, self._columns))
        self._lines.flush()
        self.rounds, self._spend = outcome.round_number, outcome.spend
        self._observer(events.RoundFinished(replace(outcome, row=row)))

    def restore(self, optimizer: ServerOptimizer) -> None:
        """Put a resumed run's optimizer and accountant back; `counted` is known from here on."""
        known, first = self._known, self.first_round
        if known is None:
            self._rewrite(RunView(self._directory.path))
            return
        spend, counted = resume.restore(known, self.accountant, optimizer)
        self._rewrite(known, before=first)
        if spend is not None:
            self.rounds, self._spend = first - 1, spend
            # A batch that waits at a remote shuffler is the one that was counted; any other is
            # lost, and the round is reserved and counted anew.
            if counted is not None and self.config.privacy.shuffler == "apart":
                self.counted, self._counted = first, counted
        said = resume.replays(known)
        log.info("resuming at round %d%s", first, f": {said}" if said else "")
        if said:
            self._observer(events.Preparing(f"going on at round {first}: {said}"))

    def _rewrite(self, view: RunView, before: float = math.inf) -> None:
        """Have metrics.csv say what the ledger does of rounds before this one."""
        self._columns = view.columns
        self._directory.write(METRICS, metrics_of(view, before))
        self.close()
        self._lines = open_private(self._directory.path / METRICS, "a")

    def close(self) -> None:
        """Close metrics.csv: each of its lines is written already."""
        self._lines.close()

    def announce(self, notes: list[tuple[str, str]]) -> None:
        """The warnings, in the log and once in the ledger; then tell whoever watches. `notes`
        (kind, text) are those of a run that goes on."""
        facts = self.facts
        warnings = (*facts.warnings, *(text for kind, text in notes if kind == "warning"))
        if self._known is None:
            notes = facts.notes(sums=self.accountant.sums_are_bounded)
        for text in warnings:
            log.warning(text)
        for kind, text in notes:
            self.ledger.note(0, kind, text)
        self._try_summary()
        # Of clients that declare their training budgets do not act.
        budgets = facts.budgets.words() if self.config.privacy.randomizer != "declared" else ""
        self._observer(
            events.RunStarted(self._directory.path, self.config, warnings, facts.noise, budgets)
        )

    def finish(
        self, model: Mapping[str, Tensor], stopped_early: str | None, *, failed: bool = False
    ) -> None:
        """Save the model and the summary, and close the ledger's books.

        `failed` says that the run trained nothing, or spent without learning.
        """
        folder = self._directory.path
        _save_model(folder / MODEL, model)
        started = time.perf_counter()
        self._observer(events.Certifying("counting what every client has spent ..."))
        totals = self.accountant.client_totals()
        attacks = self.accountant.lower_columns() if self.rounds else {}
        self.seconds += time.perf_counter() - started
        columns = {} if self._spend is None else {**self._spend.columns, **attacks}
        outcome = {
            "stopped_early": stopped_early,
            "failed": failed,
            "epsilon_quantiles": json_ready(quantiles_of(totals)),
            "columns": {
                name: {"status": str(column.status), "source": column.source, "note": column.note}
                for name, column in columns.items()
            },
            "accounting_seconds": self.seconds if self._seeded else None,
            "seconds": time.time() - self._started if self._seeded else None,
        }
        finished = datetime.now(UTC).isoformat() if self._seeded else None
        facts = {"outcome": outcome, "finished": finished}
        self.ledger.finish(totals, self.rounds, attacks, facts)
        view = RunView(folder)
        summary = summary_of(view)
        self._rewrite(view)
        self._directory.write(SUMMARY, resume.as_text(summary))
        resume.forget_data(self.run)
        self._observer(events.RunFinished(summary))

    def _try_summary(self) -> None:
        """Make the summary of a run without rounds, before one is paid for: what fails there would
        fail at the end."""
        ends: dict[str, Any] = {
            "stopped_early": None,
            "failed": False,
            "epsilon_quantiles": {},
            "columns": {},
        }
        times = {"accounting_seconds": None, "seconds": None}
        resume.as_text(summary_with(RunView(self._directory.path), {**ends, **times}))

    def _stop(self, round_number: int, why: str) -> None:
        self.ledger.note(round_number, "stopped", why)
        self.ledger.flush()

    def _too_much(self, spend: Spend, present: Mask, unusable: int = 0) -> str:
        """Which budget this would exceed, in words; empty if none."""
        target = self.config.privacy.target_epsilon
        if target is not None and not spend.headline <= target:
            worst = f"{spend.headline:.6g} (column {spend.headline_column})"
            return f"the worst client {worst}, above the target {target}"
        over = self._over_lifetime(spend.round_number, present, unusable).any()
        return "a client more than its lifetime budget" if over else ""

    def _within_lifetime(self, round_number: int, participants: Mask) -> Mask:
        allowed = participants.copy()
        while (leaving := self._over_lifetime(round_number, allowed)).any():
            # Fewer reports hide each client less: ask again until nobody else must leave.
            allowed &= ~leaving
        out = int(participants.sum() - allowed.sum())
        if out:
            spent = f"{out} clients have spent their lifetime budget"
            self.ledger.note(round_number, "lifetime", spent)
        return allowed

    def _over_lifetime(self, round_number: int, present: Mask, unusable: int = 0) -> Mask:
        """Which of these clients this round would bring above their lifetime budget."""
        if self._lifetime is None:
            return np.zeros_like(present)
        epsilon = self.accountant.client_epsilons_after(round_number, present, unusable)
        return np.asarray(present & ~(epsilon <= self._lifetime))


def saved_tensors(model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model as it is saved: what names share, as tied weights do, each has for itself.

    Raises `RunError` for what no model file holds.
    """
    for name, values in model.items():
        if not isinstance(values, Tensor):
            raise RunError(
                f"the model's state_dict() holds {name!r}, a {type(values).__name__}: a model file "
                "holds tensors alone; leave it out of the state (get_extra_state)"
            )
    return {name: values.detach().cpu().clone().contiguous() for name, values in model.items()}


def try_saving(model: Mapping[str, Tensor]) -> None:
    """Raise `RunError` where the model could not be saved, before a round is paid for."""
    from safetensors.torch import save

    tensors = saved_tensors(model)
    try:
        save(tensors)
    except Exception as error:  # whatever the library says of a name or a type
        raise RunError(
            f"the model cannot be saved: {type(error).__name__}: {first_line(error)}; change the "
            "names or types in its state_dict()"
        ) from None


@contextmanager
def open_run(
    facts: RunFacts, place: RunPlace, accountant: Accountant, observer: events.Observer
) -> Iterator[Run]:
    """Create the run's directory, or go on with the unfinished run in it, and open it.

    Everything that can be refused was refused before this point, so nothing is left half-written.
    Raises `RunError` if the directory is taken, in use, or cannot be gone on with.
    """
    known, notes, seeded = None, [], events.publishes_times(facts.config)
    flwr = isinstance(observer, FlowerLog)
    directory = RunDirectory.at(place, Path(facts.config.run.out), flwr=flwr)
    try:
        if place.goes_on:
            known = resume.unfinished_ledger(directory.path, flwr=flwr)
            notes = resume.require_same(known, facts, place, directory.lock)
        else:
            meta, plan = facts.for_ledger(), facts.plan
            # Before the ledger: a run that has begun can always be compared.
            resume.remember_data(meta["run"], facts.fingerprint)
            create_ledger(directory.path / LEDGER, meta, plan.classes, plan.class_of)
        ledger = Ledger(directory.path / LEDGER, directory.lock, replayed=seeded)
        if known is not None and known.config != facts.config.to_dict():
            ledger.set_meta("config", facts.config.to_dict())
        command = _resuming(directory.path, facts, place, observer)
        with (
            directory.logging(times=seeded), _can_go_on(command), closing(ledger),
            closing(Run(directory, facts, ledger, accountant, observer, known)) as run,
        ):  # fmt: skip
            run.announce(notes)
            yield run
    except KeyboardInterrupt:
        # Also while the accounting is set up: the run has begun once its ledger is there.
        path = directory.path
        if not (path / LEDGER).exists():
            raise
        raise RunInterrupted(path, note=resume.replays(LedgerRecord(path))) from None
    finally:
        directory.close()


@contextmanager
def _can_go_on(command: str) -> Iterator[None]:
    """Say how, when a run may not go on or a file of it cannot be written."""
    try:
        yield
    except PrivacyBudgetError as error:
        raise PrivacyBudgetError(f"{error}; go on with: {command}") from None
    except (OSError, sqlite3.Error) as error:
        raise RunError(
            f"the run stopped: {error}; when that is mended go on with: {command}"
        ) from error


def _save_model(path: Path, model: Mapping[str, Tensor]) -> None:
    """Put a model's file in its place; raises `OSError`, as for every other file of a run."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = saved_tensors(model)
    try:
        replace_file(path, lambda unfinished: save_file(tensors, unfinished))
    except SafetensorError as error:  # what it makes of a disk that is full
        raise OSError(f"{path} cannot be written: {error}") from None


def _resuming(path: Path, facts: RunFacts, place: RunPlace, observer: events.Observer) -> str:
    """The command that goes on with the run, where it is played; data that the server does not
    have cannot be compared."""
    vouched = facts.fingerprint is None
    if isinstance(observer, FlowerLog):
        return place.flwr_run(path, vouched=vouched)
    return f"fl-shuffle simulate --resume {shlex.quote(str(path))}" + " --data-unchanged" * vouched

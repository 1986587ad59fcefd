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
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fl_shuffle._internal.arrays import Mask
from fl_shuffle._internal.durable_files import open_private, replace_file
from fl_shuffle.accounting.accountant import Accountant, Preview
from fl_shuffle.accounting.allowed import allowed_round, exceeding
from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.errors import PrivacyBudgetError, RunError, RunInterrupted, first_line
from fl_shuffle.ledger import LEDGER, METRICS
from fl_shuffle.ledger.reader import LedgerRecord, RunView
from fl_shuffle.ledger.state_file import store_state
from fl_shuffle.ledger.store import Ledger, create_ledger
from fl_shuffle.randomizers.total_budgets import absent_reports
from fl_shuffle.runs import events, resume
from fl_shuffle.runs.console_messages import LEFT_OUT
from fl_shuffle.runs.directory import (
    CONFIG,
    MODEL,
    SUMMARY,
    RunDirectory,
    RunPlace,
    checkpoint_name,
    log,
)
from fl_shuffle.runs.display import FlowerLog
from fl_shuffle.runs.facts import RunFacts
from fl_shuffle.runs.views import (
    as_text,
    metrics_line,
    metrics_of,
    quantiles_of,
    summary_of,
    summary_text,
    summary_with,
)
from fl_shuffle.settings_schema import json_ready

# A checkpoint is written at most this often: it only saves time after a crash, never privacy.
CHECKPOINT_SECONDS = 5.0


class Run:
    """An open run directory: the `RoundLedger` of a `ShuffleStrategy`. Build with `open_run`.

    `privacy.target_epsilon` bounds the most exposed client's headline epsilon, that of the column
    which matches what is released; the facts' `lifetime` (shape [clients], inf where there is none)
    bounds each client's own: a client whose next report would exceed it stops taking part. A round
    of a seeded run that is repeated after a crash releases the same bits: a late checkpoint costs
    no privacy there. In a sequential round every report is used as it comes: it counts as released
    once it is reserved. `known` is what the ledger of a resumed run holds; None for a new one. Once
    a run is made, `accountant` counts, and metrics.csv holds, what was released before.
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
        self.seconds = 0.0
        """What accounting and writing have taken."""
        self._directory = directory
        self._observer = observer
        self._seeded = events.publishes_times(config)
        self._lifetime = facts.lifetime
        self._started = time.time()
        self._last_checkpoint = -math.inf
        self._expected = 0
        self._spend: Spend | None = None
        self._counted: Mask | None = None
        self._planned: Preview | None = None
        self._met = set[int]()
        self.resumed = resume.Resumed() if known is None else self._resume(known)
        """Where the run begins."""
        self.first_round = first = self.resumed.round
        view = RunView(directory.path) if known is None else known
        self._metrics = MetricsFile(directory, view, math.inf if known is None else first)

    def reserve(self, round_number: int, participants: Mask) -> Mask | None:
        """See `fl_shuffle.flower.strategy.RoundLedger.reserve`."""
        if self._counted is not None and round_number == self.resumed.counted:
            return self._counted.copy()
        started = time.perf_counter()
        self._planned = planned = self._within_lifetime(round_number, participants)
        allowed = planned.present.copy()
        self._expected = int(np.count_nonzero(allowed))
        self._tell_of_new(round_number, allowed)
        too_much = self._too_much(planned)
        if not self._expected or too_much:
            spent = f"every client would exceed its {self.facts.budgets.limit}"
            why = f"it would cost {too_much}" if too_much else spent
            self._stop(round_number, f"round {round_number} is not played: {why}")
            return None
        at_once = allowed if self.config.training.schedule == "sequential" else None
        self.ledger.reserve(round_number, self._expected, planned.spend.headline, at_once)
        self.seconds += time.perf_counter() - started
        return allowed

    def commit(self, round_number: int, present: Mask) -> Spend | None:
        """See `fl_shuffle.flower.strategy.RoundLedger.commit`. Raises `RunError` for a counted
        round that has other reports now."""
        if self._counted is not None and round_number == self.resumed.counted:
            if np.array_equal(present, self._counted):
                return self._spend
            raise RunError(
                f"the shuffler's batch of round {round_number} holds other clients' reports than "
                "the ledger has counted; put the run's own ledger back"
            )
        started = time.perf_counter()
        self.accountant.threat_model.require(round_number, int(np.count_nonzero(present)))
        self._tell_of_new(round_number, present)
        preview = self._planned
        if preview is None or not preview.is_of(round_number, present):
            preview = self.accountant.preview(round_number, present)
        spend, too_much = preview.spend, self._too_much(preview)
        if too_much:
            arrived = f"only {spend.num_reports} reports arrived in round {round_number}"
            why = f"{arrived}; releasing them would cost {too_much}: thrown away"
            self._stop(round_number, why)
            return None
        self.ledger.record(spend, present)
        self.accountant.commit(preview)
        if spend.num_reports < self._expected:
            lost = self._expected - spend.num_reports
            self.ledger.note(round_number, "dropped", f"{lost} clients sent no usable report")
        if not self._seeded:
            # What follows is the release: the file must know of it first.
            self.ledger.flush()
        self.seconds += time.perf_counter() - started
        return spend

    def amend(self, round_number: int, present: Mask, unusable: int) -> tuple[Spend, str]:
        """See `fl_shuffle.flower.strategy.RoundLedger.amend`."""
        started = time.perf_counter()
        # A shuffler that is asked again may name fewer: the cost is that of the most.
        unusable = max(unusable, self.ledger.unusable(round_number))
        self.accountant.take_back()
        preview = self.accountant.preview(round_number, present, unusable)
        spend, too_much = preview.spend, self._too_much(preview)
        if self.ledger.amend(spend, present, unusable):
            text = f"{unusable} of {spend.num_reports} clients sent a report that cannot be used"
            self.ledger.note(round_number, "unusable", f"{text}: such reports hide nobody")
        self.accountant.commit(preview)
        self.ledger.flush()
        self.seconds += time.perf_counter() - started
        return spend, too_much

    def _tell_of_new(self, round_number: int, present: Mask) -> None:
        """Tell the observer about a round of a new kind: computing its cost may take seconds."""
        counts = hash(self.accountant.class_counts(present).tobytes())
        if counts not in self._met:
            self._met.add(counts)
            self._observer(events.Certifying(f"certifying what round {round_number} costs ..."))

    def record(self, outcome: events.RoundOutcome, state: dict[str, Any] | None) -> None:
        """See `fl_shuffle.flower.strategy.RoundLedger.record`; tells the observer."""
        seconds = outcome.seconds if self._seeded else None
        row = self.ledger.record_metrics(outcome.round_number, outcome.metrics, seconds)
        now = time.monotonic()
        last = outcome.round_number == self.config.run.rounds
        # After the last round, too: added rounds start there.
        due = not self._seeded or last or now - self._last_checkpoint >= CHECKPOINT_SECONDS
        if state is not None and due:
            self._last_checkpoint = now
            kept = store_state(self._directory.path, state)
            self.ledger.checkpoint(outcome.round_number, kept)
        self._metrics.add(row)
        self.rounds, self._spend = outcome.round_number, outcome.spend
        self._observer(events.RoundFinished(replace(outcome, row=row)))

    def keep_model(self, round_number: int, model: Mapping[str, Tensor]) -> None:
        """Save the model after a round beside the run's other files, for its owner alone.

        The ledger is made durable first: it must not say less than the files beside it.
        """
        self.ledger.flush()
        _save_model(self._directory.path / checkpoint_name(round_number), model)

    def _resume(self, known: LedgerRecord) -> resume.Resumed:
        """Count what was released before; returns where the run continues."""
        state, first = resume.optimizer_state(known, self.facts.dimension), known.first_round
        spend, counted = resume.released_before(known, self.accountant)
        if spend is not None:
            self.rounds, self._spend = first - 1, spend
            # A batch that waits at a remote shuffler is the one that was counted; any other is
            # lost, and the round is reserved and counted anew.
            if counted is not None and self.config.privacy.shuffler == "separate":
                self._counted = counted
        said = resume.replays(known)
        log.info("resuming at round %d%s", first, f": {said}" if said else "")
        if said:
            self._observer(events.Preparing(f"going on at round {first}: {said}"))
        counted_round = None if self._counted is None else first
        return resume.Resumed(first, state, counted_round, resume.planned_rounds(known))

    def close(self) -> None:
        """Close metrics.csv: each of its lines is written already."""
        self._metrics.close()

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
        attacks = self.accountant.lower_bounds() if self.rounds else {}
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
        self._metrics.close()
        self._metrics = MetricsFile(self._directory, view)
        self._directory.write(SUMMARY, summary_text(summary))
        self._observer(events.RunFinished(summary))

    def _stop(self, round_number: int, why: str) -> None:
        self.ledger.note(round_number, "stopped", why)
        self.ledger.flush()

    def _too_much(self, preview: Preview) -> str:
        """Return which budget this would exceed, in words; empty if none."""
        spend, target = preview.spend, self.config.privacy.target_epsilon
        if target is not None and not spend.headline <= target:
            worst = f"{spend.headline:.6g} (column {spend.headline_column})"
            return f"the most exposed client {worst}, above the target {target}"
        over = exceeding(preview, self._lifetime).any()
        return f"a client more than its {self.facts.budgets.limit}" if over else ""

    def _within_lifetime(self, round_number: int, participants: Mask) -> Preview:
        """Return the round with those of the participants who may take part."""
        preview = allowed_round(
            self.accountant, round_number, participants, self._lifetime, self._absent
        )
        out = int(participants.sum() - preview.present.sum())
        if out:
            self.ledger.note(round_number, LEFT_OUT, _left_out(out, self.facts.budgets.limit))
        return preview

    def _absent(self, asked: Mask) -> int:
        """Return how many honest reports of these clients are planned not to arrive.

        Totals are planned for absent clients. A round that is asked for as if all arrive would be
        thrown away, and the run stopped, where some do not and one client would exceed its total.
        """
        if self.facts.budgets.of == "report":
            return 0
        return absent_reports(self.config, int(np.count_nonzero(asked)))


class MetricsFile:
    """metrics.csv of a run: what the ledger has of rounds before the one it begins with, and a line
    for every round that is added."""

    def __init__(self, directory: RunDirectory, view: RunView, before: float = math.inf) -> None:
        self._columns = view.columns
        directory.write(METRICS, metrics_of(view, before))
        self._lines = open_private(directory.path / METRICS, "a")

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a round's line, at once."""
        self._lines.write(metrics_line(row, self._columns))
        self._lines.flush()

    def close(self) -> None:
        """Write nothing more."""
        self._lines.close()


def announce(
    facts: RunFacts,
    directory: RunDirectory,
    observer: events.Observer,
    ledger: Ledger,
    notes: list[tuple[str, str]],
) -> None:
    """Write the `notes` (kind, text) into the ledger, and all warnings into the log; then tell
    the observer that the run has started."""
    own = (text for kind, text in notes if kind == "warning" and text not in facts.warnings)
    warnings = (*facts.warnings, *own)
    for text in warnings:
        log.warning(text)
    for kind, text in notes:
        ledger.note(0, kind, text)
    _try_summary(directory)
    words = facts.config, warnings, facts.noise, facts.budget_words
    observer(events.RunStarted(directory.path, *words))


def _try_summary(directory: RunDirectory) -> None:
    """Make the summary of a run without rounds, before one is paid for: what fails there would
    fail at the end."""
    ends: dict[str, Any] = {
        "stopped_early": None,
        "failed": False,
        "epsilon_quantiles": {},
        "columns": {},
    }
    times = {"accounting_seconds": None, "seconds": None}
    summary_text(summary_with(RunView(directory.path), {**ends, **times}))


def _left_out(clients: int, limit: str) -> str:
    """Return how many clients a round is played without, and why, in words."""
    who, they, own = f"{clients:,} clients are", "they", "their"
    if clients == 1:
        who, they, own = "1 client is", "it", "its"
    return f"{who} left out, because {they} could exceed {own} {limit} with this round"


def saved_tensors(model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model as it is saved: what names share, as tied weights do, each has for itself.

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
    """Create the run's directory, or continue the unfinished run in it, and open it.

    Everything that can be refused was refused before this point, so nothing is left half-written.
    Raises `RunError` if the directory is taken, in use, or cannot be continued.
    """
    known, notes, seeded = None, [], events.publishes_times(facts.config)
    flwr = isinstance(observer, FlowerLog)
    directory = RunDirectory.at(place, Path(facts.config.run.out), flwr=flwr)
    try:
        if place.goes_on:
            rounds = facts.config.run.rounds
            known = resume.continued_ledger(directory.path, rounds, flwr=flwr)
            notes = resume.require_same(known, facts, place, directory.lock)
            notes += resume.upgraded(known)
        else:
            meta, plan = facts.for_ledger(), facts.plan
            # Before the ledger: a run that has begun can always be compared.
            resume.remember_data(meta["run"], facts.fingerprint)
            create_ledger(directory.path / LEDGER, meta, plan.classes, plan.class_of)
        ledger = Ledger(directory.path / LEDGER, directory.lock, replayed=seeded)
        if known is not None and known.config != facts.config.to_dict():
            ledger.change_settings(facts.config.to_dict())
        command = _resuming(directory.path, facts, place, observer)
        with (
            directory.logging(times=seeded), _can_go_on(command), closing(ledger),
        ):  # fmt: skip
            directory.write(CONFIG, as_text(facts.config.to_dict()))
            if known is None:
                notes = facts.notes(sums=accountant.sums_are_bounded)
            if known is not None and known.finished:
                # The summary goes first: no moment must show one that says less than the ledger.
                (directory.path / SUMMARY).unlink(missing_ok=True)
                ledger.reopen()
            announce(facts, directory, observer, ledger, notes)
            ledger.flush()
            with closing(Run(directory, facts, ledger, accountant, observer, known)) as run:
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
        raise PrivacyBudgetError(f"{error}; continue with: {command}") from None
    except (OSError, sqlite3.Error) as error:
        raise RunError(
            f"the run stopped: {error}; fix the cause, then continue with: {command}"
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
    """Return the command that resumes the run where it is executed; data that the server does not
    have cannot be compared."""
    vouched = facts.fingerprint is None
    if isinstance(observer, FlowerLog):
        return place.flwr_run(path, vouched=vouched)
    return f"fl-shuffle simulate --resume {shlex.quote(str(path))}" + " --data-unchanged" * vouched

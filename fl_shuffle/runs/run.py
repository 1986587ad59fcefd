"""An open run: what its strategy asks and tells of every round, its ledger and other files."""

from __future__ import annotations

import shlex
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.declare import json_ready
from fl_shuffle.durable_files import replace_file
from fl_shuffle.errors import PrivacyBudgetError, RunError, RunInterrupted
from fl_shuffle.ledger import LEDGER, METRICS
from fl_shuffle.ledger.reader import LedgerRecord, RunView
from fl_shuffle.ledger.store import Ledger
from fl_shuffle.ledger.tables import as_csv, columns_with
from fl_shuffle.ledger.writer import LedgerWriter, Mask
from fl_shuffle.runs import resume
from fl_shuffle.runs.data_check import STATE_VARIABLE, forget_data, remember_data, state_folder
from fl_shuffle.runs.directory import (
    CONFIG,
    MODEL,
    SUMMARY,
    RunDirectory,
    RunPlace,
    log,
)
from fl_shuffle.runs.display import FlowerLog
from fl_shuffle.runs.events import (
    Observer,
    Preparing,
    RoundFinished,
    RoundOutcome,
    RunFinished,
    RunStarted,
    publishes_times,
    unobserved,
)
from fl_shuffle.runs.facts import RunFacts
from fl_shuffle.runs.views import quantiles_of, summary_of


class Run(LedgerWriter):
    """An open run directory: the `RoundLedger` of a `ShuffleStrategy`. Build with `open_run`."""

    def __init__(
        self,
        directory: RunDirectory,
        facts: RunFacts,
        ledger: Ledger,
        accountant: Accountant,
        observer: Observer,
    ) -> None:
        config = facts.config
        super().__init__(accountant, ledger, config, facts.lifetime)
        self.config = config
        self.facts = facts
        self.known: LedgerRecord | None = None
        """What the ledger of a run that goes on holds; None for a new one."""
        self.rounds = 0
        """The number of the last round that was played; 0 before there is one."""
        self.first_round = 1
        self.run = str(ledger.meta()["run"])
        """The run's random identifier, the same when it goes on."""
        self._times = publishes_times(config)
        self._directory = directory
        self._observer = observer
        self._started = time.time()
        self._columns = columns_with(facts.metrics)
        self._spend: Spend | None = None
        self._counted: tuple[int, Mask, Spend] | None = None
        directory.write(CONFIG, resume.as_text(config.to_dict()))
        self._metrics = directory.append(METRICS)

    @property
    def counted(self) -> int | None:
        """The round, if any, whose reports were counted before the run was stopped, and from which
        no step was taken: it is neither reserved nor counted again."""
        return None if self._counted is None else self._counted[0]

    def reserve(self, round_number: int, participants: Mask) -> Mask | None:
        """See `fl_shuffle.flower.strategy.RoundLedger.reserve`."""
        if self._counted is not None and round_number == self._counted[0]:
            return self._counted[1].copy()
        allowed = super().reserve(round_number, participants)
        self._directory.witness(self.run, self.ledger.entries)
        return allowed

    def commit(self, round_number: int, present: Mask) -> Spend | None:
        """See `fl_shuffle.flower.strategy.RoundLedger.commit`. Raises `RunError` for a counted
        round that has other reports now."""
        if self._counted is None or round_number != self._counted[0]:
            spend = super().commit(round_number, present)
            self._directory.witness(self.run, self.ledger.entries)
            return spend
        if not np.array_equal(present, self._counted[1]):
            raise RunError(
                f"the shuffler's batch of round {round_number} holds other clients' reports than "
                "the ledger has counted; put the run's own ledger back"
            )
        return self._counted[2]

    def record(self, outcome: RoundOutcome, state: dict[str, Any] | None) -> None:
        """See `fl_shuffle.flower.strategy.RoundLedger.record`; tells whoever watches."""
        seconds = outcome.seconds if self._times else None
        self.ledger.record_metrics(outcome.round_number, outcome.metrics, seconds)
        if state is not None:
            self.checkpoint(outcome.round_number, state)
        self._metrics.write(as_csv(self._columns, [{**outcome.row, "seconds": seconds}]))
        self._metrics.flush()
        self.rounds, self._spend = outcome.round_number, outcome.spend
        self._observer(RoundFinished(outcome))

    def restore(self, optimizer: ServerOptimizer) -> None:
        """Put a resumed run's optimizer and accountant back; `first_round` and `counted` are known
        from here on."""
        known = self.known
        if known is None:
            self._metrics.write(",".join(self._columns) + "\n")
            return
        note = resume.require_newest(self._directory, known)
        if note:
            self.ledger.note(0, "resumed", note)
        self.first_round = first = known.first_round
        spend, counted = resume.restore(known, self.accountant, optimizer)
        self._rewrite(known.metrics_text(before=first))
        if spend is not None:
            self.rounds, self._spend = first - 1, spend
            # A batch that waits at a remote shuffler is the one that was counted; any other is
            # lost, and the round is reserved and counted anew.
            if counted is not None and self.config.privacy.shuffler == "apart":
                self._counted = (first, counted, spend)
        said = resume.replays(known)
        log.info("resuming at round %d%s", first, f": {said}" if said else "")
        if said:
            self._observer(Preparing(f"going on at round {first}: {said}"))

    def _rewrite(self, metrics: str) -> None:
        """Have metrics.csv hold this text, and go on behind it."""
        self._metrics.close()
        self._directory.write(METRICS, metrics)
        self._metrics = self._directory.append(METRICS)

    def announce(self, *, checked: bool) -> None:
        """The warnings, in the log and once in the ledger; then tell whoever watches. `checked`:
        whether the data of a run that goes on could be compared."""
        unchecked, new = () if checked else (resume.UNCHECKED,), self.known is None
        warnings = (*self.facts.warnings, *unchecked)
        noise, warned = self.facts.noise
        noise = "" if warned else noise
        notes = [("warning", text) for text in (warnings if new else unchecked)]
        if new:
            notes += [("assumption", text) for text in self.facts.assumptions]
            notes += [("noise", noise)] * bool(noise)
        for text in warnings:
            log.warning(text)
        for kind, text in notes:
            self.ledger.note(0, kind, text)
        self._observer(RunStarted(self._directory.path, self.config, warnings, noise))

    def finish(
        self, model: Mapping[str, Tensor], stopped_early: str | None, *, failed: bool = False
    ) -> None:
        """Save the model and the summary, and close the ledger's books.

        `failed` says that the run trained nothing, or spent without learning.
        """
        from safetensors.torch import save_file

        folder = self._directory.path
        tensors = {name: tensor.contiguous() for name, tensor in model.items()}
        replace_file(folder / MODEL, lambda path: save_file(tensors, path))
        started = time.perf_counter()
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
            "accounting_seconds": self.seconds if self._times else None,
            "seconds": time.time() - self._started if self._times else None,
        }
        finished = datetime.now(UTC).isoformat() if self._times else None
        facts = {"outcome": outcome, "finished": finished}
        self.ledger.finish(totals, self.rounds, attacks, facts)
        view = RunView(folder)
        summary = summary_of(view)
        self._rewrite(view.metrics_text())
        self._directory.write(SUMMARY, resume.as_text(summary))
        forget_data(self.run)
        self._directory.no_witness()
        self._observer(RunFinished(summary))

    def close(self) -> None:
        """Flush and close every file."""
        try:
            self._metrics.close()
        finally:
            self.ledger.close()


@contextmanager
def open_run(
    facts: RunFacts, place: RunPlace, accountant: Accountant, observer: Observer = unobserved
) -> Iterator[Run]:
    """Create the run's directory, or go on with the unfinished run in it, and open it.

    Everything that can be refused was refused before this point, so nothing is left half-written.
    Raises `RunError` if the directory is taken, in use, or cannot be gone on with.
    """
    config, known, checked = facts.config, None, True
    directory = RunDirectory.at(place, Path(config.run.out))
    try:
        if place.goes_on:
            known = resume.unfinished_ledger(directory.path)
            changes = resume.changes_of(directory.path, parse_config(known.config), config)
            vouched = place.resume == "data-unchanged"
            checked = resume.require_same(directory.path, known, facts, vouched=vouched)
            ledger = Ledger.open(directory.path / LEDGER)
            for change in changes:
                ledger.note(0, "changed", change)
            if changes:
                ledger.set_meta("config", config.to_dict())
            ledger.flush()
        else:
            ledger = _start(directory, facts)
        command = _resuming(directory.path, facts, observer)
        with directory.logging(times=publishes_times(config)), _can_go_on(command):
            if config.run.entropy == "seeded":
                ledger.outlive_the_process_only()
            run = Run(directory, facts, ledger, accountant, observer)
            run.known = known
            try:
                run.announce(checked=checked)
                yield run
            finally:
                run.close()
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


def _resuming(path: Path, facts: RunFacts, observer: Observer) -> str:
    """The command that goes on with the run, where it is played; data that the server does not
    have cannot be compared."""
    vouched = facts.fingerprint is None
    if isinstance(observer, FlowerLog):
        how = "data-unchanged" if vouched else "yes"
        return f"""flwr run . --run-config "run-directory='{path}' resume='{how}'\""""
    return f"fl-shuffle simulate --resume {shlex.quote(str(path))}" + " --data-unchanged" * vouched


def _start(directory: RunDirectory, facts: RunFacts) -> Ledger:
    meta = facts.for_ledger()
    # Before the ledger: a run that has begun can always be compared.
    if facts.fingerprint is not None and not remember_data(meta["run"], facts.fingerprint):
        log.warning(
            "%s cannot be written: --resume will not be able to check that the data are the same; "
            "set %s to a folder that can",
            state_folder(),
            STATE_VARIABLE,
        )
    return Ledger.create(directory.path / LEDGER, meta, facts.plan.classes, facts.plan.class_of)

"""An open run: what its strategy asks and tells of every round, its ledger and other files."""

from __future__ import annotations

import json
import shlex
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.events import Column, Spend
from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import PrivacyBudgetError, RunError, RunInterrupted
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.ledger.store import Ledger
from fl_shuffle.ledger.writer import LedgerWriter
from fl_shuffle.runs.data_check import (
    STATE_VARIABLE,
    forget_data,
    remember_data,
    state_folder,
)
from fl_shuffle.runs.directory import (
    CONFIG,
    LEDGER,
    MODEL,
    SUMMARY,
    RunDirectory,
)
from fl_shuffle.runs.display import FlowerLog
from fl_shuffle.runs.events import (
    Observer,
    Preparing,
    RoundFinished,
    RunFinished,
    RunStarted,
    unobserved,
)
from fl_shuffle.runs.facts import (
    RunFacts,
    assumptions_of,
    finished_at,
    ledger_meta,
    lifetimes,
    noise_of,
    warnings_of,
)
from fl_shuffle.runs.log import log, logging_to
from fl_shuffle.runs.metrics import MetricsFile
from fl_shuffle.runs.outcome import RoundOutcome, publishes_times
from fl_shuffle.runs.place import RunPlace
from fl_shuffle.runs.resume import (
    UNCHECKED,
    as_text,
    changes_of,
    replays,
    require_newest,
    require_same,
    restore,
    unfinished_ledger,
)
from fl_shuffle.runs.views import RunView, quantiles_of

Mask = NDArray[np.bool_]


class Run(LedgerWriter):
    """An open run directory: the `RoundLedger` of a `ShuffleStrategy`. Build with `open_run`."""

    def __init__(
        self,
        directory: RunDirectory,
        config: Config,
        facts: RunFacts,
        ledger: Ledger,
        accountant: Accountant,
        *,
        known: LedgerRecord | None,
        observer: Observer,
    ) -> None:
        """`known` is what the ledger of a run that goes on holds; None for a new one."""
        super().__init__(accountant, ledger, config, lifetimes(config, facts))
        self.config = config
        self.facts = facts
        self.warnings = warnings_of(config, facts)
        self._times = publishes_times(config)
        self._directory = directory
        self._known = known
        self._observer = observer
        self._started = time.time()
        self._metrics = MetricsFile(directory, facts.metrics, times=self._times)
        self._last: RoundOutcome | None = None
        self._counted: tuple[int, Mask, Spend] | None = None
        self.first_round = 1
        self.run = str(ledger.meta()["run"])
        """The run's random identifier, the same when it goes on."""

    @property
    def rounds(self) -> int:
        """The number of the last round that was played; 0 before there is one."""
        return 0 if self._last is None else self._last.round_number

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

    def commit(self, round_number: int, present: Mask, seconds: float) -> Spend | None:
        """See `fl_shuffle.flower.strategy.RoundLedger.commit`. Raises `RunError` for a counted
        round that has other reports now."""
        if self._counted is None or round_number != self._counted[0]:
            spend = super().commit(round_number, present, seconds)
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
        self._metrics.write(outcome)
        self._last = outcome
        self._observer(RoundFinished(outcome))

    def restore(self, optimizer: ServerOptimizer) -> None:
        """Put a resumed run's optimizer and accountant back; `first_round` and `counted` are known
        from here on."""
        if self._known is None:
            return
        saved = self.ledger.load_checkpoint()
        note = require_newest(self._directory, self._known, 0 if saved is None else saved[0])
        if note:
            self.ledger.note(0, "resumed", note)
        point = restore(self.config, self.ledger, self.accountant, optimizer)
        view = RunView(self._directory.path)
        self._metrics.rewrite(view.metrics_text(before=point.first))
        if point.spend is not None:
            metrics = view.metrics.get(point.first - 1, {})
            self._last = RoundOutcome(point.first - 1, point.spend, 0, 0.0, metrics)
            # A batch that waits at a remote shuffler is the one that was counted; any other is
            # lost, and the round is reserved and counted anew.
            if point.committed is not None and self.config.privacy.shuffler == "apart":
                self._counted = (point.first, point.committed, point.spend)
        said = replays(self._directory.path)
        log.info("resuming at round %d%s", point.first, f": {said}" if said else "")
        if said:
            self._observer(Preparing(f"going on at round {point.first}: {said}"))
        self.first_round = point.first

    def announce(self, *, new: bool, checked: bool) -> None:
        """The warnings, in the log and once in the ledger; then tell whoever watches."""
        fresh = self.warnings if new else ()
        if not checked:
            self.warnings += (UNCHECKED,)
            fresh += (UNCHECKED,)
        for text in self.warnings:
            log.warning(text)
        for text in fresh:
            self.ledger.note(0, "warning", text)
        for text in assumptions_of(self.config, self.facts) if new else ():
            self.ledger.note(0, "assumption", text)
        noise, warned = noise_of(self.config, self.facts)
        noise = "" if warned else noise
        if new and noise:
            self.ledger.note(0, "noise", noise)
        self._observer(RunStarted(self._directory.path, self.config, self.warnings, noise))

    def finish(
        self, model: Mapping[str, Tensor], stopped_early: str | None, *, failed: bool = False
    ) -> None:
        """Save the model and the summary, and close the ledger's books.

        `failed` says that the run trained nothing, or spent without learning.
        """
        from safetensors.torch import save_file

        tensors = {name: tensor.contiguous() for name, tensor in model.items()}
        self._directory.replace(MODEL, lambda path: save_file(tensors, path))
        attacks = self.close_books(self.rounds)
        self.ledger.set_meta("outcome", self._outcome(stopped_early, failed, attacks))
        self.ledger.set_meta("finished", finished_at(self.config))
        self.ledger.finish()
        view = RunView(self._directory.path)
        summary = view.summary()
        self._metrics.rewrite(view.metrics_text())
        self._directory.write(SUMMARY, as_text(summary))
        forget_data(self.run)
        self._directory.no_witness()
        self._observer(RunFinished(summary))

    def _outcome(
        self, stopped_early: str | None, failed: bool, attacks: Mapping[str, Column]
    ) -> dict[str, Any]:
        """What the ledger's other tables do not say of a run that is over."""
        totals, times = self.accountant.client_totals(), self._times
        each = {"proven": totals.proven, "sum": totals.sum, "local": totals.local}
        columns = {} if self._last is None else {**self._last.spend.columns, **attacks}
        return {
            "stopped_early": stopped_early,
            "failed": failed,
            "epsilon_quantiles": quantiles_of(each),
            "columns": {
                name: {"status": str(column.status), "source": column.source, "note": column.note}
                for name, column in columns.items()
            },
            "accounting_seconds": self.seconds if times else None,
            "seconds": time.time() - self._started if times else None,
        }

    def close(self) -> None:
        """Flush and close every file."""
        try:
            self._metrics.close()
        finally:
            self.ledger.close()


@contextmanager
def open_run(
    config: Config,
    facts: RunFacts,
    place: RunPlace,
    accountant: Accountant,
    observer: Observer = unobserved,
) -> Iterator[Run]:
    """Create the run's directory, or go on with the unfinished run in it, and open it.

    Everything that can be refused was refused before this point, so nothing is left half-written.
    Raises `RunError` if the directory is taken, in use, or cannot be gone on with.
    """
    directory = _directory(config, place)
    known, checked = None, True
    try:
        if place.goes_on:
            known = unfinished_ledger(directory.path)
            changes = changes_of(directory.path, parse_config(known.meta["config"]), config)
            vouched = place.resume == "data-unchanged"
            checked = require_same(directory.path, known, facts, vouched=vouched)
            ledger = Ledger.open(directory.path / LEDGER)
            _write_down(ledger, directory, config, changes)
        else:
            ledger = _start(directory, config, facts)
        with logging_to(directory, times=publishes_times(config)):
            if config.run.entropy == "seeded":
                ledger.outlive_the_process_only()
            run = Run(directory, config, facts, ledger, accountant, known=known, observer=observer)
            with _can_go_on(_resuming(directory.path, facts, observer)):
                try:
                    run.announce(new=not place.goes_on, checked=checked)
                    yield run
                finally:
                    run.close()
    except KeyboardInterrupt:
        # Also while the accounting is set up: the run has begun once its ledger is there.
        if not (directory.path / LEDGER).exists():
            raise
        raise RunInterrupted(directory.path, note=replays(directory.path)) from None
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


def _directory(config: Config, place: RunPlace) -> RunDirectory:
    if place.directory is None:
        return RunDirectory.create(Path(config.run.out))
    if place.goes_on:
        return RunDirectory.reopen(place.directory)
    return RunDirectory.claim(place.directory)


def _write_down(
    ledger: Ledger, directory: RunDirectory, config: Config, changes: Sequence[str]
) -> None:
    """What changes when a run goes on: in its ledger, and in config.json, which may be lost."""
    for change in changes:
        ledger.note(0, "changed", change)
    if changes:
        ledger.set_meta("config", config.to_dict())
    ledger.flush()
    directory.write(CONFIG, _config_text(config))


def _config_text(config: Config) -> str:
    return json.dumps(config.to_dict(), indent=2) + "\n"


def _start(directory: RunDirectory, config: Config, facts: RunFacts) -> Ledger:
    directory.write(CONFIG, _config_text(config))
    meta = ledger_meta(config, facts)
    # Before the ledger: a run that has begun can always be compared.
    if facts.fingerprint is not None and not remember_data(meta["run"], facts.fingerprint):
        log.warning(
            "%s cannot be written: --resume will not be able to check that the data are the same; "
            "set %s to a folder that can",
            state_folder(),
            STATE_VARIABLE,
        )
    return Ledger.create(directory.path / LEDGER, meta, facts.plan.classes, facts.plan.class_of)

"""An open run: its ledger, accountant and files, from the first round to the summary."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.accounting.rounds.trust import Trust
from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import PrivacyBudgetError, RunError, RunInterrupted
from fl_shuffle.flower.strategy import RoundOutcome
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.ledger.run_book import RunBook
from fl_shuffle.ledger.store import Ledger
from fl_shuffle.runs.data_check import (
    STATE_VARIABLE,
    forget_data,
    remember_data,
    state_folder,
)
from fl_shuffle.runs.directory import (
    CONFIG,
    LEDGER,
    METRICS,
    MODEL,
    SUMMARY,
    RunDirectory,
)
from fl_shuffle.runs.events import (
    Observer,
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
    publishes_times,
    warnings_of,
)
from fl_shuffle.runs.log import log, logging_to
from fl_shuffle.runs.metrics import ALWAYS, MetricsFile, read_lines
from fl_shuffle.runs.place import RunPlace
from fl_shuffle.runs.resume import (
    UNCHECKED,
    as_text,
    changes_of,
    lines_to_keep,
    require_agreement,
    require_same,
    restore,
    unfinished_ledger,
)
from fl_shuffle.runs.summary import summarize


class Run:
    """An open run directory. Build with `open_run`."""

    def __init__(
        self,
        directory: RunDirectory,
        config: Config,
        facts: RunFacts,
        ledger: Ledger,
        *,
        known: LedgerRecord | None,
        observer: Observer,
    ) -> None:
        """`known` is what the ledger of a run that goes on holds; None for a new one."""
        self.config = config
        self.facts = facts
        self.ledger = ledger
        self.warnings = warnings_of(config, facts)
        self.accountant = Accountant(
            facts.plan.classes,
            facts.plan.class_of,
            unit=config.privacy.unit,
            schedule=config.training.schedule,
            delta=config.privacy.target_delta,
            rounds=config.run.rounds,
            library=RoundLibrary(config.run.jobs),
            dimension=facts.dimension,
            trust=Trust.of(config.to_dict()),
        )
        self.book = RunBook(
            self.accountant,
            ledger,
            target_epsilon=config.privacy.target_epsilon,
            lifetime=lifetimes(config, facts),
            replayable=config.run.entropy == "seeded",
            sequential=config.training.schedule == "sequential",
            times=publishes_times(config),
        )
        self._directory = directory
        self._known = known
        self._observer = observer
        self._started = time.time()
        self._metrics = MetricsFile(directory, facts.metrics, times=publishes_times(config))
        self._last: RoundOutcome | None = None
        self.committed: tuple[int, NDArray[np.bool_], Spend] | None = None

    @property
    def identifier(self) -> str:
        """The run's random identifier, the same when it goes on."""
        return str(self.ledger.meta()["run"])

    @property
    def rounds(self) -> int:
        """The number of the last round that was played; 0 before there is one."""
        return 0 if self._last is None else self._last.round_number

    def restore(self, optimizer: ServerOptimizer) -> int:
        """The round to start with; a resumed run's optimizer and accountant are put back.

        `committed` is then that round, if its reports were counted and no step was taken: (round,
        whose reports, spend).
        """
        if self._known is None:
            return 1
        lines = read_lines(self._directory.path / METRICS)
        saved = self.ledger.load_checkpoint()
        remark = require_agreement(
            self._directory.path, self._known, lines, 0 if saved is None else saved[0]
        )
        if remark:
            self.ledger.note(0, "resumed", remark)
        standing = restore(self.config, self.ledger, self.accountant, optimizer)
        kept = lines_to_keep(self._known, lines, standing.first)
        self._metrics.rewrite(kept)
        if standing.spend is not None:
            measured = kept.get(standing.first - 1, {})
            names = (*ALWAYS, *self.facts.metrics)
            metrics = {name: float(measured[name]) for name in names if measured.get(name)}
            self._last = RoundOutcome(standing.first - 1, standing.spend, 0, 0.0, metrics)
            if standing.committed is not None:
                self.committed = (standing.first, standing.committed, standing.spend)
        log.info("resuming at round %d", standing.first)
        return standing.first

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
        self._observer(RunStarted(self._directory.path, self.config, self.warnings))

    def on_round(self, outcome: RoundOutcome) -> None:
        """Write the round's line and tell whoever watches."""
        self._metrics.write(outcome)
        self._last = outcome
        self._observer(RoundFinished(outcome))

    def finish(
        self, model: Mapping[str, Tensor], stopped_early: str | None, *, failed: bool = False
    ) -> None:
        """Save the model and the summary, and close the ledger's books.

        `failed` says that the run trained nothing, or spent without learning.
        """
        from safetensors.torch import save_file

        tensors = {name: tensor.contiguous() for name, tensor in model.items()}
        self._directory.replace(MODEL, lambda path: save_file(tensors, path))
        self.book.finish()
        summary = summarize(
            self._directory.path,
            self.config,
            self.facts,
            self.accountant,
            self._last,
            warnings=self.warnings,
            stopped_early=stopped_early,
            failed=failed,
            started=self._started,
            accounting_seconds=self.book.seconds,
            link=self.ledger.link,
            reports=self.ledger.fewest_reports(),
        )
        self.ledger.set_meta("summary", summary)
        self.ledger.set_meta("finished", finished_at(self.config))
        self.ledger.finish()
        self._directory.write(SUMMARY, as_text(summary))
        forget_data(str(self.ledger.meta()["run"]))
        self._observer(RunFinished(summary))

    def close(self) -> None:
        """Flush and close every file."""
        try:
            self._metrics.close()
        finally:
            self.ledger.close()


@contextmanager
def open_run(
    config: Config, facts: RunFacts, place: RunPlace, observer: Observer = unobserved
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
            run = Run(directory, config, facts, ledger, known=known, observer=observer)
            with _can_go_on(directory.path):
                try:
                    run.announce(new=not place.goes_on, checked=checked)
                    yield run
                finally:
                    run.close()
    except KeyboardInterrupt:
        # Also while the accounting is set up: the run has begun once its ledger is there.
        if not (directory.path / LEDGER).exists():
            raise
        raise RunInterrupted(directory.path) from None
    finally:
        directory.close()


@contextmanager
def _can_go_on(path: Path) -> Iterator[None]:
    """Say how, when a run may not go on or a file of it cannot be written."""
    try:
        yield
    except PrivacyBudgetError as error:
        raise PrivacyBudgetError(
            f"{error}; go on with: fl-shuffle simulate --resume {path}"
        ) from None
    except (OSError, sqlite3.Error) as error:
        raise RunError(
            f"the run stopped: {error}; when that is mended go on with: fl-shuffle simulate "
            f"--resume {path}"
        ) from error


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

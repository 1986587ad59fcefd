"""An open run: its ledger, accountant and files, from the first round to the summary."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.trust import Trust
from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.configuration.sections import Config
from fl_shuffle.flower.strategy import RoundOutcome
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
    MODEL,
    PRIVATE_FILE,
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
from fl_shuffle.runs.metrics import MetricsFile
from fl_shuffle.runs.place import RunPlace
from fl_shuffle.runs.resume import UNCHECKED, require_same, restore
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
        resumed: bool,
        observer: Observer,
    ) -> None:
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
        self._resumed = resumed
        self._observer = observer
        self._started = time.time()
        self._metrics = MetricsFile(directory, times=publishes_times(config))
        self._last: RoundOutcome | None = None

    def restore(self, optimizer: ServerOptimizer) -> int:
        """The round to start with; a resumed run's optimizer and accountant are put back."""
        if not self._resumed:
            return 1
        first = restore(self.config, self.ledger, self.accountant, optimizer)
        self._metrics.keep_before(first)
        log.info("resuming at round %d", first)
        return first

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

    def finish(self, model: Mapping[str, Tensor], stopped_early: str | None) -> None:
        """Save the model and the summary, and close the ledger's books."""
        from safetensors.torch import save_file

        path = self._directory.path
        save_file({name: tensor.contiguous() for name, tensor in model.items()}, path / MODEL)
        (path / MODEL).chmod(PRIVATE_FILE)
        self.book.finish()
        summary = summarize(
            path,
            self.config,
            self.facts,
            self.accountant,
            self._last,
            warnings=self.warnings,
            stopped_early=stopped_early,
            started=self._started,
            accounting_seconds=self.book.seconds,
        )
        self.ledger.set_meta("summary", summary)
        self.ledger.set_meta("finished", finished_at(self.config))
        self.ledger.finish()
        self._directory.write(SUMMARY, json.dumps(summary, indent=2) + "\n")
        forget_data(str(self.ledger.meta()["run"]))
        self._observer(RunFinished(summary))

    def close(self) -> None:
        """Flush and close every file."""
        self._metrics.close()
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
    try:
        if place.goes_on:
            vouched = place.resume == "data-unchanged"
            checked = require_same(directory.path, facts, vouched=vouched)
            ledger = Ledger.open(directory.path / LEDGER)
        else:
            checked = True
            ledger = _start(directory, config, facts)
        with logging_to(directory, times=publishes_times(config)):
            if config.run.entropy == "seeded":
                ledger.outlive_the_process_only()
            run = Run(directory, config, facts, ledger, resumed=place.goes_on, observer=observer)
            try:
                run.announce(new=not place.goes_on, checked=checked)
                yield run
            finally:
                run.close()
    finally:
        directory.close()


def _directory(config: Config, place: RunPlace) -> RunDirectory:
    if place.directory is None:
        return RunDirectory.create(Path(config.run.out))
    if place.goes_on:
        return RunDirectory.reopen(place.directory)
    return RunDirectory.claim(place.directory)


def _start(directory: RunDirectory, config: Config, facts: RunFacts) -> Ledger:
    directory.write(CONFIG, json.dumps(config.to_dict(), indent=2) + "\n")
    meta = ledger_meta(config, facts)
    ledger = Ledger.create(directory.path / LEDGER, meta, facts.plan.classes, facts.plan.class_of)
    if not remember_data(meta["run"], facts.fingerprint):
        log.warning(
            "%s cannot be written: --resume will not be able to check that the data are the same; "
            "set %s to a folder that can",
            state_folder(),
            STATE_VARIABLE,
        )
    return ledger

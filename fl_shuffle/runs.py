"""A run and its directory: the resolved configuration, ledger, metrics, model and log.

RUN/config.json       the configuration as resolved
RUN/ledger.sqlite     every round's privacy, durable before release
RUN/metrics.csv       one line per round
RUN/model.safetensors the final model
RUN/summary.json      the final numbers
RUN/run.log           what happened
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle import __version__
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.assumptions import run_assumptions
from fl_shuffle.accounting.events import Spend
from fl_shuffle.accounting.ledger import SCHEMA_VERSION, Ledger
from fl_shuffle.accounting.ledger_reader import read_ledger
from fl_shuffle.bookkeeping import RunBook
from fl_shuffle.config import Config
from fl_shuffle.errors import RunError
from fl_shuffle.flower.strategy import RoundOutcome
from fl_shuffle.optimizer import ServerOptimizer
from fl_shuffle.plan import RandomizerPlan

log = logging.getLogger("fl_shuffle")

LEDGER = "ledger.sqlite"
METRICS = "metrics.csv"
LIBRARIES = ("flwr", "torch", "numpy", "numba", "scipy", "dp-accounting", "opacus")
METRIC_COLUMNS = (
    "round", "n_reports", "accuracy", "loss", "gspa_mu", "gspa_epsilon", "specific_epsilon",
    "proven_epsilon", "local_epsilon", "lower_epsilon", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class RunFacts:
    """What the apps know about a run beside its configuration."""

    plan: RandomizerPlan
    features_use_data: bool
    fingerprint: str
    dimension: int
    lifetime: NDArray[np.float64] | None = None


Listener = Callable[[str, Any], None]
_listeners: list[Listener] = []


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener(kind, value)` for this process's runs: `start` (Run), `round`, `finish`."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _tell(kind: str, value: Any) -> None:
    for listener in _listeners:
        listener(kind, value)


class Run:
    """An open run directory."""

    def __init__(
        self, directory: Path, config: Config, facts: RunFacts, ledger: Ledger, resumed: bool
    ) -> None:
        self.directory = directory
        self.config = config
        self.facts = facts
        self.ledger = ledger
        self.resumed = resumed
        self.warnings = warnings_of(config, facts)
        self.assumptions = run_assumptions(
            entropy=config.run.entropy,
            known_law=all(own.noise != "user" for own in facts.plan.classes),
        )
        self.started = time.time()
        self.accountant = Accountant(
            facts.plan.classes,
            facts.plan.class_of,
            unit=config.privacy.unit,
            schedule=config.training.schedule,
            delta=config.privacy.target_delta,
            rounds=config.run.rounds,
            dimension=facts.dimension,
        )
        self.book = RunBook(
            self.accountant,
            ledger,
            target_epsilon=config.privacy.target_epsilon,
            lifetime=_lifetimes(config, facts),
            replayable=config.run.entropy == "seeded",
            sequential=config.training.schedule == "sequential",
        )
        self._metrics = (directory / METRICS).open("a", newline="", encoding="utf-8")
        self._rows = csv.writer(self._metrics, lineterminator="\n")
        self._last: RoundOutcome | None = None

    def restore(self, optimizer: ServerOptimizer) -> int:
        """Put optimizer and accountant where the ledger says; returns the round to start with.

        Rounds after the last checkpoint may have been released. A seeded run releases the same bits
        again, so they are replayed and counted once; otherwise they stay on the bill.
        """
        if not self.resumed:
            return 1
        saved = self.ledger.load_checkpoint()
        first = 1
        if saved is not None:
            state = torch.load(io.BytesIO(saved[1]), weights_only=True)
            optimizer.restore(state)
            first = saved[0] + 1
        attempts = self.ledger.presence(self.config.data.clients)
        if self.config.run.entropy == "seeded":
            attempts = [(n, present) for n, present in dict(attempts).items() if n < first]
        for number, present in attempts:
            self.accountant.commit(number, present)
        self._keep_metrics_before(first)
        log.info("resuming at round %d", first)
        return first

    def _keep_metrics_before(self, first: int) -> None:
        """Drop the lines of rounds that will be played again."""
        self._metrics.close()
        path = self.directory / METRICS
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines[1:] if int(line.split(",")[0]) < first]
        _write(path, "".join(f"{line}\n" for line in lines[:1] + kept))
        self._metrics = path.open("a", newline="", encoding="utf-8")
        self._rows = csv.writer(self._metrics, lineterminator="\n")

    def on_round(self, outcome: RoundOutcome) -> None:
        """Write the round's line and tell whoever listens."""
        if self._metrics.tell() == 0:
            self._rows.writerow(METRIC_COLUMNS)
        columns = outcome.spend.columns
        self._rows.writerow(
            [
                outcome.round_number,
                outcome.spend.n_reports,
                _cell(outcome.metrics.get("accuracy")),
                _cell(outcome.metrics.get("loss")),
                _cell(outcome.spend.mu_total),
                *(
                    _cell(columns[name].worst)
                    for name in ("gspa", "specific", "proven", "local", "lower")
                ),
                f"{outcome.seconds:.6f}",
            ]
        )
        self._metrics.flush()
        self._last = outcome
        _tell("round", outcome)

    def finish(self, model: Mapping[str, Tensor], stopped_early: str | None) -> None:
        """Save the model and the summary, and close the ledger's books."""
        from safetensors.torch import save_file

        save_file(
            {name: tensor.contiguous() for name, tensor in model.items()},
            self.directory / "model.safetensors",
        )
        self.book.finish()
        summary = self.summary(stopped_early)
        self.ledger.set_meta("summary", summary)
        self.ledger.set_meta("finished", datetime.now(UTC).isoformat())
        self.ledger.flush()
        _write(self.directory / "summary.json", json.dumps(summary, indent=2) + "\n")
        _tell("finish", summary)

    def summary(self, stopped_early: str | None) -> dict[str, Any]:
        """The final numbers, JSON-ready."""
        last = self._last
        spend = last.spend if last else None
        _, proven, _ = self.accountant.client_totals()
        quantiles = {f"p{int(100 * q)}": float(np.quantile(proven, q)) for q in (0.1, 0.5, 0.9)}
        return {
            "run_directory": str(self.directory),
            "rounds": last.round_number if last else 0,
            "stopped_early": stopped_early,
            "accuracy": last.metrics.get("accuracy") if last else None,
            "loss": last.metrics.get("loss") if last else None,
            "delta": self.config.privacy.target_delta,
            "unit": self.config.privacy.unit,
            "relation": "replace-one",
            "proven_epsilon": _finite(spend.headline) if spend else None,
            "proven_epsilon_quantiles": {key: _finite(value) for key, value in quantiles.items()},
            "columns": _columns(spend) if spend else {},
            "gspa_mu": spend.mu_total if spend else None,
            "warnings": list(self.warnings),
            "assumptions": list(self.assumptions),
            "accounting_seconds": self.book.seconds,
            "seconds": time.time() - self.started,
        }

    def close(self) -> None:
        """Flush and close every file."""
        self._metrics.close()
        self.ledger.close()


def _columns(spend: Spend) -> dict[str, Any]:
    return {
        name: {
            "epsilon": _finite(column.worst),
            "status": str(column.status),
            "source": column.source,
            "note": column.note,
        }
        for name, column in spend.columns.items()
    }


def _finite(value: float | None) -> float | str | None:
    """JSON has no infinity: it is written as the text "inf"."""
    return value if value is None or np.isfinite(value) else str(value)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def _lifetimes(config: Config, facts: RunFacts) -> NDArray[np.float64] | None:
    common = config.privacy.client_epsilon
    if facts.lifetime is None and common is None:
        return None
    limits = np.full(len(facts.plan), np.inf if common is None else common)
    return limits if facts.lifetime is None else np.minimum(limits, facts.lifetime)


def warnings_of(config: Config, facts: RunFacts) -> tuple[str, ...]:
    """What a reader of the numbers must know, in plain words."""
    found = []
    if facts.features_use_data:
        found.append(
            f"features = {config.data.features!r} are fitted on the training data: that fit is not "
            "covered by the privacy guarantee"
        )
    if not facts.plan.labelled_private:
        found.append(
            "NOT PRIVATE AS LABELLED: the noise follows the published formula, which takes the "
            "sensitivity for smaller than it is; the true local epsilon is printed as proven"
        )
    if config.run.entropy == "seeded":
        found.append(
            "seeded noise and permutation (simulation only): whoever knows the seed can remove the "
            "noise; set run.entropy = 'system' for real data"
        )
    return tuple(found)


@contextlib.contextmanager
def open_run(config: Config, facts: RunFacts, directory: Path | None) -> Iterator[Run]:
    """Create the run directory (or go on with one that holds an unfinished run) and open it.

    Everything that can be refused was refused before this point, so nothing is left half-written.
    """
    resumed = directory is not None and (directory / LEDGER).is_file()
    path = directory or new_directory(Path(config.run.out))
    path.mkdir(parents=True, exist_ok=True)
    if resumed:
        ledger = Ledger.open(path / LEDGER)
        _require_same(ledger, path, facts)
    else:
        _write(path / "config.json", json.dumps(config.to_dict(), indent=2) + "\n")
        ledger = Ledger.create(
            path / LEDGER, _meta(config, facts), facts.plan.classes, facts.plan.class_of
        )
    handler = logging.FileHandler(path / "run.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    if config.run.entropy == "seeded":
        ledger.spare_flushes()
    run = Run(path, config, facts, ledger, resumed)
    for text in run.warnings:
        log.warning(text)
        if not resumed:
            ledger.note(0, "warning", text)
    if not resumed:
        for text in run.assumptions:
            ledger.note(0, "assumption", text)
    _tell("start", run)
    try:
        yield run
    finally:
        run.close()
        log.removeHandler(handler)
        handler.close()


def _require_same(ledger: Ledger, path: Path, facts: RunFacts) -> None:
    """What was released is accounted with the randomizers it was released with, or not at all."""
    known = read_ledger(path / LEDGER)
    same = {
        "budgets or clipping": known.classes == facts.plan.classes
        and np.array_equal(known.class_of, facts.plan.class_of),
        "data": known.meta["data_fingerprint"] == facts.fingerprint,
        "model": known.meta["dimension"] == facts.dimension,
    }
    changed = [name for name, equal in same.items() if not equal]
    if changed:
        ledger.close()
        raise RunError(
            f"{path} cannot be resumed: its {' and '.join(changed)} changed since it was started; "
            "put the old files back, or start a new run"
        )


def new_directory(out: Path) -> Path:
    """A fresh name below `out`, by date and time."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path, number = out / stamp, 1
    while path.exists():
        number += 1
        path = out / f"{stamp}-{number}"
    return path.resolve()


def claim_directory(out: Path) -> Path:
    """The directory the user asked for. Raises `RunError` if it already holds a run."""
    if out.is_file():
        raise RunError(f"--out {out} is a file; name a folder")
    if (out / LEDGER).exists() or (out / "config.json").exists():
        raise RunError(f"--out {out} already holds a run; choose another folder or --resume it")
    return out.resolve()


def _meta(config: Config, facts: RunFacts) -> dict[str, Any]:
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "schema": SCHEMA_VERSION,
        "config": config.to_dict(),
        "code_version": __version__,
        "python": platform.python_version(),
        "libraries": versions,
        "seed": config.run.seed if config.run.entropy == "seeded" else "operating-system entropy",
        "data_fingerprint": facts.fingerprint,
        "dimension": facts.dimension,
        "labelled_private": facts.plan.labelled_private,
        "started": datetime.now(UTC).isoformat(),
    }


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")

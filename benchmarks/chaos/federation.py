"""A small federation whose clients bear witness of what they were shown."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import time
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message
from safetensors.numpy import load_file

from benchmarks.chaos.children import command
from clients.app import app as honest
from fl_shuffle.cli import main
from fl_shuffle.flower.messages import MODEL_RECORD
from fl_shuffle.ledger.reader import LedgerRecord

CLIENTS, ROUNDS = 8, 5
WITNESS = "FL_SHUFFLE_CHAOS_WITNESS"
CONFIG = f"""
[run]
rounds = {ROUNDS}
jobs = 2
[data]
source = "digits"
clients = {CLIENTS}
records_per_client = 20
[model]
kind = "linear"
[privacy]
unit = "client"
[budgets]
distribution = "uniform"
low = 1.0
high = 4.0
[app]
client = "benchmarks.chaos.federation:witness"
"""


def witness(message: Message, context: Context) -> Message:
    """The reference client; which model it was shown is written down outside of the run."""
    note_model(message, Path(os.environ[WITNESS]))
    reply: Message = honest(message, context)
    return reply


def note_model(message: Message, path: Path) -> None:
    """Add a digest of the model in a request, if there is one, to a file."""
    if MODEL_RECORD in message.content.array_records:
        arrays = message.content.array_records[MODEL_RECORD].values()
        model = b"".join(array.numpy().tobytes() for array in arrays)
        note(path, hashlib.sha256(model).hexdigest())


def note(path: Path, line: str) -> None:
    """Add a line to a file; it is there whatever becomes of this process."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.write(file, line.encode() + b"\n")
    os.close(file)


@cache
def warm() -> None:
    """Load everything that a run needs, and play some, so that forked children begin at once and
    know what they cost."""
    for name in ("builtin_apps.server.app", "report.page", "federation.launch", "runs.display"):
        import_module(f"fl_shuffle.{name}")

    torch.set_num_threads(1)
    for entropy in ("system", "seeded"):
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
            if main(Federation(Path(folder) / "first", entropy).start()):
                raise RuntimeError("the run without a fault failed")


class Federation:
    """A folder with a configuration, a witness, and a run directory `run`."""

    def __init__(self, folder: Path, entropy: str) -> None:
        folder.mkdir(parents=True)
        self.folder, self.entropy = folder, entropy
        self.run, self.said = folder / "run", folder / "said"
        self.witness, self._config = folder / "witness", folder / "run.toml"
        self._config.write_text(CONFIG, encoding="utf-8")
        self.testify()

    def testify(self) -> None:
        """Children begun from now on write to this federation's witness."""
        os.environ[WITNESS] = str(self.witness)

    def start(self, *settings: str) -> list[str]:
        """The command that starts the run."""
        found = ["simulate", str(self._config), "--quiet", "--out", str(self.run)]
        for setting in (f"run.entropy={self.entropy}", *settings):
            found += ["--set", setting]
        return found

    def play(self) -> float:
        """Play the run without a fault; how long it took."""
        began = time.monotonic()
        ended = command(self.start(), self.said)
        if ended.code:
            raise RuntimeError(f"the run without a fault failed: {ended.said}")
        return time.monotonic() - began

    def resume(self) -> list[str]:
        """The command that resumes it."""
        return ["simulate", "--resume", str(self.run), "--quiet"]

    def go_on(self) -> list[str]:
        """What a user does after a crash: continue what began, start what did not."""
        return self.resume() if (self.run / "ledger.sqlite").exists() else self.start()

    def finished(self) -> bool:
        """Whether the ledger says so."""
        path = self.run / "ledger.sqlite"
        return path.exists() and LedgerRecord(path).finished

    def uncounted(self) -> int:
        """See `uncounted`."""
        return uncounted(self.run, self.witness)

    def lost(self) -> int:
        """See `lost`."""
        return lost(self.run, ROUNDS)

    def model(self) -> bytes:
        """The final model's bytes."""
        return (self.run / "model.safetensors").read_bytes()


def finished_ledger(folder: Path) -> Path:
    """That of a run without a fault."""
    place = Federation(folder / "finished", "seeded")
    place.play()
    return place.run / "ledger.sqlite"


def uncounted(run: Path, witness: Path) -> int:
    """Models the clients were shown that no release in the ledger accounts for (the first one
    tells nothing)."""
    if not witness.exists():
        return 0
    shown = len(set(witness.read_text(encoding="ascii").split())) - 1
    path = run / "ledger.sqlite"
    counted = len(LedgerRecord(path).attempts) if path.exists() else 0
    return max(0, shown - counted)


def lost(run: Path, rounds: int) -> int:
    """Rounds that the run should have and has not, in ledger, metrics and summary."""
    path = run / "summary.json"
    if not path.exists() or not (known := LedgerRecord(run / "ledger.sqlite")).finished:
        return rounds
    lines = (run / "metrics.csv").read_text(encoding="utf-8").splitlines()[1:]
    summary = json.loads(path.read_text(encoding="utf-8"))
    return rounds - min(len(known.rounds), len(lines), int(summary["rounds"]))


def not_finite(run: Path) -> str:
    """A problem if the final model has a number that is not finite."""
    model = load_file(run / "model.safetensors")
    finite = all(np.isfinite(values).all() for values in model.values())
    return "" if finite else "the model is not finite"

"""Going on with an unfinished run: what must be as it was, and where to start."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import torch

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import RunError
from fl_shuffle.ledger.reader import read_ledger
from fl_shuffle.ledger.store import Ledger
from fl_shuffle.runs.data_check import STATE_VARIABLE, recall_data, state_folder
from fl_shuffle.runs.directory import CONFIG, LEDGER, require_unfinished
from fl_shuffle.runs.facts import RunFacts

UNCHECKED = (
    "resumed without a check that the data are those it was started with: the user vouched for them"
)


def unfinished_config(path: Path) -> Config:
    """The configuration of the unfinished run in `path`; raises `RunError` if there is none."""
    require_unfinished(path)
    try:
        tables = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"--resume {path}: {CONFIG} cannot be read: {error}") from None
    return parse_config(tables)


def require_same(path: Path, facts: RunFacts, *, vouched: bool) -> bool:
    """What was released is accounted with the randomizers it was released with, or not at all.

    Returns whether the data could be compared. Raises `RunError` if budgets, clipping, data or
    model changed, and if the data cannot be compared and nobody `vouched` for them.
    """
    known = read_ledger(path / LEDGER)
    fingerprint = recall_data(str(known.meta.get("run", "")))
    data = known.meta["data"]
    same = {
        "budgets or clipping": known.classes == facts.plan.classes
        and np.array_equal(known.class_of, facts.plan.class_of),
        "data": data == facts.data.published() and fingerprint in (None, facts.fingerprint),
        "model": known.meta["dimension"] == facts.dimension,
    }
    changed = [name for name, equal in same.items() if not equal]
    if changed:
        raise RunError(
            f"{path} cannot be resumed: its {' and '.join(changed)} changed since it was started; "
            "put the old files back, or start a new run"
        )
    if fingerprint is None and not vouched:
        raise RunError(
            f"{path}: whether the data are those the run was started with cannot be verified here, "
            f"{state_folder()} does not know this run; resume it on the machine and as the user it "
            f"was started by, set {STATE_VARIABLE} to that state folder, or add --data-unchanged "
            "if you know that they are"
        )
    return fingerprint is not None


def restore(
    config: Config, ledger: Ledger, accountant: Accountant, optimizer: ServerOptimizer
) -> int:
    """Put optimizer and accountant where the ledger says; returns the round to start with.

    Rounds after the last checkpoint may have been released. A seeded run releases the same bits
    again, so they are replayed and counted once; otherwise they stay on the bill.
    """
    saved = ledger.load_checkpoint()
    first = 1
    if saved is not None:
        state = torch.load(io.BytesIO(saved[1]), weights_only=True)
        optimizer.restore(state)
        first = saved[0] + 1
    attempts = ledger.presence(config.data.clients)
    if config.run.entropy == "seeded":
        attempts = [(n, present) for n, present in dict(attempts).items() if n < first]
    for number, present in attempts:
        accountant.commit(number, present)
    return first

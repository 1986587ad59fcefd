"""Continuing a run, stopped or finished: what must be as it was, and where to start.

A ledger that is older than the run would not charge some releases. The lock file is the witness:
how much the ledger has written of attempts stands there, too.

Whether the data are the same is known outside the run directory. That may be published, so it holds
no digest of private records: an attacker who knew all records but one could try values of it until
the digest fits, and even a digest under a secret key would say whether two runs saw the same data.
The digest lies in the user's own state folder, in one small file per run, named by the run's random
identifier. It stays when the run finishes, because rounds may be added to it later.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle._internal.durable_files import PRIVATE_FOLDER, replace_text
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.accounting.rounds.renyi_account import RenyiAccount
from fl_shuffle.accounting.rounds.threat_model import ThreatModel
from fl_shuffle.configuration.reading import parse_config, parsed, set_value
from fl_shuffle.configuration.sections import Config, ServerSection
from fl_shuffle.errors import RunError
from fl_shuffle.federation.optimizer import ServerOptimizer
from fl_shuffle.ledger import METRICS
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.ledger.state_file import load_state
from fl_shuffle.ledger.store import (
    CHANGEABLE,
    PLANNED,
    SCHEMA_VERSION,
    UPGRADED,
    settings_of,
    upgrade_ledger,
    witnessed,
)
from fl_shuffle.ledger.tables import damaged
from fl_shuffle.runs.directory import LOCK, SUMMARY, RunPlace, log, named, require_begun
from fl_shuffle.runs.facts import RunFacts
from fl_shuffle.runs.views import metrics_of, summary_of, summary_text

STATE_VARIABLE = "FL_SHUFFLE_STATE"
_folder: ContextVar[Path | None] = ContextVar("_folder", default=None)
UNCHECKED = (
    "resumed without a check that the data are those it was started with: the user vouched for them"
)


def continued_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Return the configuration of the run in `path`, as its ledger has it, with `overrides`.

    Raises `RunError` if there is none to continue, and for an override of what a run keeps to its
    end.
    """
    require_begun(path)
    known = LedgerRecord(path)
    tables = parse_config(known.config).to_dict()
    for override in overrides:
        set_value(tables, *parsed(override))
    config = parse_config(tables)
    _require_rounds_left(known, config.run.rounds)
    changes_of(known, config)
    return config


def continued_ledger(path: Path, rounds: int, *, flwr: bool = False) -> LedgerRecord:
    """Return what the ledger of a run holds that is to have this number of rounds.

    Raises `RunError` if the run is finished and no round is added, or none can be.
    """
    known = LedgerRecord(path)
    _require_rounds_left(known, rounds, flwr=flwr)
    return known


def _require_rounds_left(known: LedgerRecord, rounds: int, *, flwr: bool = False) -> None:
    """Raise `RunError` where a finished run stays finished with this number of rounds.

    A summary.json or metrics.csv that was lost when the process died, or the disk was full, is then
    written from the ledger.
    """
    if not known.finished:
        return
    planned, outcome = known.config["run"]["rounds"], known.meta.get("outcome", {})
    given = named("--resume", known.directory, flwr=flwr)
    if rounds <= planned:
        add = "overrides='run.rounds=N'" if flwr else "--rounds N"
        raise RunError(
            f"{given}: that run is finished{_mended(known)}; to add rounds to it, add {add} with N "
            f"above {planned}"
        )
    if outcome.get("failed"):
        raise RunError(
            f"{given}: that run has failed ({outcome.get('stopped_early')}), so no round can "
            "follow; start a new run"
        )
    # A seeded run without a state is repeated from its first round, to the same bits. With other
    # noise that would be other releases.
    if not known.seeded and known.first_round != known.last_round + 1:
        raise RunError(
            f"{given}: the run's state after round {known.last_round} was not kept (version 0.2 "
            "removed a large model's), so no round can follow; start a new run"
        )


def _mended(known: LedgerRecord) -> str:
    """Write lost views of a finished run again; returns what was lost, in words."""
    path, lost = known.directory, []
    try:
        json.loads((path / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        replace_text(path / SUMMARY, summary_text(summary_of(known)))
        lost.append(SUMMARY)
    try:
        whole = (path / METRICS).read_text(encoding="utf-8") == metrics_of(known)
    except (OSError, ValueError):
        whole = False
    if not whole:
        replace_text(path / METRICS, metrics_of(known))
        lost.append(METRICS)
    return f"; {' and '.join(lost)} was lost and has been written again" if lost else ""


def planned_rounds(known: LedgerRecord) -> int:
    """Return for how many rounds a run was planned when it began.

    Raises `RunError` where the ledger holds no such number.
    """
    rounds = known.config["run"]["rounds"]
    planned = known.meta.get(PLANNED, rounds)
    if type(planned) is not int or not 1 <= planned <= rounds:
        raise damaged(known.path, f"{PLANNED} of meta", planned, f"a number of 1 to {rounds}")
    return planned


def changes_of(known: LedgerRecord, now: Config) -> list[str]:
    """Return what changes in the configuration of a resumed run, for its ledger.

    Raises `RunError` for a setting that must stay as it was: releases that were made under another
    one would not be what the ledger says they are.
    """
    old, new = settings_of(known.config), settings_of(now.to_dict())
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    for key in changed:
        why = ""
        if key not in CHANGEABLE:
            why = f"what may change is {', '.join(CHANGEABLE)}"
        elif key == "run.rounds" and now.run.rounds < old[key]:
            why = "rounds may only be added"
        if why:
            raise RunError(
                f"{known.directory} cannot be resumed with {key} = {new.get(key)!r}: it was "
                f"started with {old.get(key)!r}; {why}"
            )
    return [f"resumed with {key} = {new.get(key)!r} instead of {old.get(key)!r}" for key in changed]


def require_same(
    known: LedgerRecord, facts: RunFacts, place: RunPlace, lock: int
) -> list[tuple[str, str]]:
    """Require that what was released is accounted with the randomizers it was released with, or not
    at all.

    Returns what the ledger is to know of it, (kind, text) each. Raises `RunError` if settings that
    must stay, budgets, clipping, data or model changed, if the data cannot be compared and nobody
    vouched for them, and for a ledger that is older than the run, as the `lock` file tells.
    """
    changes = changes_of(known, facts.config)
    planned = known.config["run"]["rounds"]
    if facts.budgets.of == "run" and facts.config.run.rounds != planned:
        raise RunError(
            f"{known.directory} cannot be resumed with run.rounds = {facts.config.run.rounds}: the "
            f"noise was calibrated for totals over {planned} rounds; start a new run"
        )
    kept = recall_data(known.meta["run"]) if facts.fingerprint is not None else None
    same_data = known.meta["data"] == facts.data.published()
    same = {
        "budgets or clipping": known.classes == facts.plan.classes
        and np.array_equal(known.class_of, facts.plan.class_of),
        "data": same_data and kept in (None, facts.fingerprint),
        "model": known.meta["dimension"] == facts.dimension,
    }
    changed = [name for name, equal in same.items() if not equal]
    if changed:
        older = ""
        if known.meta["schema"] < SCHEMA_VERSION and not same["budgets or clipping"]:
            # Its noise would no longer be that of the ledger, nor replayed rounds the same bits.
            older = (
                f"; version {known.meta['code_version']} may have worked the noise scales out "
                "differently in their last digits: then resume it with that version"
            )
        raise RunError(
            f"{known.directory} cannot be resumed: its {' and '.join(changed)} changed since it "
            f"was started{older}; put the old files back, or start a new run"
        )
    if kept is None and place.resume != "data-unchanged":
        raise RunError(
            f"{known.directory}: whether the data are those the run was started with cannot be "
            "verified here, for this user's state folder does not know the run; resume it on the "
            f"machine and as the user it was started by, set {STATE_VARIABLE} to that state "
            "folder, or, if you know that they are, add --data-unchanged (with `flwr run` "
            "--run-config resume='data-unchanged')"
        )
    notes = [("changed", change) for change in changes]
    notes += [("warning", UNCHECKED)] * (kept is None)
    replayed = require_newest(known, *witnessed(lock))
    return notes + [("resumed", replayed)] * bool(replayed)


def upgraded(known: LedgerRecord) -> list[tuple[str, str]]:
    """Bring the ledger of a run of version 0.2 to this version's schema, all of it or nothing.

    The column `rdp` of its rounds follows from who reported. Returns what the ledger is to know of
    it, (kind, text) each. Raises `RunError` if the ledger cannot be changed.
    """
    if known.meta["schema"] != UPGRADED:
        return []
    trust = ThreatModel.of(known.config)
    account = RenyiAccount.start(
        known.classes,
        known.class_of,
        schedule=known.config["training"]["schedule"],
        unit=known.config["privacy"]["unit"],
        assumed_honest=trust.assumed_honest,
    )
    found = dict[int, float | None]()
    for number, present, unusable in known.attempts:
        account = account.after(present, trust.reports_per_round, unusable)
        found[number] = None if account.premise.reason else account.worst(known.delta)
    upgrade_ledger(known.path, found)
    return [("resumed", f"brought from ledger schema {UPGRADED} to {SCHEMA_VERSION}")]


def replays(known: LedgerRecord) -> str:
    """Return which rounds of a seeded run that was stopped are executed again at resume; empty
    where there are none."""
    first, last = known.first_round, int(known.rounds.max(initial=0))
    if not known.seeded or last < first:
        return ""
    rounds = f"rounds {first} to {last} are" if last > first else f"round {first} is"
    return f"{rounds} played again from the seed, with the same bits, and counted once"


@dataclass(frozen=True)
class Resumed:
    """Where a run begins: a new one at round 1, one that continues where it stopped."""

    round: int = 1
    optimizer_state: Mapping[str, Any] | None = None
    """What the optimizer had come to; None: the model is where it starts."""
    counted: int | None = None
    """The round, if any, whose reports were counted before the run was stopped, and from which no
    step was taken: it is neither reserved nor counted again."""
    planned: int | None = None
    """For how many rounds learning rate and averaging were planned; None: for all."""


def released_before(
    known: LedgerRecord, accountant: Accountant
) -> tuple[Spend | None, NDArray[np.bool_] | None]:
    """Count what the ledger holds: the spend of everything released before, and whose reports on
    the first round were counted already, if its step is not yet taken.

    Rounds after the last checkpoint may have been released. A seeded run releases the same bits
    again, so they are replayed and counted once; otherwise their cost stays in the ledger.
    """
    first, attempts = known.first_round, known.attempts
    if known.seeded:
        attempts = [each for each in attempts if each[0] < first]
    counted = attempts[-1][1] if attempts and attempts[-1][0] == first else None
    return accountant.count(attempts), counted


def optimizer_state(known: LedgerRecord, dimension: int) -> dict[str, Any] | None:
    """Return the last checkpoint, of a model of `dimension` numbers; None where there is none.

    Raises `RunError` for one that cannot be used.
    """
    if known.checkpoint is None:
        return None
    path = known.path
    try:
        state = load_state(path.parent, known.checkpoint[1])
        theta = ServerOptimizer(ServerSection(), torch.zeros(dimension), state).current()
        usable = theta.shape == (dimension,) and bool(torch.isfinite(theta).all())
    except RunError:
        raise
    except Exception as error:  # torch promises none in particular
        raise RunError(
            f"{path}: the saved state cannot be read ({type(error).__name__}); put an "
            "intact copy of the ledger back"
        ) from None
    if not usable:
        raise RunError(
            f"{path}: the saved state does not fit this model; put the run's own ledger back"
        )
    return state


def require_newest(known: LedgerRecord, run: str, entries: int) -> str:
    """Raise `RunError` for a ledger that is another run's, or does not know all of this one.

    It knows all rounds up to the state to go on from. A ledger with fewer `entries` than were
    written of this `run` is older than the run, and what was released since would not be counted.
    A seeded run plays it again, to the same bits: that is returned, for the ledger.
    """
    path, after, rounds = known.directory, known.first_round - 1, set(known.rounds.tolist())
    missing = next((number for number in range(1, after + 1) if number not in rounds), None)
    if missing is not None:
        raise RunError(
            f"{path}: the saved state is that after round {after}, but the ledger has no "
            f"round {missing}; put the run's own ledger back"
        )
    if run not in ("", known.meta["run"]):
        raise RunError(
            f"{path}: the ledger belongs to another run than {LOCK}; put the run's own ledger back"
        )
    if entries <= known.entries:
        return ""
    if known.seeded:
        return f"{LOCK} tells of later rounds, which are played again, to the same bits"
    raise RunError(
        f"{path}: the ledger is older than the run, as {LOCK} shows, so later releases "
        "would not be counted; put the newer ledger back"
    )


@contextmanager
def states_kept_in(folder: Path) -> Iterator[None]:
    """Keep what this thread's runs need for a resume in `folder`, wherever the user keeps it."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def state_folder() -> Path:
    """Return the folder of `states_kept_in`, else `$FL_SHUFFLE_STATE`, else fl-shuffle's folder
    below `$XDG_STATE_HOME` or ~/.local/state."""
    chosen = _folder.get()
    if chosen is not None:
        return chosen
    named = os.environ.get(STATE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path("~/.local/state").expanduser()) / "fl-shuffle"


def remember_data(run: str, fingerprint: str | None) -> None:
    """Keep the fingerprint of a run's data, where the server has them. If the state folder cannot
    be written there is a warning."""
    if fingerprint is None:
        return
    try:
        path = _file(run)
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        replace_text(path, fingerprint)
    except (OSError, RuntimeError) as error:
        log.warning(
            f"the state folder cannot be written ({error}): --resume cannot check that the data "
            f"are the same; set {STATE_VARIABLE} to a folder that can"
        )


def recall_data(run: str) -> str | None:
    """Return the fingerprint of a run's data, or None where this machine does not know it."""
    try:
        return _file(run).read_text(encoding="utf-8")
    except (OSError, RuntimeError, UnicodeDecodeError):
        return None


def _file(run: str) -> Path:
    """Raise `RuntimeError` for what is no identifier of a run, or without a home folder."""
    if not re.fullmatch("[0-9a-f]{32}", run):
        raise RuntimeError(f"{run!r} is not a run's identifier")
    return state_folder() / "data" / run

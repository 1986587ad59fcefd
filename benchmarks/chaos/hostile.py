"""Clients that send what no honest client sends; runs go on without them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from benchmarks.chaos.children import command
from benchmarks.chaos.federation import CLIENTS, Federation, not_finite
from benchmarks.chaos.tally import Tally
from clients.app import app as honest
from fl_shuffle.errors import ConfigError
from fl_shuffle.flower.messages import REPORT_RECORD, REPORTS, TrainRequest
from fl_shuffle.ledger.reader import LedgerRecord

KIND = "FL_SHUFFLE_CHAOS_KIND"


def _array(**changes: Any) -> Callable[[np.ndarray], Any]:
    """The honest reports as they go over the wire, with some of it replaced."""

    def make(reports: np.ndarray) -> RecordDict:
        whole = Array(reports)
        parts: dict[str, Any] = {"dtype": whole.dtype, "shape": whole.shape, "stype": whole.stype,
                 "data": whole.data}  # fmt: skip
        for name, change in changes.items():
            parts[name] = change(parts[name]) if callable(change) else change
        return RecordDict({REPORT_RECORD: ArrayRecord({REPORTS: Array(**parts)})})

    return make


def _values(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], Any]:
    def make(reports: np.ndarray) -> RecordDict:
        return RecordDict({REPORT_RECORD: ArrayRecord({REPORTS: Array(change(reports.copy()))})})

    return make


def _header(shape: str, descr: str = "<f4") -> Callable[[bytes], bytes]:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (118 - 10 - len(text)) + b"\n"
    return lambda data: b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data[128:]


def _raise(error: BaseException) -> Callable[[np.ndarray], Any]:
    def make(reports: np.ndarray) -> Any:
        raise error

    return make


def _first_row(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(reports: np.ndarray) -> np.ndarray:
        reports[0, 0] = value
        return reports

    return change


class Silent(Exception):
    """It cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "another stype": _array(stype="torch.Tensor"),
    "no stype": _array(stype=""),
    "garbage": _array(data=b"\xff" * 4096),
    "no data": _array(data=b""),
    "truncated": _array(data=lambda data: data[:-3]),
    "too long": _array(data=lambda data: data + b"\0"),
    "header alone": _array(data=lambda data: data[:128]),
    "a header of 3.6 TiB": _array(data=_header("(1000000, 1000000)")),
    "a header of negative size": _array(data=_header("(-8, 650)")),
    "a header nested too deeply": _array(data=_header("(" * 90)),
    "a header that is code": _array(data=_header("__import__('os').getpid()")),
    "objects": _array(data=_header("(8, 650)", "|O")),
    "another declared shape": _array(shape=(3, 5)),
    "another declared type": _array(dtype="float64"),
    "float64": _values(lambda reports: reports.astype(np.float64)),
    "integers": _values(lambda reports: reports.astype(np.int32)),
    "big-endian": _values(lambda reports: reports.astype(">f4")),
    "column by column": _array(
        data=lambda data: data.replace(b"'fortran_order': False", b"'fortran_order': True ")
    ),
    "one report too few": _values(lambda reports: reports[1:]),
    "one report too many": _values(lambda reports: np.concatenate([reports, reports[:1]])),
    "one dimension": _values(lambda reports: reports.ravel()),
    "NaN": _values(_first_row(np.nan)),
    "an infinity": _values(_first_row(np.inf)),
    "3e38": _values(_first_row(3e38)),
    "minus 1e30": _values(_first_row(-1e30)),
    "a thousand": _values(_first_row(1000.0)),
    "no record": lambda reports: RecordDict(),
    "a record of another kind": lambda reports: RecordDict(
        {REPORT_RECORD: MetricRecord({"loss": 1.0})}
    ),
    "settings instead of arrays": lambda reports: RecordDict(
        {REPORT_RECORD: ConfigRecord({REPORTS: "x"})}
    ),
    "an empty record": lambda reports: RecordDict({REPORT_RECORD: ArrayRecord()}),
    "None": lambda reports: None,
    "a text": lambda reports: "report",
    "a number": lambda reports: 17,
    "an exception": _raise(ValueError("a client's own mistake")),
    "an exception without a text": _raise(Silent()),
    "the framework's own exception": _raise(ConfigError("a setting of the client's")),
    "SystemExit": _raise(SystemExit(3)),
    "KeyboardInterrupt": _raise(KeyboardInterrupt()),
    "GeneratorExit": _raise(GeneratorExit()),
    "StopIteration": _raise(StopIteration()),
    "no memory": _raise(MemoryError()),
    "nested too deeply": _raise(RecursionError()),
}


def client(message: Message, context: Context) -> Any:
    """The honest client, but for client 0 (each is asked alone): it sends what `KIND` names."""
    reply = honest(message, context)
    if reply.has_error() or TrainRequest.of(message).clients[0]:
        return reply
    reports = reply.content.array_records[REPORT_RECORD][REPORTS].numpy()
    content = KINDS[os.environ[KIND]](reports)
    return Message(content, reply_to=message) if isinstance(content, RecordDict) else content


SETTINGS = (
    f"app.client={__name__}:client",
    "run.rounds=2",
    "training.schedule=sequential",
)


def replies(folder: Path, kinds: Sequence[str] = tuple(KINDS)) -> Tally:
    """A run with each kind of hostile client: it ends as it should, with a finite model, and
    counts nobody's report that was not used."""
    tally = Tally("hostile replies")
    for kind in kinds:
        os.environ[KIND] = kind
        place = Federation(folder / "hostile", "seeded")
        problem = tally.wrong(command(place.start(*SETTINGS), place.said), 0)
        if not problem:
            reports = LedgerRecord(place.run / "ledger.sqlite").reports
            right = bool((reports == CLIENTS - 1).all())
            problem = not_finite(place.run)
            problem = problem or ("" if right else f"{reports.tolist()} reports were counted")
        tally.add(kind, problem=problem)
        shutil.rmtree(place.folder)
    return tally

"""What travels between server and clients, and how it is packed into Flower records.

A request names the round and the virtual clients a node is to play; a reply carries reports and
nothing else: no metrics, no sizes, no identity, no error text.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle._internal.arrays import Ids
from fl_shuffle.errors import InvalidValueError, require_integer
from fl_shuffle.flower.grid import NamedError
from fl_shuffle.flower.private_api import LocalArray
from fl_shuffle.shuffler.levels import Levels
from fl_shuffle.shuffler.local import PartialSum, Reports

REPORTS = "reports"
PACKED, SENT = "packed", "sent"
"""Of a node elsewhere, in a run of few bits: reports as bytes [m k, size], and whose were sent
[k]."""
TOTAL, VALID = "total", "valid"
"""Of a simulated node: the exact sum of its clients' reports, and of which."""
CLOCKS_APART_SECONDS = 60.0
"""Largest error of a node's clock before it treats a request as expired."""
# The names Flower's own strategies use, so that a ClientApp written for them works unchanged.
MODEL_RECORD = "arrays"
CONFIG_RECORD = "config"
SERVER_ROUND = "server-round"
REQUEST_RECORD = "request"
"""Beside them: whose reports are asked for."""
REPORT_RECORD = "report"
Kind = TypeVar("Kind", ArrayRecord, ConfigRecord)

FLOATING = ("float16", "float32", "float64")
"""Of a model's arrays: training is done in float32, and they go back as they came."""


def array_record(arrays: Mapping[str, NDArray[Any]], *, shared: bool) -> ArrayRecord:
    """Return a record of arrays that travel by reference within a process; `shared`: see
    `LocalArray`."""
    record = ArrayRecord()
    for name, values in arrays.items():
        # Not through the constructor: it serializes every array into a new `Array`.
        record[name] = LocalArray(values, shared=shared)
    return record


# The header that NumPy writes for an array in C order, and no other: nothing is evaluated, and
# nothing is allocated that is not there.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(<f4|\|u1)', 'fortran_order': False, 'shape': "
    rb"\(((?:\d{1,18}, )*(?:\d{1,18},?)?)\), \} *\n",
    re.DOTALL,
)
_LONGEST_HEADER = 1024


def float32_array(array: Array) -> NDArray[np.float32] | None:
    """Return the array that a party sent, or None if it is not float32 throughout or not whole.

    What it declares, its header and its size must agree; only then is it read.
    """
    return _whole_array(array, np.dtype("<f4"))


def bytes_array(array: Array) -> NDArray[np.uint8] | None:
    """Return an array of bytes that a party sent, as `float32_array` does."""
    return _whole_array(array, np.dtype("|u1"))


def _whole_array(array: Array, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    if isinstance(array, LocalArray):
        values = array.numpy()
        return values if isinstance(values, np.ndarray) and values.dtype == dtype else None
    data = array.data
    named = array.stype == "numpy.ndarray" and array.dtype == dtype.name
    if not named or not isinstance(data, bytes):
        return None
    header = _HEADER.match(data[:_LONGEST_HEADER])
    if header is None or header.group(1) != dtype.str.encode():
        return None
    shape = tuple(int(size) for size in re.findall(rb"\d+", header.group(2)))
    size = dtype.itemsize * math.prod(shape)
    if tuple(array.shape) != shape or len(data) - header.end() != size:
        return None
    values = np.frombuffer(data, dtype=dtype, offset=header.end()).reshape(shape)
    return values.astype(dtype.newbyteorder("="), copy=True)


@dataclass(frozen=True)
class ArrayLayout:
    """Names, shapes and types of the arrays that a flat float32 parameter vector stands for."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, record: ArrayRecord) -> ArrayLayout:
        """Return the layout of a record. Raises `InvalidValueError` for one without numbers, and
        for arrays that are not of NumPy's floating types."""
        for name, array in record.items():
            if array.dtype not in FLOATING:
                raise InvalidValueError(
                    f"dtype of {name}",
                    array.dtype,
                    f"every trained array must be floating point: {', '.join(FLOATING)}",
                    "BatchNorm keeps a count: use GroupNorm (Opacus' ModuleValidator.fix puts it "
                    "in), or send the parameters alone",
                )
        shapes = tuple(tuple(array.shape) for array in record.values())
        found = cls(tuple(record), shapes, tuple(array.dtype for array in record.values()))
        if not found.size:
            raise InvalidValueError("arrays", list(shapes), "must hold the model's parameters")
        return found

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(map(math.prod, self.shapes))

    def flatten(
        self, record: ArrayRecord, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Return the record's arrays as one vector, float32 [d]: a new one, or `out`.

        Raises `KeyError` for one that is missing, `InvalidValueError` for another number of values.
        """
        held = [record[name] for name in self.names]
        parts = [each.values if isinstance(each, LocalArray) else each.numpy() for each in held]
        count = sum(part.size for part in parts)
        if count != self.size:
            raise InvalidValueError("arrays", count, f"must be the model's {self.size} numbers")
        vector = np.empty(self.size, dtype=np.float32) if out is None else out
        return np.concatenate([part.reshape(-1) for part in parts], out=vector, casting="unsafe")

    def record(self, vector: NDArray[np.float32]) -> ArrayRecord:
        """Return a record of the vector, cut into the layout's arrays; each reader gets a copy."""
        arrays, start = dict[str, NDArray[Any]](), 0
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            end = start + math.prod(shape)
            arrays[name] = vector[start:end].reshape(shape).astype(dtype, copy=False)
            start = end
        return array_record(arrays, shared=True)


def vector_of(arrays: ArrayRecord) -> Tensor:
    """Return the arrays as one vector, float32 [d]; raises as `ArrayLayout.of` does."""
    return torch.from_numpy(ArrayLayout.of(arrays).flatten(arrays))


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """The virtual clients, ids ascending, that are to report on round `round_number`. `summed`: a
    simulated node may answer with the sum of their reports."""

    round_number: int
    clients: NDArray[np.int64]
    summed: bool = False

    def message(
        self,
        model: ArrayRecord,
        node_id: int,
        timeout: float | None = None,
        beside: Mapping[str, ArrayRecord | ConfigRecord] = MappingProxyType({}),
        facts: Mapping[str, str] = MappingProxyType({}),
    ) -> Message:
        """Return the training message that carries this request and the model.

        After `timeout` seconds nobody waits for the answer: it is not to be worked on any more.
        `beside` are further records; `facts` are the shuffler's (see `Shuffler.facts`). The clients
        are those of the range `first` .. `first + span - 1` whose bit is set in `bitmap`
        (`numpy.packbits`).
        """
        first = int(self.clients[0])
        asked = np.zeros(int(self.clients[-1]) - first + 1, dtype=bool)
        asked[self.clients - first] = True
        numbers = {"round": self.round_number, "first": first, "span": len(asked)}
        bitmap = np.packbits(asked).tobytes()
        request = ConfigRecord({**numbers, "bitmap": bitmap, "summed": self.summed, **facts})
        content = RecordDict({MODEL_RECORD: model, REQUEST_RECORD: request, **beside})
        return Message(
            content, node_id, MessageType.TRAIN, ttl=timeout, group_id=str(self.round_number)
        )

    @classmethod
    def of(cls, message: Message, clients: int | None = None) -> TrainRequest:
        """Read the request out of a training message.

        Raises `InvalidValueError` for one that names no clients, or others than the run's
        `clients`.
        """
        record = record_in(message.content, REQUEST_RECORD, ConfigRecord) or ConfigRecord()
        number = require_integer("requested round", record.get("round"), minimum=1)
        first = require_integer("first requested client", record.get("first"), minimum=0)
        most = None if clients is None else clients - first
        span = require_integer(
            "span of requested clients", record.get("span"), minimum=1, maximum=most
        )
        bitmap = record.get("bitmap")
        whole = isinstance(bitmap, bytes) and len(bitmap) == (span + 7) // 8
        bits = np.frombuffer(bitmap if whole else b"", np.uint8)  # type: ignore[arg-type]
        asked = np.flatnonzero(np.unpackbits(bits)[:span])
        if not asked.size:
            raise InvalidValueError("bitmap of requested clients", bitmap, "names nobody")
        return cls(number, first + asked, record.get("summed") is True)


def record_in(content: RecordDict, name: str, kind: type[Kind]) -> Kind | None:
    """Return the record of that name, if it is of that kind; else None.

    Flower's `content.array_records` and the like make a cycle of references around all records: a
    model would stay in memory until garbage is collected.
    """
    record = content.get(name)
    return record if isinstance(record, kind) else None


def model_in(content: RecordDict) -> ArrayRecord:
    """Return the model's arrays; raises `InvalidValueError` if there are none."""
    record = record_in(content, MODEL_RECORD, ArrayRecord)
    if record is None:
        raise InvalidValueError("model", "no arrays", f"must be an ArrayRecord, {MODEL_RECORD!r}")
    return record


def trained_in(content: RecordDict) -> ArrayRecord:
    """Return an app's arrays in its reply: of that name, or the only ones, as Flower's own
    strategies take them. Raises `InvalidValueError` for any other number of them."""
    found = [record for record in content.values() if isinstance(record, ArrayRecord)]
    return found[0] if len(found) == 1 else model_in(content)


def expired(message: Message) -> bool:
    """Return whether nobody waits for the answer any more. Clocks of nodes may be off by a
    minute."""
    metadata = message.metadata
    return time.time() > metadata.created_at + metadata.ttl + CLOCKS_APART_SECONDS


def reply_with(request: Message, **arrays: NDArray[Any]) -> Message:
    """Return a reply that holds these arrays and nothing else."""
    content = RecordDict({REPORT_RECORD: array_record(arrays, shared=False)})
    return Message(content, reply_to=request)


def read_answer(
    reply: Message,
    asked: TrainRequest,
    dimension: int,
    reasons: Counter[str],
    batches: int = 1,
    few_bits: Levels | None = None,
) -> Reports | PartialSum | None:
    """Return the answer in a reply, or None and another one of the reasons for missing reports.

    Each client reports to each of the round's `batches`. With `few_bits`, reports may come packed.
    Everything else that a reply might carry
    (metadata, error text, metrics) is left behind here.
    """
    clients = len(asked.clients)
    try:
        found = _failure(reply) or _read(reply, asked, (clients * batches, dimension), few_bits)
    except Exception as error:
        # An app in this process may return anything, also what raises when it is looked at.
        found = f"cannot be read ({type(error).__name__})"
    if not isinstance(found, str):
        return found
    reasons[found] += clients * batches
    return None


def _failure(reply: Message) -> str:
    """Return why a reply is an error; empty where it is none."""
    if not reply.has_error():
        return ""
    # What a client in this process raised is the user's to know; others' text stays out.
    return reply.error.cause if isinstance(reply.error, NamedError) else "failed"


def _read(
    reply: Message, asked: TrainRequest, shape: tuple[int, int], few_bits: Levels | None
) -> Reports | PartialSum | str:
    """Return the answer, or why it cannot be used. A sum counts only where it was asked for."""
    record = record_in(reply.content, REPORT_RECORD, ArrayRecord) if reply.has_content() else None
    if asked.summed and record is not None and TOTAL in record:
        total, valid = record[TOTAL].numpy(), record[VALID].numpy()
        fits = total.shape == shape[1:] and valid.shape == (len(asked.clients),)
        right = total.dtype == np.float64 and valid.dtype == np.bool_
        return PartialSum(total, valid) if fits and right else "wrong shape"
    if few_bits is not None and record is not None and PACKED in record:
        return _unpacked(record, asked.clients, shape, few_bits)
    array = None if record is None else record.get(REPORTS)
    if array is None:
        return "sent no report"
    if tuple(array.shape) != shape:
        return "wrong shape"
    rows = float32_array(array)
    if rows is None:
        return "not a whole float32 array"
    return Reports(rows) if rows.shape == shape else "wrong shape"


def _unpacked(
    record: ArrayRecord, clients: Ids, shape: tuple[int, int], few_bits: Levels
) -> Reports | str:
    """Return the packed reports in a record as rows [m k, d], NaN where none was sent; or why they
    cannot be used."""
    if SENT not in record:
        return "does not say whose reports it sent"
    packed, sent = bytes_array(record[PACKED]), bytes_array(record[SENT])
    if packed is None or sent is None or sent.shape != clients.shape or (sent > 1).any():
        return "wrong shape"
    times = shape[0] // len(clients)
    rows = few_bits.unpacked(packed, np.tile(clients, times), shape[1])
    if rows is None:
        return "not packed as few bits"
    rows[np.tile(sent == 0, times)] = np.nan
    return Reports(rows)

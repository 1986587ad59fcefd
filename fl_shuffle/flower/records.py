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
from functools import cached_property, lru_cache
from io import BytesIO
from itertools import accumulate
from threading import Lock
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from numpy.typing import NDArray

from fl_shuffle.errors import ConfigError, InvalidValueError, require_integer
from fl_shuffle.flower.grid import NamedError

PARAMETERS = "parameters"
REPORTS = "reports"
SUM = "sum of means"
CLIENTS = "clients"
"""How many clients the run has, in questions and requests."""
SUM_OF_REPORTS = "sum of reports"
USABLE = "usable"
CLOCKS_APART_SECONDS = 60.0
"""A node's clock may be off by so much before it takes a request for an expired one."""
# The names Flower's own strategies use, so that a ClientApp written for them works unchanged.
MODEL_RECORD = "arrays"
REQUEST_RECORD = "config"
REPORT_RECORD = "report"

# NumPy parses a file header with `ast`, which threads must not share in CPython 3.11.
_loading = Lock()


@lru_cache(maxsize=16)
def _name_of(dtype: np.dtype[Any]) -> str:
    return str(dtype)


class _LocalArray(Array):
    """An `Array` that holds a NumPy array and serializes it only if its bytes are asked for.

    Inside one process a report then travels by reference: the client gives its array away. What is
    `shared` (a model that goes to many clients) is copied for each reader, so that none can change
    what another sees. Flower keys its object store by class name, so this class carries the name of
    the one it stands for.
    """

    def __init__(self, values: NDArray[Any], *, shared: bool) -> None:
        self.dtype = _name_of(values.dtype)
        self.shape = tuple(values.shape)
        self.stype = "numpy.ndarray"
        self._values = values
        self._shared = shared

    @property
    def data(self) -> bytes:  # type: ignore[override]
        if "_serialized" not in self.__dict__:
            buffer = BytesIO()
            np.save(buffer, self._values, allow_pickle=False)
            self.__dict__["_serialized"] = buffer.getvalue()
        serialized: bytes = self.__dict__["_serialized"]
        return serialized

    def numpy(self) -> NDArray[Any]:
        """The array itself, or a copy of a shared one."""
        return self._values.copy() if self._shared else self._values

    def __reduce__(self) -> tuple[Any, ...]:
        return (Array, (self.dtype, self.shape, self.stype, self.data))


_LocalArray.__qualname__ = Array.__qualname__


def array_record(arrays: Mapping[str, NDArray[Any]], *, shared: bool) -> ArrayRecord:
    """A record of arrays that travel by reference within a process; `shared`: see `_LocalArray`."""
    record = ArrayRecord()
    for name, values in arrays.items():
        # Not through the constructor: it serializes every array into a new `Array`.
        record[name] = _LocalArray(values, shared=shared)
    return record


# The header that NumPy writes for a float32 array in C order, and no other: nothing is evaluated,
# and nothing is allocated that is not there.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '<f4', 'fortran_order': False, 'shape': "
    rb"\(((?:\d{1,18}, )*(?:\d{1,18},?)?)\), \} *\n",
    re.DOTALL,
)
_LONGEST_HEADER = 1024


def float32_array(array: Array) -> NDArray[np.float32] | None:
    """The array that a party sent, or None if it is not float32 throughout or not whole.

    What it declares, its header and its size must agree; only then is it read.
    """
    if isinstance(array, _LocalArray):
        values = array.numpy()
        return values if isinstance(values, np.ndarray) and values.dtype == np.float32 else None
    data = array.data
    if array.stype != "numpy.ndarray" or array.dtype != "float32" or not isinstance(data, bytes):
        return None
    header = _HEADER.match(data[:_LONGEST_HEADER])
    if header is None:
        return None
    shape = tuple(int(size) for size in re.findall(rb"\d+", header.group(1)))
    if tuple(array.shape) != shape or len(data) - header.end() != 4 * math.prod(shape):
        return None
    values = np.frombuffer(data, dtype="<f4", offset=header.end()).reshape(shape)
    return values.astype(np.float32, copy=True)


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the arrays that a flat float32 parameter vector stands for."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def flat(cls, dimension: int) -> Layout:
        """One array that is the vector itself."""
        return cls((PARAMETERS,), ((dimension,),))

    @classmethod
    def of(cls, record: ArrayRecord) -> Layout:
        """The layout of a record. Raises `InvalidValueError` for arrays that are not floating."""
        for name, array in record.items():
            if not array.dtype.startswith("float"):
                raise InvalidValueError(
                    f"dtype of {name}",
                    array.dtype,
                    "every trained array must be floating point",
                    "BatchNorm keeps such a count: use GroupNorm (Opacus' ModuleValidator.fix "
                    "puts it in), or send the parameters alone",
                )
        return cls(tuple(record), tuple(tuple(array.shape) for array in record.values()))

    def flatten(self, record: ArrayRecord) -> NDArray[np.float32]:
        """The record's arrays as one vector, float32 [d]."""
        with _loading:
            parts = [record[name].numpy().astype(np.float32).reshape(-1) for name in self.names]
        return np.concatenate(parts)

    def record(self, vector: NDArray[np.float32]) -> ArrayRecord:
        """A record that holds a copy of the vector, cut into the layout's arrays."""
        copied = vector.copy()
        arrays = {name: copied[part].reshape(shape) for name, part, shape in self._parts}
        return array_record(arrays, shared=True)

    @cached_property
    def _parts(self) -> list[tuple[str, slice, tuple[int, ...]]]:
        """Every array's name, where in the vector it lies, and its shape."""
        ends = list(accumulate(map(math.prod, self.shapes), initial=0))
        parts = map(slice, ends[:-1], ends[1:])
        return list(zip(self.names, parts, self.shapes, strict=True))


@dataclass(frozen=True)
class TrainRequest:
    """Virtual clients that are to report on round `round_number`: those of the range `first` ..
    `first + span - 1` whose bit is set in `bitmap` (`numpy.packbits`; empty: all of them).
    `summed`: a simulated node may answer with the sum of their reports."""

    round_number: int
    first: int
    span: int
    bitmap: bytes = b""
    summed: bool = False

    @property
    def clients(self) -> NDArray[np.int64]:
        """The client ids, ascending."""
        if not self.bitmap:
            return np.arange(self.first, self.first + self.span)
        bits = np.unpackbits(np.frombuffer(self.bitmap, np.uint8), count=self.span)
        return self.first + np.flatnonzero(bits)

    @property
    def places(self) -> slice | NDArray[np.int64]:
        """The same, as an index into arrays of all clients."""
        return self.clients if self.bitmap else slice(self.first, self.first + self.span)

    @classmethod
    def covering(cls, round_number: int, clients: NDArray[np.int64]) -> TrainRequest:
        """The request for these ascending client ids."""
        first, span = int(clients[0]), int(clients[-1] - clients[0]) + 1
        if span == len(clients):
            return cls(round_number, first, span)
        bits = np.zeros(span, dtype=bool)
        bits[clients - first] = True
        return cls(round_number, first, span, np.packbits(bits).tobytes())

    def message(
        self,
        model: ArrayRecord,
        node_id: int,
        timeout: float | None = None,
        clients: int | None = None,
    ) -> Message:
        """The training message that carries this request and the model, of a run of `clients`.

        After `timeout` seconds nobody waits for the answer: it is not to be worked on any more.
        """
        request = ConfigRecord(
            {
                "round": self.round_number,
                "first": self.first,
                "span": self.span,
                "bitmap": self.bitmap,
                **({} if clients is None else {CLIENTS: clients}),
                **({"summed": True} if self.summed else {}),
            }
        )
        content = RecordDict({MODEL_RECORD: model, REQUEST_RECORD: request})
        return Message(
            content, node_id, MessageType.TRAIN, ttl=timeout, group_id=str(self.round_number)
        )

    @classmethod
    def of(cls, message: Message, clients: int | None = None) -> TrainRequest:
        """Read the request out of a training message.

        Raises `InvalidValueError` for one that names no clients, or others than the run's
        `clients`: nothing of its size is made before that is known.
        """
        record = message.content.get(REQUEST_RECORD)
        record = record if isinstance(record, ConfigRecord) else ConfigRecord()
        number, first, span = (record.get(key) for key in ("round", "first", "span"))
        bitmap = record.get("bitmap")
        require_integer("requested round", number, minimum=1)
        require_integer("first requested client", first, minimum=0)
        most = None if clients is None else clients - int(first)  # type: ignore[arg-type]
        require_integer("span of requested clients", span, minimum=1, maximum=most)
        if not isinstance(bitmap, bytes) or len(bitmap) not in (0, (int(span) + 7) // 8):  # type: ignore[arg-type]
            raise InvalidValueError("bitmap of requested clients", bitmap, "has the wrong size")
        summed = record.get("summed") is True
        return cls(int(number), int(first), int(span), bitmap, summed)  # type: ignore[arg-type]


def arrays_in(content: RecordDict, name: str) -> ArrayRecord | None:
    """The arrays of that name; None if there are none."""
    record = content.get(name)
    return record if isinstance(record, ArrayRecord) else None


def expired(message: Message) -> bool:
    """Whether nobody waits for the answer any more. Clocks of nodes may be off by a minute."""
    metadata = message.metadata
    return time.time() > metadata.created_at + metadata.ttl + CLOCKS_APART_SECONDS


def reply_with_reports(request: Message, reports: NDArray[np.float32]) -> Message:
    """A reply that holds the reports [k, d] and nothing else."""
    content = RecordDict({REPORT_RECORD: array_record({REPORTS: reports}, shared=False)})
    return Message(content, reply_to=request)


def reply_with_sum(request: Message, total: NDArray[np.float64]) -> Message:
    """A simulated node's reply where no reports are made: the sum [d] of its clients' means."""
    content = RecordDict({REPORT_RECORD: array_record({SUM: total}, shared=False)})
    return Message(content, reply_to=request)


def reply_with_sum_of_reports(
    request: Message, total: NDArray[np.float64], usable: NDArray[np.bool_]
) -> Message:
    """A simulated node's reply: the exact sum [d] of its clients' reports, and of which [k]."""
    arrays = {SUM_OF_REPORTS: total, USABLE: usable}
    content = RecordDict({REPORT_RECORD: array_record(arrays, shared=False)})
    return Message(content, reply_to=request)


def sum_of_reports(
    reply: Message, clients: int, dimension: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
    """(sum, of which clients) in a simulated node's reply; None if it holds no such pair."""
    record = None if reply.has_error() else arrays_in(reply.content, REPORT_RECORD)
    if record is None:
        return None
    if SUM_OF_REPORTS not in record or USABLE not in record:
        return None
    total, usable = record[SUM_OF_REPORTS].numpy(), record[USABLE].numpy()
    if total.shape != (dimension,) or total.dtype != np.float64:
        return None
    return (total, usable) if usable.shape == (clients,) and usable.dtype == np.bool_ else None


def sum_of(reply: Message) -> NDArray[np.float64] | None:
    """The sum [d] in a reply, or None if it holds none that can be used.

    Raises `ConfigError` for a reply with reports: its client app makes some, whatever it is asked.
    """
    record = None if reply.has_error() else arrays_in(reply.content, REPORT_RECORD)
    if record is None:
        return None
    if REPORTS in record:
        raise ConfigError(
            "run.noise = 'pooled': the client app sends reports, so the noise is in them; set "
            "run.noise = 'per-report'"
        )
    if SUM not in record:
        return None
    total = record[SUM].numpy()
    return total if total.ndim == 1 and total.dtype == np.float64 else None


def reports_of(
    reply: Message,
    shape: tuple[int, int] | None = None,
    causes: Counter[str] | None = None,
) -> NDArray[np.float32] | None:
    """The reports [k, d] in a reply, or None if it holds none that can be used.

    `shape` is the one they must have. `causes` counts why a reply was left out, once for each
    report asked for. Everything else a reply might carry (metadata, error text, metrics) is left
    behind here.
    """
    reports, cause = _reports_or_cause(reply, shape)
    if reports is None and causes is not None:
        causes[cause] += 1 if shape is None else shape[0]
    return reports


def _reports_or_cause(
    reply: Message, shape: tuple[int, int] | None
) -> tuple[NDArray[np.float32] | None, str]:
    if reply.has_error():
        # What a client in this process raised is the user's to know; others' text stays out.
        return None, reply.error.cause if isinstance(reply.error, NamedError) else "failed"
    record = arrays_in(reply.content, REPORT_RECORD) if reply.has_content() else None
    array = None if record is None else record.get(REPORTS)
    if array is None:
        return None, "sent no report"
    if shape is not None and tuple(array.shape) != shape:
        return None, "wrong shape"
    reports = float32_array(array)
    if reports is None:
        return None, "not a whole float32 array"
    if reports.ndim != 2 or (shape is not None and reports.shape != shape):
        return None, "wrong shape"
    return reports, ""

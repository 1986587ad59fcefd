"""What travels between server and clients, and how it is packed into Flower records.

A request names the round and the virtual clients a node is to play; a reply carries reports and
nothing else: no metrics, no sizes, no identity, no error text.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from itertools import accumulate
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    RecordDict,
)
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.errors import InvalidValueError, require_integer

PARAMETERS = "parameters"
REPORTS = "reports"
TOTAL, VALID = "total", "valid"
"""Of a simulated node: the exact sum of its clients' reports, and of which."""
CLOCKS_APART_SECONDS = 60.0
"""A node's clock may be off by so much before it takes a request for an expired one."""
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


class _LocalArray(Array):
    """An `Array` that holds a NumPy array and serializes it only if its bytes are asked for.

    Inside one process a report then travels by reference: the client gives its array away. What is
    `shared` (a model that goes to many clients) is copied for each reader, so that none can change
    what another sees. Flower keys its object store by class name, so this class carries the name of
    the one it stands for.
    """

    def __init__(self, values: NDArray[Any], *, shared: bool) -> None:
        self.dtype = str(values.dtype)
        self.shape = tuple(values.shape)
        self.stype = "numpy.ndarray"
        self.values = values  # for who only reads
        self._shared = shared

    @property
    def data(self) -> bytes:  # type: ignore[override]
        if "_serialized" not in self.__dict__:
            buffer = BytesIO()
            np.save(buffer, self.values, allow_pickle=False)
            self.__dict__["_serialized"] = buffer.getvalue()
        serialized: bytes = self.__dict__["_serialized"]
        return serialized

    def numpy(self) -> NDArray[Any]:
        """The array itself, or a copy of a shared one."""
        return self.values.copy() if self._shared else self.values

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
    """Names, shapes and types of the arrays that a flat float32 parameter vector stands for."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def flat(cls, dimension: int) -> Layout:
        """One array that is the vector itself."""
        return cls((PARAMETERS,), ((dimension,),), ("float32",))

    @classmethod
    def of(cls, record: ArrayRecord) -> Layout:
        """The layout of a record. Raises `InvalidValueError` for one without numbers, and for
        arrays that are not of NumPy's floating types."""
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
        """The record's arrays as one vector, float32 [d]: a new one, or `out`.

        Raises `KeyError` for one that is missing, `InvalidValueError` for another number of values.
        """
        found, filled = np.empty(self.size, dtype=np.float32) if out is None else out, 0
        for name in self.names:
            array = record[name]
            part = array.values if isinstance(array, _LocalArray) else array.numpy()
            part = part.reshape(-1)
            if filled + part.size <= self.size:
                found[filled : filled + part.size] = part
            filled += part.size
        if filled != self.size:
            raise InvalidValueError("arrays", filled, f"must be the model's {self.size} numbers")
        return found

    def record(self, vector: NDArray[np.float32]) -> ArrayRecord:
        """A record of the vector, cut into the layout's arrays; whoever reads one gets a copy."""
        arrays = {
            name: vector[part].reshape(shape).astype(dtype, copy=False)
            for name, part, shape, dtype in self._parts
        }
        return array_record(arrays, shared=True)

    @cached_property
    def _parts(self) -> list[tuple[str, slice, tuple[int, ...], str]]:
        """Every array's name, where in the vector it lies, its shape and type."""
        ends = list(accumulate(map(math.prod, self.shapes), initial=0))
        parts = map(slice, ends[:-1], ends[1:])
        return list(zip(self.names, parts, self.shapes, self.dtypes, strict=True))


def vector_of(arrays: ArrayRecord) -> Tensor:
    """The arrays as one vector, float32 [d]; raises as `Layout.of` does."""
    return torch.from_numpy(Layout.of(arrays).flatten(arrays))


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
        beside: Mapping[str, ArrayRecord | ConfigRecord] = MappingProxyType({}),
        facts: Mapping[str, str] = MappingProxyType({}),
    ) -> Message:
        """The training message that carries this request and the model.

        After `timeout` seconds nobody waits for the answer: it is not to be worked on any more.
        `beside` are further records; `facts` are the shuffler's (see `Shuffler.facts`).
        """
        request = ConfigRecord(
            {
                "round": self.round_number,
                "first": self.first,
                "span": self.span,
                "bitmap": self.bitmap,
                **({"summed": True} if self.summed else {}),
                **facts,
            }
        )
        content = RecordDict({MODEL_RECORD: model, REQUEST_RECORD: request, **beside})
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


def record_in(content: RecordDict, name: str, kind: type[Kind]) -> Kind | None:
    """The record of that name, if it is of that kind; else None.

    Flower's `content.array_records` and the like make a cycle of references around all records: a
    model would stay in memory until garbage is collected.
    """
    record = content.get(name)
    return record if isinstance(record, kind) else None


def model_in(content: RecordDict) -> ArrayRecord:
    """The model's arrays; raises `KeyError` if there are none."""
    record = record_in(content, MODEL_RECORD, ArrayRecord)
    if record is None:
        raise KeyError(MODEL_RECORD)
    return record


def trained_in(content: RecordDict) -> ArrayRecord:
    """An app's arrays in its reply: of that name, or the only ones, as Flower's own strategies take
    them. Raises `KeyError` for any other number of them."""
    found = [record for record in content.values() if isinstance(record, ArrayRecord)]
    return found[0] if len(found) == 1 else model_in(content)


def expired(message: Message) -> bool:
    """Whether nobody waits for the answer any more. Clocks of nodes may be off by a minute."""
    metadata = message.metadata
    return time.time() > metadata.created_at + metadata.ttl + CLOCKS_APART_SECONDS


def reply_with(request: Message, **arrays: NDArray[Any]) -> Message:
    """A reply that holds these arrays and nothing else."""
    content = RecordDict({REPORT_RECORD: array_record(arrays, shared=False)})
    return Message(content, reply_to=request)

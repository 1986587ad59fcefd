"""The calls a shuffler answers, and their bytes: fixed layouts, so that nothing is guessed."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.shuffler.remote.agreement import (
    ENCODED_BYTES,
    LARGEST_ROUND,
    RUN_BYTES,
    Agreement,
    require_run,
)
from fl_shuffle.shuffler.remote.credentials import TOKEN_BYTES

SERVICE = "fl_shuffle.Shuffler"
DELIVER, BEGIN, CLOSE, FETCH, FINISH = "Deliver", "Begin", "Close", "Fetch", "Finish"

OPEN, CLOSED, HANDED_OVER = b"\x00", b"\x01", b"\x02"
"""Where a round stands, as `BEGIN` answers."""

_HEAD = struct.Struct(f">{TOKEN_BYTES}s{RUN_BYTES}sQ")
_CLIENT = struct.Struct(">Q")
HEAD_BYTES = _HEAD.size + ENCODED_BYTES + _CLIENT.size
"""What a delivery has beside the sealed reports."""


@dataclass(frozen=True)
class Call:
    """Who calls (`token`), about which round of which run."""

    token: bytes
    run: str
    round_number: int

    def encoded(self, rest: bytes = b"") -> bytes:
        return _HEAD.pack(self.token, bytes.fromhex(self.run), self.round_number) + rest

    @classmethod
    def decoded(cls, data: bytes) -> tuple[Call, bytes]:
        """The call, and what follows it. Raises `InvalidValueError` for anything else."""
        if len(data) < _HEAD.size:
            raise InvalidValueError("call", f"{len(data)} bytes", "is too short")
        token, run, number = _HEAD.unpack_from(data)
        if not 1 <= number <= LARGEST_ROUND:
            raise InvalidValueError("round", number, f"must be in [1, {LARGEST_ROUND}]")
        return cls(token, require_run(run.hex()), number), data[_HEAD.size :]


def encode_delivery(call: Call, agreement: Agreement, client: int, sealed: bytes) -> bytes:
    """A client's sealed reports of a round, and the run's facts that they are bound to."""
    return call.encoded(agreement.encoded() + _CLIENT.pack(client) + sealed)


def decode_delivery(data: bytes) -> tuple[Call, Agreement, int, bytes]:
    """(call, the run's facts, client, sealed reports). Raises `InvalidValueError` for anything
    else."""
    call, agreement, rest = _with_facts(data)
    if len(rest) < _CLIENT.size:
        raise InvalidValueError("delivery", f"{len(data)} bytes", "is too short")
    return call, agreement, int(_CLIENT.unpack_from(rest)[0]), rest[_CLIENT.size :]


def encode_beginning(call: Call, agreement: Agreement, asked: NDArray[np.bool_]) -> bytes:
    """The run's facts, and which clients are asked in the round (mask [clients])."""
    return call.encoded(agreement.encoded() + bitmap_of(asked))


def decode_beginning(data: bytes) -> tuple[Call, Agreement, NDArray[np.bool_]]:
    """(call, the run's facts, who is asked). Raises `InvalidValueError` for anything else."""
    call, agreement, rest = _with_facts(data)
    return call, agreement, mask_of(rest, agreement.clients)


def _with_facts(data: bytes) -> tuple[Call, Agreement, bytes]:
    call, rest = Call.decoded(data)
    agreement = Agreement.decoded(rest[:ENCODED_BYTES])
    if agreement.run != call.run:
        raise InvalidValueError("run", call.run, "is not the one whose facts follow")
    return call, agreement, rest[ENCODED_BYTES:]


def bitmap_of(mask: NDArray[np.bool_]) -> bytes:
    """A mask of clients, a bit for each."""
    return np.packbits(mask).tobytes()


def mask_of(bitmap: bytes, clients: int) -> NDArray[np.bool_]:
    """The mask [clients] in a bitmap. Raises `InvalidValueError` if it is of another size."""
    if len(bitmap) != (clients + 7) // 8:
        raise InvalidValueError("bitmap of clients", f"{len(bitmap)} bytes", "has another size")
    return np.unpackbits(np.frombuffer(bitmap, np.uint8), count=clients).astype(bool)


def decode_plain(data: bytes) -> Call:
    """A call with nothing beside it. Raises `InvalidValueError` for anything else."""
    call, rest = Call.decoded(data)
    if rest:
        raise InvalidValueError("call", f"{len(data)} bytes", "is too long")
    return call

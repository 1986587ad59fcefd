"""The calls a shuffler answers, and their bytes: a line of JSON, and what is sent with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import FlShuffleError, InvalidValueError, require_integer
from fl_shuffle.shuffler.remote.agreement import Agreement

SERVICE = "fl_shuffle.Shuffler"
METHODS = DELIVER, BEGIN, CLOSE, FETCH, FINISH = "Deliver", "Begin", "Close", "Fetch", "Finish"

OPEN, CLOSED, HANDED_OVER = range(3)
"""Where a round stands, as `BEGIN` answers in a byte."""

LARGEST_ROUND = (1 << 32) - 1
HEAD_BYTES = 4096
"""No such line has more."""
POSITION_BYTES = 6
"""Of a position in a batch, as `FETCH` is sent it."""


class ShufflerError(FlShuffleError):
    """A call that a shuffler refuses, or does not answer; `reason` is gRPC's status code, by
    name."""

    exit_code = 1

    def __init__(self, text: str, reason: str = "FAILED_PRECONDITION") -> None:
        self.reason = reason
        super().__init__(text)


@dataclass(frozen=True)
class Call:
    """About which round of which run, by all of its facts; and whose the reports are that are
    handed over. Raises `InvalidValueError` for what cannot be."""

    agreement: Agreement
    round_number: int
    client: int = 0

    def __post_init__(self) -> None:
        require_integer("round", self.round_number, minimum=1, maximum=LARGEST_ROUND)
        require_integer("client", self.client, minimum=0)

    def encoded(self, token: str, sent: bytes = b"") -> bytes:
        """The call of whoever has this token, and what is sent with it."""
        return json.dumps({**asdict(self), "token": token}).encode() + b"\n" + sent

    @classmethod
    def decoded(cls, data: bytes) -> tuple[str, Call, bytes]:
        """The token, the call, and what is sent with it; raises `InvalidValueError` for anything
        else."""
        line, _, sent = data.partition(b"\n")
        try:
            head = json.loads(line)
            token, facts = str(head.pop("token")), Agreement(**head.pop("agreement"))
            return token, cls(facts, **head), sent
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            raise InvalidValueError(
                "call", f"{len(data)} bytes", "is none of this version"
            ) from None


def bitmap_of(mask: NDArray[np.bool_]) -> bytes:
    """A mask of clients, a bit for each."""
    return np.packbits(mask).tobytes()


def mask_of(bitmap: bytes, clients: int) -> NDArray[np.bool_]:
    """The mask [clients] in a bitmap. Raises `InvalidValueError` if it is of another size."""
    if len(bitmap) != (clients + 7) // 8:
        raise InvalidValueError("bitmap of clients", f"{len(bitmap)} bytes", "has another size")
    return np.unpackbits(np.frombuffer(bitmap, np.uint8), count=clients).astype(bool)

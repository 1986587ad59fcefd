"""The calls a shuffler answers, and their bytes: a head in JSON behind its length, and a body."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import FlShuffleError, InvalidValueError, require_integer
from fl_shuffle.shuffler.remote.agreement import Agreement, require_run

SERVICE = "fl_shuffle.Shuffler"
METHODS = DELIVER, BEGIN, CLOSE, FETCH, FINISH = "Deliver", "Begin", "Close", "Fetch", "Finish"

OPEN, CLOSED, HANDED_OVER = b"\x00", b"\x01", b"\x02"
"""Where a round stands, as `BEGIN` answers."""

LARGEST_ROUND = (1 << 32) - 1
HEAD_BYTES = 4096
"""No head has more."""
POSITION_BYTES = 6
"""Of a position in a batch, as `FETCH` is sent it."""
_LENGTH = 4
"""Bytes of a head's length."""


class ShufflerError(FlShuffleError):
    """A call that a shuffler refuses, or does not answer; `reason` is gRPC's status code, by
    name."""

    exit_code = 1

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        super().__init__(text)


@dataclass(frozen=True)
class Call:
    """About which round of which run; where one is begun or reports are handed over the run's
    `agreement`, and whose the reports are."""

    run: str
    round_number: int
    agreement: Agreement | None = None
    client: int | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Run and round."""
        return self.run, self.round_number

    def encoded(self, token: bytes, sent: bytes = b"") -> bytes:
        """The call of whoever has this token, and what is sent with it."""
        head = json.dumps({**asdict(self), "token": token.hex()}).encode()
        return len(head).to_bytes(_LENGTH, "big") + head + sent

    @classmethod
    def decoded(cls, data: bytes) -> tuple[bytes, Call, bytes]:
        """The token, the call, and what is sent with it; raises `InvalidValueError` for anything
        else."""
        end = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
        try:
            head = json.loads(data[_LENGTH:end])
            token, facts, client = bytes.fromhex(head["token"]), head["agreement"], head["client"]
            call = cls(
                require_run(head["run"]),
                require_integer("round", head["round_number"], minimum=1, maximum=LARGEST_ROUND),
                None if facts is None else Agreement(**facts),
                None if client is None else require_integer("client", client, minimum=0),
            )
        except FlShuffleError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError):
            raise InvalidValueError(
                "call", f"{len(data)} bytes", "is none of this version"
            ) from None
        if call.agreement is not None and call.agreement.run != call.run:
            raise InvalidValueError("run", call.run, "is not the one whose facts follow")
        return token, call, data[end:]


def bitmap_of(mask: NDArray[np.bool_]) -> bytes:
    """A mask of clients, a bit for each."""
    return np.packbits(mask).tobytes()


def mask_of(bitmap: bytes, clients: int) -> NDArray[np.bool_]:
    """The mask [clients] in a bitmap. Raises `InvalidValueError` if it is of another size."""
    if len(bitmap) != (clients + 7) // 8:
        raise InvalidValueError("bitmap of clients", f"{len(bitmap)} bytes", "has another size")
    return np.unpackbits(np.frombuffer(bitmap, np.uint8), count=clients).astype(bool)

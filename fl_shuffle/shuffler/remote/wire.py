"""The calls a shuffler answers, and their bytes over TLS.

A peer sends a line of JSON: the call, its token, and how many bytes it would send beside it. The
shuffler answers with lines of JSON: "WAITING" any number of times, then "CONTINUE", whereupon the
peer sends those bytes, or what came of the call, with as many bytes as the line says behind it.
Nothing but that first line is taken from a peer before the shuffler knows who it is, and what it
may send. A connection serves one call after the other.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import FlShuffleError, InvalidValueError, require_choice, require_integer
from fl_shuffle.shuffler.remote.agreement import Agreement

METHODS = DELIVER, BEGIN, CLOSE, FETCH, FINISH = "Deliver", "Begin", "Close", "Fetch", "Finish"

OPEN, CLOSED, HANDED_OVER = range(3)
"""Where a round stands, as `BEGIN` answers in a byte."""

OK, WAITING, CONTINUE = "OK", "WAITING", "CONTINUE"
"""What an answer says that is no refusal."""

LARGEST_ROUND = (1 << 32) - 1
LARGEST_CALL = 1 << 40
"""Bytes beside a call; nothing of a declared size is allocated."""
HEAD_BYTES = 4096
"""No line has more."""
POSITION_BYTES = 6
"""Of a position in a batch, as `FETCH` is sent it."""


class ShufflerError(FlShuffleError):
    """A call that a shuffler refuses, or does not answer; `reason` is one of gRPC's names of status
    codes."""

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

    def announced(self, method: str, token: str, size: int = 0) -> bytes:
        """Return the line that announces this call of a peer with this token, and `size` bytes."""
        facts = {**asdict(self), "method": method, "token": token, "bytes": size}
        return json.dumps(facts).encode() + b"\n"


@dataclass(frozen=True)
class Announced:
    """A call that a peer announces: the method, how many bytes it would send, the call itself."""

    method: str
    size: int
    call: Call

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Announced:
        """Return what the line says; raises `FlShuffleError` for what cannot be."""
        try:
            method = require_choice("method", facts.pop("method"), METHODS)
            size = require_integer("bytes", facts.pop("bytes"), minimum=0, maximum=LARGEST_CALL)
            return cls(method, size, Call(Agreement(**facts.pop("agreement")), **facts))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise _none_of_this_version() from None


def facts_in(line: bytes) -> tuple[str, dict[str, Any]]:
    """Return the token in a line that announces a call, and the rest of it, unchecked; raises
    `ShufflerError` for any other line."""
    try:
        facts = json.loads(line)
        token = facts.pop("token")
        if not isinstance(token, str) or not token.isascii():
            raise _none_of_this_version()
        return token, dict(facts)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise _none_of_this_version() from None


def _none_of_this_version() -> ShufflerError:
    return ShufflerError("this is no call of this version", "INVALID_ARGUMENT")


@dataclass(frozen=True)
class Reply:
    """A line of an answer: a reason, words for a refusal, and how many bytes follow."""

    reason: str
    said: str = ""
    size: int = 0

    def encoded(self) -> bytes:
        """Return the reply as it travels."""
        return (
            json.dumps({"reason": self.reason, "said": self.said, "bytes": self.size}).encode()
            + b"\n"
        )

    @classmethod
    def decoded(cls, line: bytes) -> Reply:
        """Raise `ValueError` for a line that is none."""
        try:
            facts = json.loads(line)
            size = require_integer("bytes", facts["bytes"], minimum=0)
            return cls(str(facts["reason"]), str(facts["said"]), size)
        except (KeyError, TypeError, RecursionError, InvalidValueError):
            raise ValueError("that is no answer of this version's shuffler") from None


def bitmap_of(mask: NDArray[np.bool_]) -> bytes:
    """Return a mask of clients, a bit for each."""
    return np.packbits(mask).tobytes()


def mask_of(bitmap: bytes, clients: int) -> NDArray[np.bool_]:
    """Return the mask [clients] in a bitmap. Raises `InvalidValueError` if it is of another
    size."""
    if len(bitmap) != (clients + 7) // 8:
        raise InvalidValueError("bitmap of clients", f"{len(bitmap)} bytes", "has another size")
    return np.unpackbits(np.frombuffer(bitmap, np.uint8), count=clients).astype(bool)

"""Clients that fail in the worst ways: each is absent, and no run ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

import fl_shuffle as fs
from clients.app import app as honest
from fl_shuffle.errors import DataError
from tests.small_federation import Launch, model_bytes

CLIENTS = 12


class Silent(Exception):
    """An exception that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Trap(Array):
    """An array that raises when it is read, or has no shape."""

    def __init__(self, whole: Array, **changes: Any) -> None:
        super().__init__(whole.dtype, whole.shape, whole.stype, whole.data)
        self.__dict__.update(changes)

    def __getattribute__(self, name: str) -> Any:
        if name == "data" and self.__dict__.get("trapped"):
            raise KeyError("data")
        return super().__getattribute__(name)


Trap.__qualname__ = Array.__qualname__


def trapped(**changes: Any) -> Callable[[Message, Message], Message]:
    def answer(asked: Message, reply: Message) -> Message:
        whole = Array(reply.content.array_records["report"]["reports"].numpy())
        record = ArrayRecord({"reports": Trap(whole, **changes)})
        return Message(RecordDict({"report": record}), reply_to=asked)

    return answer


def raising(error: Exception) -> Callable[[Message, Message], Message]:
    def answer(asked: Message, reply: Message) -> Message:
        raise error

    return answer


def in_doubles(asked: Message, reply: Message) -> Message:
    torch.set_default_dtype(torch.float64)
    raise ValueError("and now everything is float64")


FAILURES = [
    raising(DataError("a record of mine")),
    raising(Silent()),
    trapped(trapped=True),
    trapped(shape=("x", None)),
    trapped(dtype=None),
    in_doubles,
]
"""How the first clients fail, each in its own way."""


def in_their_ways(message: Message, context: Context) -> Message:
    reply, first = honest(message, context), message.content.config_records["request"]["first"]
    return FAILURES[first](message, reply) if first < len(FAILURES) else reply


def alike(message: Message, context: Context) -> Message:
    reply, first = honest(message, context), message.content.config_records["request"]["first"]
    return FAILURES[0](message, reply) if first < len(FAILURES) else reply


def test_a_client_that_fails_is_absent_and_the_run_goes_on(launch: Launch, tmp_path: Path) -> None:
    settings = ("run.rounds=2", "training.schedule=sequential")
    for name in ("in_their_ways", "alike"):
        assert launch(name, *settings, f"app.client={__name__}:{name}") == 0
    result = fs.Result(tmp_path / "in_their_ways")
    assert list(result.metrics["n_reports"]) == [CLIENTS - len(FAILURES)] * 2
    for client in range(CLIENTS):
        assert result.ledger.client(client).rounds == (2 if client >= len(FAILURES) else 0)
    # What the others sent is what they sent: the failed ones changed nothing else.
    assert model_bytes(tmp_path / "in_their_ways") == model_bytes(tmp_path / "alike")

"""Clients that fail in the worst ways: each is absent, and no run ends.

What they may send instead of a report: `tests/flower/test_hostile_replies.py`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import Context, Message

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


FAILURES = (DataError("a record of mine"), Silent(), ValueError("and now everything is float64"))
"""How the first clients fail, each in its own way."""


def in_their_ways(message: Message, context: Context) -> Message:
    reply, first = honest(message, context), message.content.config_records["request"]["first"]
    if first < len(FAILURES):
        torch.set_default_dtype(torch.float64 if first == 2 else torch.float32)
        raise FAILURES[first]
    return reply


def alike(message: Message, context: Context) -> Message:
    reply, first = honest(message, context), message.content.config_records["request"]["first"]
    if first < len(FAILURES):
        raise FAILURES[0]
    return reply


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

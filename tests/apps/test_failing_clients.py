"""Clients that fail in the worst ways: each is absent, and no run ends.

What they may send instead of a report: `tests/flower/test_rounds.py`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import Context, Message

import fl_shuffle as fs
from benchmarks.chaos.hostile import Silent
from clients.app import app as honest
from fl_shuffle.errors import DataError
from tests.small_federation import Launch, model_bytes

CLIENTS = 12


FAILURES = (DataError("a record of mine"), Silent(), ValueError("and now everything is float64"))
"""How the first clients fail: each in its own way, or all like the first."""


def failing(message: Message, context: Context) -> Message:
    reply, first = honest(message, context), message.content.config_records["request"]["first"]
    if first < len(FAILURES):
        alike = context.run_config["alike"]
        torch.set_default_dtype(torch.float32 if alike or first < 2 else torch.float64)
        raise FAILURES[0 if alike else first]
    return reply


def test_a_client_that_fails_is_absent_and_the_run_goes_on(launch: Launch, tmp_path: Path) -> None:
    settings = ("run.rounds=2", "training.schedule=sequential")
    for name in ("in_their_ways", "alike"):
        alike = f"app.config={{alike = {str(name == 'alike').lower()}}}"
        assert launch(name, *settings, f"app.client={__name__}:failing", alike) == 0
    result = fs.Result(tmp_path / "in_their_ways")
    assert list(result.metrics["n_reports"]) == [CLIENTS - len(FAILURES)] * 2
    for client in range(CLIENTS):
        assert result.ledger.client(client).rounds == (2 if client >= len(FAILURES) else 0)
    # What the others sent is what they sent: the failed ones changed nothing else.
    assert model_bytes(tmp_path / "in_their_ways") == model_bytes(tmp_path / "alike")

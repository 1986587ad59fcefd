"""Clients that fail in the worst ways: each is absent, and no run ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

import fl_shuffle as fs
from clients.app import app as honest
from fl_shuffle.errors import ConfigError, DataError
from fl_shuffle.flower import ShuffleClientApp, ShuffleStrategy
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
    trapped(shape=None),
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


def randomizer(
    mean: np.ndarray, epsilon0: float, delta0: float, generator: np.random.Generator
) -> object:
    """An own randomizer that has no report for about a third of the clients."""
    if generator.random() < 1 / 3:
        raise ConfigError("a setting of mine") if epsilon0 < 2.0 else Silent()
    return mean + generator.standard_normal(len(mean))


def test_a_randomizer_that_raises_costs_that_client_its_report_alone(
    launch: Launch, tmp_path: Path
) -> None:
    assert launch("run", f"privacy.randomizer={__name__}:randomizer") == 0
    reports = fs.Result(tmp_path / "run").metrics["n_reports"]
    assert 0 < min(reports) <= max(reports) < CLIENTS


own = ShuffleClientApp()
own_server = ServerApp()
dtypes: list[torch.dtype] = []


@own.train()
def train(message: Message, context: Context) -> Message:
    """Client 3 fails; the others see torch as it was, and move towards one."""
    dtypes.append(torch.get_default_dtype())
    if context.node_config["partition-id"] == 3:
        torch.set_default_dtype(torch.float64)
        raise Silent() if message.content["config"]["server-round"] == 1 else DataError("mine")
    arrays = {"weight": Array(message.content["arrays"]["weight"].numpy() + np.float32(1.0))}
    return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)


@own_server.main()
def serve(grid: Grid, context: Context) -> None:
    start = ArrayRecord({"weight": Array(np.zeros(4, np.float32))})
    ShuffleStrategy.of(context).start(grid, start)


def test_what_an_own_app_raises_stays_with_its_client(launch: Launch, tmp_path: Path) -> None:
    settings = (f"app.client={__name__}:own", f"app.server={__name__}:own_server")
    dtypes.clear()
    assert launch("run", *settings, "run.rounds=2") == 0
    # Training that fails is sent as zero and noise: nobody is absent.
    assert list(fs.Result(tmp_path / "run").metrics["n_reports"]) == [CLIENTS] * 2
    assert set(dtypes) == {torch.float32} and torch.get_default_dtype() == torch.float32

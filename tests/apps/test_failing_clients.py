"""Clients of a user's own app that fail in the worst ways: each is absent, and no run ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
        record = ArrayRecord()
        record["reports"] = Trap(whole, **changes)
        return Message(RecordDict({"report": record}), reply_to=asked)

    return answer


def raising(error: BaseException) -> Callable[[Message, Message], Message]:
    def answer(asked: Message, reply: Message) -> Message:
        raise error

    return answer


def in_doubles(asked: Message, reply: Message) -> Message:
    torch.set_default_dtype(torch.float64)
    raise ValueError("and now everything is float64")


FAILURES: dict[str, Callable[[Message, Message], Message]] = {
    "ConfigError": raising(ConfigError("a setting of mine")),
    "DataError": raising(DataError("a record of mine")),
    "no text": raising(Silent()),
    "data raises": trapped(trapped=True),
    "no shape": trapped(shape=None),
    "a shape of texts": trapped(shape=("x", None)),
    "no dtype": trapped(dtype=None),
    "another default dtype": in_doubles,
}
current: list[str] = []


def client(message: Message, context: Context) -> Message:
    """Honest, but for client 0, which fails as `current` says."""
    reply = honest(message, context)
    if message.content.config_records["request"]["first"]:
        return reply
    return FAILURES[current[0]](message, reply)


def randomizer(
    mean: np.ndarray, epsilon0: float, delta0: float, generator: np.random.Generator
) -> object:
    """An own randomizer that has no report for about a third of the clients."""
    if generator.random() < 1 / 3:
        raise ConfigError("a setting of mine") if epsilon0 < 2.0 else Silent()
    return mean + generator.standard_normal(len(mean))


@pytest.fixture(autouse=True)
def _default_dtype() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", FAILURES)
def test_a_client_that_fails_is_absent_and_the_run_goes_on(
    kind: str, launch: Launch, tmp_path: Path
) -> None:
    current[:] = [kind]
    settings = (f"app.client={__name__}:client", "run.rounds=2", "training.schedule=sequential")
    assert launch("run", *settings) == 0
    result = fs.Result(tmp_path / "run")
    assert list(result.metrics["n_reports"]) == [CLIENTS - 1] * 2
    assert result.ledger.client(0).rounds == 0
    # What the others sent is what they sent: the failed one changed nothing else.
    current[:] = ["ConfigError"]
    assert launch("again", *settings) == 0
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "again")


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

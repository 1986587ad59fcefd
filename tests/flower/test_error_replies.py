"""What a deployed node that fails tells the server: the fault's class and the names of settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.app import app
from fl_shuffle import errors
from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.sources import load_records
from fl_shuffle.errors import (
    ConfigError,
    DataError,
    FlShuffleError,
    InvalidValueError,
    ProgramError,
)
from fl_shuffle.flower import LocalRandomizerMod, ShuffleClientApp
from fl_shuffle.flower.answers import told_of
from fl_shuffle.flower.first_trainings import PROGRAM_FAILS
from fl_shuffle.flower.messages import TrainRequest, array_record
from fl_shuffle.flower.private_api import CLIENT_APP_RAISED
from tests.one_node import App, nodes

SECRET = "Maria Secret"
SEEDED, SYSTEM = {"entropy": "seeded"}, {"entropy": "system"}
OWN = {"privacy": {"unit": "client"}, "app": {"server": "a:b", "client": "a:b"}}


def reply_to_training(app: App, tables: dict[str, Any], **node_config: Any) -> Message:
    """What a deployed node of this configuration replies to a request for four clients."""
    arrays = array_record({"p": np.zeros(9, np.float32)}, shared=True)
    with nodes(app, tables=tables, node_config=node_config) as grid:
        (reply,) = grid.send_and_receive([TrainRequest(1, np.arange(4)).message(arrays, 2)])
    return reply


@pytest.mark.parametrize("line", ["Nobody,1,1e-6", "999,1,1e-6", "Albania,1,1e-6"])
def test_error_reply_names_none_of_the_sites_clients(line: str, tmp_path: Path) -> None:
    """A budgets file that does not fit the names of the clients which a node has."""
    file = tmp_path / f"{SECRET}.csv"
    others = "".join(f"{name},1,1e-6\n" for name in range(19))
    file.write_text(f"client_id,epsilon,delta\n{others}{line}\n", encoding="utf-8")
    data = {"source": "gapminder", "partition": "natural", "clients": 20, "features": "none"}
    tables = {
        "run": SYSTEM, "data": data, "model": {"loss": "squared-error"},
        "budgets": {"distribution": "file", "file": str(file)},
    }  # fmt: skip
    reply = reply_to_training(app, tables)
    assert reply.error.code == CLIENT_APP_RAISED and not reply.error.reason
    names = load_records(DataSection(source="gapminder")).train_clients
    assert names is not None and not any(str(name) in str(reply.error) for name in names)


@pytest.mark.parametrize(
    ("tables", "node_config", "told"),
    [
        ({"run": SYSTEM, "privacy": {"unit": "client", "shuffler": "separate"}}, {},
         "ConfigError: privacy.shuffler"),
        ({"run": SYSTEM}, {"shuffler": f"/home/{SECRET}"}, "ConfigError: privacy.shuffler"),
        ({"run": SYSTEM}, {"partition-id": SECRET, "num-partitions": 2}, "InvalidValueError"),
        ({"run": SYSTEM}, {"partition-id": 1, "num-partitions": 2}, "InvalidValueError"),
        ({"run": SYSTEM, **OWN}, {"budget-store": f"/{SECRET}/r", "lifetime-epsilon": 1e9},
         "ConfigError"),
        ({"run": SEEDED}, {"budget-store": f"/{SECRET}", "lifetime-epsilon": 1.0},
         "ConfigError: run.entropy"),
        ({"run": SYSTEM}, {"budget-store": "/r", "lifetime-epsilon": 1.0,
        "budget-store-config": f"/{SECRET}"},
         "ConfigError"),
    ],
)  # fmt: skip
def test_error_reply_holds_class_and_settings_alone(
    tables: dict[str, Any], node_config: dict[str, Any], told: str
) -> None:
    own = ShuffleClientApp()
    own.train()(lambda message, context: message)
    for each in (own, *(() if "app" in tables else (app,))):
        reply = reply_to_training(each, {**OWN, **tables} if each is own else tables, **node_config)
        assert (reply.error.code, reply.error.reason) == (CLIENT_APP_RAISED, told)


def raising(message: Message, context: Context, *_: Any) -> Message:
    raise ConfigError(f"data.clients = {SECRET}")


def raising_unforeseen(message: Message, context: Context, *_: Any) -> Message:
    raise KeyError(SECRET)


@pytest.mark.parametrize(("mod", "told"), [
    (raising, "ConfigError: data.clients"), (raising_unforeseen, None),
])  # fmt: skip
def test_error_reply_of_own_mods_holds_no_text(mod: Any, told: str | None) -> None:
    """Those of a user's own app come before what the app itself does."""
    own = ShuffleClientApp(mods=[mod])
    own.train()(raising)
    reply = reply_to_training(own, {"run": SYSTEM, **OWN})
    assert (reply.error.code, reply.error.reason) == (CLIENT_APP_RAISED, told)
    stock = ClientApp(mods=[LocalRandomizerMod(randomizer="laplace", epsilon0=1.0)])
    stock.train()(raising)
    reply = reply_to_training(stock, {}, shuffler=f"/{SECRET}")
    assert (reply.error.code, reply.error.reason) == (CLIENT_APP_RAISED, "ConfigError")


def test_error_reply_of_alike_failures_holds_the_line() -> None:
    """Seeded noise protects nobody, and yet no text of the app's exceptions leaves a node."""
    own = ShuffleClientApp()
    own.train()(raising_unforeseen)
    reply = reply_to_training(own, {"run": SEEDED, **OWN})
    assert reply.error.code == PROGRAM_FAILS and reply.error.reason is not None
    assert reply.error.reason.startswith("ProgramError: KeyError (test_error_replies.py, line ")
    assert reply.error.reason.endswith("in raising_unforeseen)")


def test_told_of_any_error_is_class_and_settings() -> None:
    def subclasses(kind: type) -> list[type]:
        return [kind, *(each for own in kind.__subclasses__() for each in subclasses(own))]

    text = f"budgets file /home/{SECRET}.csv: data.clients = 7, run.seed, {SECRET}.data"
    made: dict[type, Callable[[], FlShuffleError]] = {
        InvalidValueError: lambda: InvalidValueError("data.clients", SECRET, "run.seed")
    }
    kinds = [kind for kind in subclasses(FlShuffleError) if kind.__module__ == errors.__name__]
    assert len(kinds) > 8
    for kind in kinds:
        told = told_of(made.get(kind, lambda: kind(text))())  # noqa: B023
        wanted = "" if issubclass(kind, DataError) else f"{kind.__name__}: run.seed, data.clients"
        assert told == wanted
    assert told_of(KeyError(SECRET)) == told_of(ValueError(text)) == ""
    assert told_of(ProgramError(SECRET, "KeyError (a.py, line 1, in b)")).endswith("in b)")

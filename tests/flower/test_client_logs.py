"""What clients log where Ray plays them: it reaches the user's terminal or nobody, and no file."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from clients.app import app as page_app
from fl_shuffle.flower import LocalRandomizerMod, ShuffleClientApp
from fl_shuffle.flower.client_logs import CLIENT_LOG, kept_from_disk, quiet_on_ray, say_here
from fl_shuffle.flower.private_api import adopt_task_identity

app = ClientApp()
TOLD = "%d of %d clients are odd: %s"


@app.train()
def talking(message: Message, context: Context) -> Message:
    """Tells of records in every way it can."""
    talk()
    return Message(RecordDict(), reply_to=message)


def talk() -> None:
    logging.getLogger(f"{CLIENT_LOG}.own").warning(TOLD, 3, 7, KeyError("Maria"))
    logging.getLogger("mine").error("record 17 is odd")
    warnings.warn("record 17 is odd", stacklevel=1)
    print("record 17 is odd")
    print("record 17 is odd", file=sys.stderr)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    log = logging.getLogger(CLIENT_LOG)
    handlers, propagate = [*log.handlers], log.propagate
    yield
    log.handlers, log.propagate = handlers, propagate


def test_client_logs_kept_from_disk_are_said_elsewhere(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with kept_from_disk() as said:
            talk()
    assert capfd.readouterr() == ("", "")
    # Others' handlers, as one of a file, do not get it.
    assert CLIENT_LOG not in caplog.text
    caplog.clear()
    say_here(said)
    (record,) = caplog.records
    # The terminal shows each template once.
    assert (record.name, record.levelname, record.msg) == (f"{CLIENT_LOG}.own", "WARNING", TOLD)
    assert record.getMessage() == "3 of 7 clients are odd: 'Maria'"
    talk()
    assert "record 17 is odd" in capfd.readouterr().out


@pytest.mark.parametrize("number", [1, 2])
def test_log_handlers_and_streams_of_before_are_kept_from_disk(
    number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Importing Opacus leaves the root logger a handler with the stream of that moment."""
    with open(number, "w", encoding="utf-8", closefd=False) as stream:
        handler = logging.StreamHandler(stream)
        logging.getLogger().addHandler(handler)
        try:
            with kept_from_disk():
                talk()
                os.write(number, b"record 17 is odd")
            assert capfd.readouterr() == ("", "")
            logging.getLogger("mine").error("said afterwards")
            assert "said afterwards\n" in capfd.readouterr()[number - 1]
        finally:
            logging.getLogger().removeHandler(handler)


def test_ray_task_prints_nothing_and_returns_client_logs(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ray_grid = pytest.importorskip("fl_shuffle.flower.ray_grid")
    adopt_task_identity(1)
    message = Message(RecordDict(), 2, "train")
    context = Context(1, 2, {}, RecordDict(), {})
    path = f"{__name__}:app"
    reply, _, said = ray_grid._played(path, message, context, True)
    assert isinstance(reply, Message) and not reply.has_error()
    assert [each["msg"] for each in said] == [TOLD]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("actor", "heard"), [("0f", 0), (None, 1)])
def test_client_logs_of_flowers_ray_actors_are_dropped(
    actor: str | None, heard: int, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """In the driver, which is the server's process, nothing changes."""
    context = SimpleNamespace(get_actor_id=lambda: actor)
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    quiet_on_ray()
    logging.getLogger(f"{CLIENT_LOG}.own").warning(TOLD, 1, 2, "x")
    assert len(caplog.records) == heard


SHIPPED = {
    "page": lambda: page_app,
    "own": ShuffleClientApp,
    "mod": lambda: ClientApp(mods=[LocalRandomizerMod(randomizer="laplace", epsilon0=1.0)]),
}


@pytest.mark.parametrize("ttl", [100.0, 1e-9])
@pytest.mark.parametrize("name", SHIPPED)
def test_each_client_app_is_quiet_before_it_does_anything(
    name: str, ttl: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a request that it does not work on: every way in has Flower's actors log nothing."""
    ray = SimpleNamespace(
        is_initialized=lambda: True,
        get_runtime_context=lambda: SimpleNamespace(get_actor_id=lambda: "0f"),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    shipped = SHIPPED[name]()
    if name != "page":
        shipped.train()(talking)
    adopt_task_identity(1)
    message = Message(RecordDict(), 2, "train", ttl=ttl)
    reply = shipped(message, Context(1, 2, {}, RecordDict(), {}))
    assert reply.has_error() and not logging.getLogger(CLIENT_LOG).propagate

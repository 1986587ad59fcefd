"""Nodes that are processes of their own, and the server's way to them: sockets of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Sent
from flwr.serverapp import Grid

from clients import app as client
from fl_shuffle.flower.private_api import (
    CLIENT_APP_RAISED,
    Run,
    adopt_task_identity,
    new_run,
    stamp,
)

GONE = 1
"""An error code that is not the app's: the node did not answer."""


def play_node(socket: Path, node_config: dict[str, Any], shown: Callable[[Message], None]) -> None:
    """Answer requests, one after the other, as a SuperNode does; `shown` gets each of them."""
    adopt_task_identity(1)
    socket.unlink(missing_ok=True)
    with Listener(str(socket), "AF_UNIX", backlog=16) as listener:
        while True:
            # Who asked may be gone when the answer is there.
            with suppress(EOFError, ConnectionError), listener.accept() as connection:
                run, kind, settings, content = connection.recv()
                request = stamp(Message(_read(content), 2, kind, ttl=600.0, group_id=""))
                shown(request)
                context = Context(run, 2, dict(node_config), RecordDict(), settings)
                try:
                    reply = client.app(request, context)
                    connection.send(None if reply.has_error() else _written(reply.content))
                except Exception as error:
                    print(f"{type(error).__name__}: {error}", flush=True)
                    connection.send(None)


class NodeGrid(Grid):
    """Hands requests to nodes behind `sockets`, in threads; one that is dead has not answered.

    `settings` is the run configuration that nodes are sent, `taken` is told the content of every
    answer to a training request. What the server does not call is not there.
    """

    create_message = send_and_receive = None  # type: ignore[assignment]

    def __init__(
        self, sockets: list[Path], settings: dict[str, Any], taken: Callable[[RecordDict], None]
    ) -> None:
        self._sockets = dict(enumerate(sockets, start=2))
        self._settings, self._taken = settings, taken
        self.set_run(new_run())
        adopt_task_identity(self.run.run_id)
        self._threads = ThreadPoolExecutor(2 * len(sockets))
        self._waiting: dict[str, Future[Message]] = {}

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def get_node_ids(self) -> list[int]:
        return list(self._sockets)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = [stamp(message) for message in messages]
        for each in sent:
            self._waiting[each.metadata.message_id] = self._threads.submit(self._ask, each)
        return [each.metadata.message_id for each in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        done = [name for name in message_ids if self._waiting[name].done()]
        return [self._waiting.pop(name).result() for name in done]

    def _ask(self, message: Message) -> Message:
        kind = message.metadata.message_type
        try:
            with Client(str(self._sockets[message.metadata.dst_node_id]), "AF_UNIX") as connection:
                asked = (self._run.run_id, kind, self._settings, _written(message.content))
                connection.send(asked)
                answer = connection.recv()
        except (EOFError, OSError):
            return Message(Error(code=GONE), reply_to=message)
        if answer is None:
            return Message(Error(code=CLIENT_APP_RAISED), reply_to=message)
        content = _read(answer)
        if kind == "train":
            self._taken(content)
        return Message(content, reply_to=message)


def _written(content: RecordDict) -> bytes:
    return bytes(recorddict_to_proto(content).SerializeToString())


def _read(content: bytes) -> RecordDict:
    return recorddict_from_proto(Sent.FromString(content))

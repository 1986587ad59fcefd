"""The in-process engine: a Flower `Grid` that calls the ClientApp directly.

The same ServerApp and ClientApp run unchanged on Flower's Simulation and Deployment Engines.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fl_shuffle.errors import FlShuffleError, ProgramError, text_of
from fl_shuffle.flower.node_threads import Gate, NodeThreads
from fl_shuffle.flower.settings import SIMULATED
from fl_shuffle.threads import kept_default_dtype

log = logging.getLogger("fl_shuffle.client.engine")

Take = Callable[[int, Message], None]
"""What is done with a reply: (position of the request, reply)."""

CLIENT_APP_RAISED = 2
"""Flower's own code for an app that raised."""
SHOWN = 120
"""So many characters of what a client raised are kept."""

# A worker that comes back from a kernel waits this long for the interpreter while another thread
# computes in Python. CPython's 5 ms are as long as the kernels: they cost a third of a round.
SWITCH_SECONDS = 5e-4


class NamedError(Error):
    """The error reply of an app in this process, with its cause, which goes to the user alone."""

    def __init__(self, cause: str) -> None:
        super().__init__(code=CLIENT_APP_RAISED)
        self.cause = cause


_message_number = itertools.count(1)


def adopt_task_identity(run_id: int) -> None:
    """Give messages built in this process their sender (private in Flower 1.41; only here)."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, 1, run_id


def stamp(message: Message) -> Message:
    """Give a message an identifier, as a SuperLink would (likewise private)."""
    # Not a random one: a system call would hand the interpreter to a worker that just started.
    message.metadata.__dict__["_message_id"] = f"{next(_message_number):032x}"
    return message


class InProcessGrid(Grid):
    """Plays `nodes` Flower nodes in this process, on as many threads.

    Each worker thread computes with one torch thread: results then do not depend on the number of
    workers. A ClientApp that raises (or exits, or returns what is no message) yields an error reply
    without text, but for the cause that a `NamedError` tells the user's own terminal; the exception
    goes to this process's client log only. One that hangs is given up after the exchange's timeout.
    Of the framework's own app (`trusted`) a `FlShuffleError` is about the run's settings: it is
    raised here, for the user to see.

    `observer` is who watches the run: the ServerApp finds it here and tells it what happens.
    """

    def __init__(
        self,
        client_app: ClientApp,
        run_config: Mapping[str, object],
        nodes: int,
        *,
        trusted: bool = True,
        observer: Callable[[Any], None] | None = None,
    ) -> None:
        self._trusted = trusted
        self.observer = observer
        self._app = client_app
        self._run = Run.create_empty(run_id=secrets.randbits(62))
        adopt_task_identity(self._run.run_id)
        config: UserConfig = dict(run_config)  # type: ignore[arg-type]
        self._contexts = {
            node_id: Context(
                run_id=self._run.run_id,
                node_id=node_id,
                node_config={SIMULATED: True},
                state=RecordDict(),
                run_config=config,
            )
            for node_id in range(2, 2 + nodes)
        }
        self._threads = NodeThreads(nodes, lambda: torch.set_num_threads(1))
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH_SECONDS, self._switch_interval))
        self._replies: dict[str, Message] = {}

    def close(self) -> None:
        """Stop the worker threads."""
        self._threads.close()
        sys.setswitchinterval(self._switch_interval)

    def begin(self, call: Callable[[], None]) -> None:
        """Have a node's thread do this beside the ServerApp: something that later requests would
        do themselves, for nobody hears what it raises."""
        self._threads.submit(call)

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identifiers = []
        for message in messages:
            reply = self._call(stamp(message))
            self._replies[message.metadata.message_id] = reply
            identifiers.append(message.metadata.message_id)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(key) for key in message_ids if key in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies: dict[int, Message] = {}
        self.exchange(messages, replies.__setitem__, timeout=timeout)
        return [replies[position] for position in sorted(replies)]

    def exchange(
        self,
        messages: Iterable[Message],
        take: Take,
        *,
        timeout: float | None = None,
    ) -> None:
        """Have every message answered and taken, on the threads of the nodes.

        Few are in flight at a time. The first exception of a ClientApp or of `take` is raised here.
        What is not answered within `timeout` seconds is given up: nothing is taken any more.
        """
        gate = Gate()
        deadline = None if timeout is None else time.monotonic() + timeout

        def play(position: int, message: Message) -> None:
            reply = self._call(message)
            with gate.passing() as through:
                if through:
                    take(position, reply)

        try:
            self._play_all(messages, play, deadline)
        finally:
            gate.shut()

    def _play_all(
        self,
        messages: Iterable[Message],
        play: Callable[[int, Message], None],
        deadline: float | None,
    ) -> None:
        waiting: set[Future[None]] = set()
        source = enumerate(messages)
        # Those that start at once are made before the first one does: a thread that computes leaves
        # this one no time.
        first = list(itertools.islice(source, len(self._contexts)))
        for position, message in itertools.chain(first, source):
            waiting.add(self._threads.submit(partial(play, position, stamp(message))))
            if len(waiting) > len(self._contexts):
                rest = self._finished(waiting, FIRST_COMPLETED, deadline)
                if rest is None:
                    return
                waiting = rest
        self._finished(waiting, ALL_COMPLETED, deadline)

    def _finished(
        self, waiting: set[Future[None]], until: str, deadline: float | None
    ) -> set[Future[None]] | None:
        """Wait for one of them, or all; returns those still under way, None after the deadline."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        done, rest = wait(waiting, timeout=left, return_when=until)
        for future in done:
            future.result()
        if rest and (not done or until == ALL_COMPLETED):
            hanging = self._threads.give_up(rest)
            log.error("%d requests were not answered in time and are given up", hanging)
            return None
        return rest

    def _call(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            # Whatever the type says: a user's app may return anything.
            with kept_default_dtype():
                reply: Any = self._app(message, context)
            if isinstance(reply, Message) and (reply.has_error() or reply.has_content()):
                return reply
            cause = f"returned {type(reply).__name__}, no message"
            log.error("a request failed in round %s: its app %s", message.metadata.group_id, cause)
        except BaseException as error:
            if isinstance(error, FlShuffleError if self._trusted else ProgramError):
                raise
            if isinstance(error, KeyboardInterrupt) and _in_main_thread():
                raise
            cause = f"raised {type(error).__name__} {text_of(error)}".rstrip()
            number = message.metadata.group_id
            log.exception("a request failed in round %s: its app %s", number, cause[:SHOWN])
        return Message(NamedError(cause[:SHOWN]), reply_to=message)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()

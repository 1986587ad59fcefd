"""The in-process engine: a Flower `Grid` that calls the ClientApp directly.

The same ServerApp and ClientApp run unchanged on Flower's Simulation and Deployment Engines.
"""

from __future__ import annotations

import ast
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial, wraps
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fl_shuffle.errors import FlShuffleError, ProgramError, text_of
from fl_shuffle.flower.private_api import (
    CLIENT_APP_RAISED,
    Run,
    UserConfig,
    adopt_task_identity,
    new_run,
    stamp,
)
from fl_shuffle.flower.settings import SIMULATED

log = logging.getLogger("fl_shuffle.client.engine")

Take = Callable[[int, Message], None]
"""What is done with a reply: (position of the request, reply)."""

POLL_SECONDS = 0.05
"""Pause between two questions for replies."""
# Polling costs the SuperLink work: after a long silence it is done more seldom.
LONGEST_POLL_SECONDS = 1.0
POLL_SHARE = 0.05
SHOWN = 120
"""Number of characters that are kept of a client's error."""

# A worker that comes back from a kernel waits this long for the interpreter while another thread
# computes in Python. CPython's 5 ms are as long as the kernels: they cost a third of a round.
SWITCH_SECONDS = 5e-4
# So long a grid that is closed waits for its threads: the interpreter aborts where one still gives
# back torch's memory while it ends. One that hangs in a user's code is left behind.
JOIN_SECONDS = 5.0


class NamedError(Error):
    """The error reply of an app in this process, with its cause, which goes to the user alone."""

    def __init__(self, cause: str) -> None:
        super().__init__(code=CLIENT_APP_RAISED)
        self.cause = cause


class InProcessGrid(Grid):
    """Plays `nodes` Flower nodes in this process, on as many threads.

    Each worker thread computes with one torch thread: results then do not depend on the number of
    workers. What becomes of a ClientApp that raises: `reply_of`; of one that hangs: the run waits,
    until it is interrupted.

    `observer` is who watches the run: the ServerApp finds it here and tells it what happens.
    """

    far = False
    """Whether replies come from other processes: each report would be pickled on its way."""

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
        self._run = new_run()
        adopt_task_identity(self._run.run_id)
        parse_one_at_a_time()
        config: UserConfig = dict(run_config)  # type: ignore[arg-type]
        self._contexts = {
            node: Context(self._run.run_id, node, {SIMULATED: True}, RecordDict(), config)
            for node in range(2, 2 + nodes)
        }
        # What an app leaves in its node's state is whole: one request of a node at a time. The
        # framework's own app leaves nothing there.
        self._turns: dict[int, AbstractContextManager[Any]] = {
            node: nullcontext() if trusted else Lock() for node in self._contexts
        }
        # Not a `ThreadPool`: the three threads of its own that each request passes take a twentieth
        # of a short round. Daemons: one that hangs does not keep the interpreter from ending.
        self._calls = SimpleQueue[Callable[[], object] | None]()
        self._beginning, self._closed = Lock(), False
        self._threads = [
            Thread(target=_work, args=(self._calls,), daemon=True) for _ in range(nodes)
        ]
        for thread in self._threads:
            thread.start()
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH_SECONDS, self._switch_interval))
        self._replies: dict[str, Message] = {}

    def close(self) -> None:
        """Stop the worker threads, and wait for those that do not hang: however long it takes for
        what was begun, which is the framework's own. A thread that compiles while the interpreter
        ends takes the process with it."""
        with suppress(Empty):
            while True:
                self._calls.get_nowait()
        for _ in self._threads:
            self._calls.put(None)
        with self._beginning:
            self._closed = True
        end = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        sys.setswitchinterval(self._switch_interval)

    def begin(self, call: Callable[[], None]) -> None:
        """Have a node's thread do this beside the ServerApp: something that later requests would
        do themselves, because no caller receives what it raises."""

        def begun() -> None:
            with self._beginning:
                if not self._closed:
                    call()

        self._calls.put(begun)

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
        sent = [stamp(message) for message in messages]
        self._replies |= {each.metadata.message_id: self._answered(each) for each in sent}
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(key) for key in message_ids if key in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies: dict[int, Message] = {}
        self.exchange(messages, replies.__setitem__)
        return [replies[position] for position in sorted(replies)]

    def exchange(self, messages: Iterable[Message], take: Take) -> None:
        """Have every message answered and taken, on the threads of the nodes.

        The first exception of a ClientApp or of `take` is raised here.
        """
        ends = SimpleQueue[BaseException | None]()

        def play(position: int, message: Message) -> None:
            try:
                take(position, self._answered(stamp(message)))
            except BaseException as error:
                ends.put(error)
            else:
                ends.put(None)

        sent = 0
        for message in messages:
            self._calls.put(partial(play, sent, message))
            sent += 1
        for _ in range(sent):
            error = ends.get()
            if error is not None:
                raise error

    def _answered(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        with self._turns[node]:
            return self._reply(message, self._contexts[node])

    def _reply(self, message: Message, context: Context) -> Message:
        return reply_of(self._app, message, context, trusted=self._trusted)


def exchange(
    grid: Grid, messages: Iterable[Message], take: Take, *, window: int, timeout: float
) -> None:
    """Call take(position of the request, reply) as replies arrive, at most `window` under way.

    Requests that get no reply within `timeout` seconds are given up: nothing is taken for them. The
    in-process engine waits, and calls it on the threads that play the nodes, several at a time.
    """
    if isinstance(grid, InProcessGrid):
        grid.exchange(messages, take)
        return
    source = enumerate(messages)
    position_of: dict[str, int] = {}
    last = time.monotonic()
    deadline = last + timeout
    while True:
        batch = list(islice(source, window - len(position_of)))
        if batch:
            identifiers = grid.push_messages([message for _, message in batch])
            position_of |= zip(identifiers, (position for position, _ in batch), strict=True)
        if not position_of or time.monotonic() > deadline:
            return
        replies = list(grid.pull_messages(position_of))
        for reply in replies:
            position = position_of.pop(reply.metadata.reply_to_message_id, None)
            if position is not None:
                take(position, reply)
        if replies:
            last = time.monotonic()
        else:
            silence = time.monotonic() - last
            time.sleep(max(POLL_SECONDS, min(LONGEST_POLL_SECONDS, POLL_SHARE * silence)))


@contextmanager
def kept_default_dtype() -> Iterator[None]:
    """Restore torch's default dtype once this is left: it is the whole process's, and a user's code
    that changes it would have everybody else compute in it."""
    before = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def reply_of(
    app: Callable[[Message, Context], Any], message: Message, context: Context, *, trusted: bool
) -> Message:
    """Return a ClientApp's reply. One that raises (or exits, or returns what is no message) yields
    an error reply without text, but for the cause that a `NamedError` tells the user's own
    terminal; the exception goes to this process's client log only.

    Of the framework's own app (`trusted`) a `FlShuffleError` is about the run's settings: it is
    raised, for the user to see; of others a `ProgramError`.
    """
    try:
        # Whatever the type says: a user's app may return anything.
        with kept_default_dtype():
            reply = app(message, context)
        if isinstance(reply, Message) and (reply.has_error() or reply.has_content()):
            return reply
        cause = f"returned {type(reply).__name__}, no message"
        log.error("a request failed in round %s: its app %s", message.metadata.group_id, cause)
    except BaseException as error:
        here = threading.current_thread() is threading.main_thread()
        raised = FlShuffleError if trusted else ProgramError
        if isinstance(error, (raised, KeyboardInterrupt) if here else raised):
            raise
        cause = f"raised {type(error).__name__} {text_of(error)}".rstrip()
        number = message.metadata.group_id
        log.exception("a request failed in round %s: its app %s", number, cause[:SHOWN])
    return Message(NamedError(cause[:SHOWN]), reply_to=message)


def _work(calls: SimpleQueue[Callable[[], object] | None]) -> None:
    """Work as a thread: do these calls until there is None among them."""
    torch.set_num_threads(1)
    while (call := calls.get()) is not None:
        with suppress(Exception):
            call()
        del call  # it holds a request, and with it a model, until the next one comes


def parse_one_at_a_time() -> None:
    """Have threads take turns in `ast.parse` from now on, where CPython is older than 3.11.8.

    It counts the depth of all threads' parsing together there, and raises `SystemError` in one of
    them where the collection of garbage lets two meet. NumPy reads the header of every array so.
    """
    if sys.version_info >= (3, 11, 8) or hasattr(ast.parse, "__wrapped__"):
        return
    parse, turn = ast.parse, threading.RLock()

    @wraps(parse)
    def parse_in_turn(*arguments: Any, **options: Any) -> Any:
        with turn:
            return parse(*arguments, **options)

    ast.parse = parse_in_turn

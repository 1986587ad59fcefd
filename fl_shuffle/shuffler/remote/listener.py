"""A shuffler's port: TLS, one task a connection, and limits that strangers cannot shift.

No thread waits for a peer: a call has a thread once all of its bytes are there. A peer that has not
shown a valid token gets a place among few, for a short time. Where these are taken, the network
address with the most of them loses its oldest one, so a peer that fills a port drives out itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from typing import TypeVar

from fl_shuffle._internal.refusal_log import RefusalLog
from fl_shuffle.errors import FlShuffleError, RunError
from fl_shuffle.shuffler.remote import limits, wire
from fl_shuffle.shuffler.remote.handler import Peer, RequestHandler, log
from fl_shuffle.shuffler.remote.limits import Limits, Turns
from fl_shuffle.shuffler.remote.tls_stream import TlsStream
from fl_shuffle.shuffler.remote.wire import Announced, Reply, ShufflerError

T = TypeVar("T")

WORKERS = 4
"""Calls that are worked on at a time, all of whose bytes are there."""
GRACE_SECONDS = 5.0
"""Calls that are worked on may take so long to finish when the process is asked to end."""
CHUNK = 1 << 16
"""Bytes that are read or written at a time."""
BACKLOG = 1024
PAUSE_SECONDS = 0.05
"""Until the next connection is accepted, where there was no handle for one."""
STRANGER = "a peer without a valid token"


class _GoneError(Exception):
    """The peer ended the connection, or was too slow."""


@dataclass(eq=False)
class _Connection:
    """A peer's connection from `network`; `peer` once it is known."""

    stream: TlsStream
    network: str
    peer: Peer | None = None
    calling: bool = False
    working: bool = False
    task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """End it at once."""
        assert self.task is not None
        self.task.cancel()

    @property
    def name(self) -> str:
        """Of its peer, for the log."""
        return STRANGER if self.peer is None else self.peer.name


class Listener:
    """Answers calls at a listening socket, in a thread of its own, until `stop`."""

    def __init__(
        self, handler: RequestHandler, tls: ssl.SSLContext, port: socket.socket, most: Limits
    ) -> None:
        self._handler, self._tls, self._port, self._limits = handler, tls, port, most
        self._refusals = RefusalLog(log)
        # Both in the order in which they came.
        self._strangers: dict[_Connection, None] = {}
        self._known: dict[_Connection, None] = {}
        self._failure: BaseException | None = None
        self._started, self._ended = Event(), Event()
        self._thread = Thread(target=self._run, name="fl-shuffle-shuffler", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()
        self._started.wait()

    def wait_for_termination(self) -> None:
        """Return when it has ended. Raises `RunError` where it failed."""
        self._ended.wait()
        if self._failure is not None:
            raise RunError(f"the shuffler failed: {self._failure!r}") from self._failure

    def stop(self) -> None:
        """Take no call any more; return when those that are worked on have ended."""
        with contextlib.suppress(RuntimeError):  # its loop has ended by itself
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
            log.exception("the shuffler failed")
        finally:
            self._started.set()
            self._ended.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._turns = Turns(self._limits.memory)
        with ThreadPoolExecutor(WORKERS) as self._workers:
            accepting = asyncio.create_task(self._accept())
            stopping = asyncio.create_task(self._stopping.wait())
            self._started.set()
            await asyncio.wait({accepting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            accepting.cancel()
            every = [*self._strangers, *self._known]
            for connection in every:
                if not connection.working:
                    connection.cancel()
            tasks = {connection.task for connection in every if connection.task is not None}
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=GRACE_SECONDS)
                for task in late:
                    task.cancel()
            if accepting.done() and not accepting.cancelled():
                accepting.result()

    async def _accept(self) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(self._port)
            except OSError:  # no handle for it, or it is gone already
                self._turn_away()
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if len(self._strangers) >= self._limits.strangers:
                self._turn_away()
            try:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream = TlsStream(accepted, self._tls)
            except OSError:  # it is gone again
                accepted.close()
                continue
            connection = _Connection(stream, _network_of(str(address[0])))
            self._strangers[connection] = None
            connection.task = asyncio.create_task(self._converse(connection))
            await asyncio.sleep(0)  # those that are there have their turn, too

    def _turn_away(self) -> None:
        """End the oldest connection of the network with most of those that are not known."""
        if not self._strangers:
            return
        networks = Counter(connection.network for connection in self._strangers)
        ((network, _),) = networks.most_common(1)
        oldest = next(each for each in self._strangers if each.network == network)
        del self._strangers[oldest]
        oldest.cancel()
        self._refuse(None, "turned away: too many connections without a valid token")

    def _refuse(self, connection: _Connection | None, text: str, reason: str = "") -> None:
        """Write one line to the log, without an address."""
        name = STRANGER if connection is None else connection.name
        self._refusals.note(f"{name} {reason or text}", f"{name}: {text}")

    async def _converse(self, connection: _Connection) -> None:
        """Handle a connection from beginning to end."""
        stream = connection.stream
        try:
            async with asyncio.timeout(limits.HELLO_SECONDS):
                await stream.handshake()
                known = self._authenticated(connection, await stream.line(wire.HEAD_BYTES))
            while known is not None:
                await self._answer(connection, known)
                if self._stopping.is_set():
                    break
                stream.allow(0)
                async with asyncio.timeout(limits.IDLE_SECONDS):
                    line = await stream.line(wire.HEAD_BYTES)
                known = self._authenticated(connection, line)
        except ShufflerError as error:  # nothing more is taken from this peer
            self._refuse(connection, str(error), error.reason)
            with contextlib.suppress(OSError, _GoneError):
                await self._say(connection, Reply(error.reason, str(error)))
        except TimeoutError:
            if connection.peer is None:
                self._refuse(None, "it was silent, or too slow")
        except _GoneError as error:
            self._refuse(connection, str(error))
        except OSError:  # no TLS, another certificate, or it went away
            if connection.peer is None:
                self._refuse(None, "no connection by TLS came about")
        except Exception:
            log.exception("a connection failed here")
        finally:
            self._strangers.pop(connection, None)
            self._known.pop(connection, None)
            stream.close()

    def _authenticated(self, connection: _Connection, line: bytes) -> dict[str, object] | None:
        """Return what a line says beside the token, once its peer is known and has a place; None at
        a connection's end."""
        if not line:
            return None
        if len(line) > wire.HEAD_BYTES:
            said = f"a line has at most {wire.HEAD_BYTES} bytes"
            raise ShufflerError(said, "INVALID_ARGUMENT")
        peer, facts = self._handler.authenticated(line)
        if connection.peer is None:
            self._place(connection, peer)
        elif connection.peer != peer:
            raise ShufflerError("a connection is for one token", "UNAUTHENTICATED")
        return facts

    def _place(self, connection: _Connection, peer: Peer) -> None:
        """Take a place among those of known peers; an idle connection makes way."""
        own = [each for each in self._known if each.peer == peer]
        full = len(own) >= limits.PEER_CONNECTIONS
        if full or len(self._known) >= self._limits.peers:
            idle = [each for each in (own if full else self._known) if not each.calling]
            if not idle:
                connection.peer = peer
                raise ShufflerError("too many calls at a time", "RESOURCE_EXHAUSTED")
            del self._known[idle[0]]
            idle[0].cancel()
        if self._strangers.pop(connection, connection) is connection:
            raise _GoneError("turned away meanwhile")
        connection.peer = peer
        self._known[connection] = None

    async def _answer(self, connection: _Connection, facts: dict[str, object]) -> None:
        """Answer a call of a known peer; what is wrong with it is the caller's to know, in one
        line. A fault of ours is not."""
        connection.calling = True
        try:
            content = await self._outcome(connection, facts)
            reply = Reply(wire.OK, size=len(content))
        except FlShuffleError as error:
            reply, content = Reply(getattr(error, "reason", "INVALID_ARGUMENT"), str(error)), b""
            self._refuse(connection, reply.said, reply.reason)
        except (_GoneError, TimeoutError, OSError):
            raise
        except Exception as error:
            log.exception("a call failed here")
            reply = Reply("UNAVAILABLE", f"the shuffler failed: {type(error).__name__}")
            content = b""
        await self._say(connection, reply, content)
        connection.calling = False

    async def _outcome(self, connection: _Connection, facts: dict[str, object]) -> bytes:
        """Return what comes of a call: its bytes are asked for when its turn has come."""
        peer, announced = connection.peer, Announced.of(facts)
        assert peer is not None
        self._handler.permit(peer, announced)
        # The analyzer's few bytes wait for nobody's.
        turn = self._turns.ask(peer.name, announced.size if peer.clients is not None else 0)
        try:
            await self._patiently(connection, turn.granted)
            if not await self._worked(connection, partial(self._handler.wants, announced)):
                return b""
            connection.stream.allow(announced.size)
            await self._say(connection, Reply(wire.CONTINUE))
            sent = await self._bytes(connection, announced.size)
            return await self._worked(connection, partial(self._handler.answer, announced, sent))
        finally:
            self._turns.end(turn)

    async def _worked(self, connection: _Connection, work: Callable[[], T]) -> T:
        """Return what a thread makes of it."""
        connection.working = True
        try:
            found = self._loop.run_in_executor(self._workers, work)
            return await self._patiently(connection, found)
        finally:
            connection.working = False

    async def _patiently(self, connection: _Connection, awaited: Awaitable[T]) -> T:
        """Await it; the peer is told meanwhile that it has to wait."""
        coming = asyncio.ensure_future(awaited)
        while not (await asyncio.wait({coming}, timeout=limits.WAITING_SECONDS))[0]:
            await self._say(connection, Reply(wire.WAITING))
        return coming.result()

    async def _bytes(self, connection: _Connection, size: int) -> bytes:
        """Return the bytes that come beside a call."""
        found, until = bytearray(), self._until(size)
        while len(found) < size:
            async with self._in_time(until, "what it sent came too slowly"):
                part = await connection.stream.read(min(CHUNK, size - len(found)))
            if not part:
                raise _GoneError("it went away in the middle of a call")
            found += part
        return bytes(found)

    async def _say(self, connection: _Connection, reply: Reply, content: bytes = b"") -> None:
        """Send an answer."""
        until, stream = self._until(len(content)), connection.stream
        async with self._in_time(until, "it took an answer too slowly"):
            await stream.write(reply.encoded())
        for start in range(0, len(content), CHUNK):
            async with self._in_time(until, "it took an answer too slowly"):
                await stream.write(content[start : start + CHUNK])

    def _until(self, size: int) -> float:
        return self._loop.time() + limits.STALL_SECONDS + size / self._limits.slowest

    @contextlib.asynccontextmanager
    async def _in_time(self, until: float, late: str):  # type: ignore[no-untyped-def]
        """Run a step of a transfer that is over at this time."""
        try:
            async with asyncio.timeout_at(min(until, self._loop.time() + limits.STALL_SECONDS)):
                yield
        except TimeoutError:
            raise _GoneError(late) from None


def _network_of(host: str) -> str:
    """Return whose connections count together: an address, in IPv6 the 64 bits of a network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)


@contextmanager
def listening(
    handler: RequestHandler, tls: ssl.SSLContext, port: socket.socket, most: Limits
) -> Iterator[Listener]:
    """Yield a `Listener` at this socket, until this is left."""
    port.listen(BACKLOG)
    port.setblocking(False)
    listener = Listener(handler, tls, port, most)
    listener.start()
    try:
        yield listener
    finally:
        listener.stop()

"""TLS on an accepted socket, for an event loop: little memory a connection, ended at once.

asyncio's own transports allocate 256 KiB for each connection before its peer has said anything.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

RECORD = 1 << 14
"""Bytes that are taken from the network at a time: a TLS record's most."""
BESIDE = 1 << 16
"""Bytes of handshake, lines and records' frames that a peer may send besides a call's own."""


class TlsStream:
    """The server's end of a connection. One task at a time uses it; all methods raise `OSError`
    for a connection that breaks, `ssl.SSLError` among them."""

    def __init__(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        accepted.setblocking(False)
        self._socket = accepted
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._rest = b""
        self._allowance = BESIDE

    def allow(self, size: int) -> None:
        """Take from the network what `size` bytes need by TLS, and `BESIDE` more, until the next
        call of this. A peer that sends more, such as endless updates of keys, is cut off."""
        self._allowance = size + size // 8 + BESIDE

    async def handshake(self) -> None:
        """Agree on keys with the peer."""
        await self._step(self._tls.do_handshake)

    async def line(self, most: int) -> bytes:
        """Return the next line; what there is of it where the connection ends, or it has more than
        `most` bytes."""
        while b"\n" not in self._rest and len(self._rest) <= most:
            part = await self._read(RECORD)
            if not part:
                break
            self._rest += part
        end = self._rest.find(b"\n") + 1 or len(self._rest)
        line, self._rest = self._rest[:end], self._rest[end:]
        return line

    async def read(self, most: int) -> bytes:
        """Return at most this many bytes; none where the connection has ended."""
        if not self._rest:
            return await self._read(most)
        part, self._rest = self._rest[:most], self._rest[most:]
        return part

    async def write(self, data: bytes) -> None:
        """Send these bytes; returns when the system has taken them."""
        if data:
            await self._step(lambda: self._tls.write(data))

    def close(self) -> None:
        """Give the handle back, at once."""
        self._socket.close()

    async def _read(self, most: int) -> bytes:
        try:
            return await self._step(lambda: self._tls.read(most))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    async def _step(self, work: Callable[[], T]) -> T:
        """Do this with what the network brings, and send what comes of it."""
        while True:
            try:
                found = work()
            except ssl.SSLWantReadError:
                await self._flush()
                part = await self._loop.sock_recv(self._socket, RECORD)
                # `sock_recv` returns at once while bytes are there: others have their turn, too.
                await asyncio.sleep(0)
                self._allowance -= len(part)
                if self._allowance < 0:
                    raise ConnectionAbortedError("more than was announced") from None
                if part:
                    self._incoming.write(part)
                else:
                    self._incoming.write_eof()
            else:
                await self._flush()
                return found

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._loop.sock_sendall(self._socket, self._outgoing.read())

"""Talking to a shuffler: a site hands reports over, the analyzer gets what is released.

A shuffler that does not answer (it may have been killed, and be about to come back) is asked again
until patience ends; its store knows what it has.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import ConfigError
from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.agreement import Agreement, report_as_bytes
from fl_shuffle.shuffler.remote.credentials import Pass, host_and_port
from fl_shuffle.shuffler.remote.sealing import seal
from fl_shuffle.shuffler.remote.wire import Reply, ShufflerError

CONNECT_SECONDS = 20.0
STALL_SECONDS = 60.0
"""A connection on which nothing moves for so long is given up; a slow one is not."""
CHUNK = 1 << 16
"""Bytes that are sent at a time."""
PAUSE_SECONDS = 0.5
"""Between two tries."""
SHOWN = 200
"""Number of characters of a shuffler's answer that are shown."""
AGAIN = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
"""What may be otherwise at the next try."""


@dataclass
class _Connection:
    tls: ssl.SSLSocket
    answers: IO[bytes]
    used: bool = False

    def close(self) -> None:
        with suppress(OSError):
            self.answers.close()
        with suppress(OSError):
            self.tls.close()


class Link:
    """A way to the shuffler that a pass is for; `patience`: seconds to go on trying. Safe to use
    from several threads. Raises `ConfigError` for a pass whose certificate is none."""

    def __init__(self, own: Pass, patience: float) -> None:
        self._own = own
        self._patience = patience
        # Nothing but the pass's own certificate is believed.
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            self._context.load_verify_locations(cadata=own.certificate)
        except (ssl.SSLError, ValueError):
            raise ConfigError(
                f"the pass for {own.address} holds no certificate; get a new one"
            ) from None
        self._idle: list[_Connection] = []
        self._lock = Lock()

    def ask(self, method: str, call: wire.Call, sent: bytes = b"") -> bytes:
        """Return the answer to a call, in this pass's name, with what is `sent` beside it.

        After an error that passes it is asked again, as long as patience lasts. Raises
        `ShufflerError`.
        """
        line = call.announced(method, self._own.token, len(sent))
        until = time.monotonic() + self._patience
        while True:
            reply, content = self._tried(line, sent, until)
            if reply.reason == wire.OK:
                return content
            said, reason = " ".join(reply.said.split())[:SHOWN], reply.reason
            if reason not in AGAIN:
                raise ShufflerError(f"the shuffler at {self._own.address} refused: {said}", reason)
            if time.monotonic() > until:
                raise ShufflerError(
                    f"the shuffler at {self._own.address} does not answer: is it running, is this "
                    f"its certificate? ({reason}: {said})",
                    reason,
                )
            time.sleep(PAUSE_SECONDS)

    def _tried(self, line: bytes, sent: bytes, until: float) -> tuple[Reply, bytes]:
        """Return an answer, once; of no connection a reply that says so."""
        while True:
            try:
                connection = self._connected()
            except OSError as error:
                return Reply("UNAVAILABLE", str(error) or type(error).__name__), b""
            used = connection.used
            try:
                found = _exchanged(connection, line, sent, until)
            except (OSError, ValueError) as error:
                connection.close()
                if used and not isinstance(error, TimeoutError):
                    continue  # it may have ended while nobody used it
                return Reply("UNAVAILABLE", str(error) or type(error).__name__), b""
            connection.used = True
            with self._lock:
                self._idle.append(connection)
            return found

    def _connected(self) -> _Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        host, port = host_and_port(self._own.address)
        plain = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls = self._context.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise
        tls.settimeout(STALL_SECONDS)
        return _Connection(tls, tls.makefile("rb"))


def _exchanged(
    connection: _Connection, line: bytes, sent: bytes, until: float
) -> tuple[Reply, bytes]:
    """Announce a call, send its bytes when they are asked for, and take the answer; what is on its
    way then is not given up at that time."""
    connection.tls.sendall(line)
    while (reply := _reply(connection)).reason in (wire.WAITING, wire.CONTINUE):
        if reply.reason == wire.WAITING and time.monotonic() > until:
            raise TimeoutError("it keeps this call waiting")
        if reply.reason == wire.CONTINUE:
            # A timeout is for all that `sendall` is given: a slow line takes a piece at a time.
            for start in range(0, len(sent), CHUNK):
                connection.tls.sendall(sent[start : start + CHUNK])
    content = connection.answers.read(reply.size)
    if len(content) != reply.size:
        raise ConnectionError("the connection ended in the middle of an answer")
    return reply, content


def _reply(connection: _Connection) -> Reply:
    line = connection.answers.readline(wire.HEAD_BYTES)
    if not line:
        raise ConnectionError("the connection ended without an answer")
    return Reply.decoded(line)


class Sender:
    """A site's way to hand its clients' reports over, which are sealed to this public `key`."""

    def __init__(self, own: Pass, key: bytes, patience: float) -> None:
        self._key = key
        self._link = Link(own, patience)

    def send(
        self, agreement: Agreement, round_number: int, client: int, reports: NDArray[np.float32]
    ) -> None:
        """Seal a client's reports of a round [batches, d], each by itself, and hand them over;
        returns when the shuffler has them for good.

        What of this client on this round is there already counts instead. Raises `ShufflerError`
        for a shuffler that refuses or does not answer.
        """
        info = agreement.info(round_number)
        levels = agreement.levels
        each = [report_as_bytes(report, levels) for report in reports]
        sealed = b"".join(seal(report, self._key, info) for report in each)
        call = wire.Call(agreement, round_number, client)
        self._link.ask(wire.DELIVER, call, sealed)

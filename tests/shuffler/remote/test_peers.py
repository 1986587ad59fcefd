"""Peers of a shuffler that are silent, slow, too many, or unknown: none of them keeps the others
from their round."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pytest import LogCaptureFixture, MonkeyPatch

from fl_shuffle._internal.refusal_log import SHOWN, RefusalLog
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.shuffler.remote import limits, wire
from fl_shuffle.shuffler.remote.credentials import Settings, host_and_port
from fl_shuffle.shuffler.remote.limits import Limits, Turns
from fl_shuffle.shuffler.remote.link import Link, _exchanged
from fl_shuffle.shuffler.remote.service import _tls, opened
from fl_shuffle.shuffler.remote.tls_stream import BESIDE, TlsStream
from tests.processes import COMMAND, environment, linux, wait_until
from tests.shuffler.remote.test_rounds import CLIENTS, EVERYBODY, FACTS, REPORTS, Lab

SECONDS = 30.0
"""Within so long everything here happens, on the slowest machine."""


class Peer:
    """A raw connection to the shuffler: plain, or by TLS."""

    def __init__(
        self, lab: Lab, name: str = "site-0", *, tls: bool = True, source: str = ""
    ) -> None:
        own = lab.held_by(name)
        self._own = own
        address = host_and_port(own.address)
        origin = (source, 0) if source else None
        self.socket: socket.socket = socket.create_connection(address, SECONDS, origin)
        if tls:
            self.secure()

    def secure(self) -> None:
        """Go on by TLS."""
        context = ssl.create_default_context(cadata=self._own.certificate)
        context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
        host = host_and_port(self._own.address)[0]
        self.socket = context.wrap_socket(self.socket, server_hostname=host)

    def send(self, data: bytes) -> Peer:
        self.socket.sendall(data)
        return self

    def announce(self, call: wire.Call, size: int, method: str = wire.DELIVER, **also: str) -> Peer:
        return self.send(call.announced(method, also.get("token", self._own.token), size))

    def answer(self) -> wire.Reply | None:
        """The next line of an answer; None where the connection has ended."""
        line = b""
        while not line.endswith(b"\n"):
            try:
                byte = self.socket.recv(1)
            except (ConnectionError, ssl.SSLError):
                return None
            if not byte:
                return None
            line += byte
        return wire.Reply.decoded(line)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def serving(lab: Lab, most: Limits | None = None, **chosen: int) -> Iterator[None]:
    with MonkeyPatch.context() as patch:
        if most is not None:
            patch.setattr(Limits, "of_process", lambda *_: most)
        with opened(lab.store, **chosen):
            yield


def a_round(lab: Lab, number: int = 1) -> None:
    """A whole round passes."""
    batch = lab.analyzer().open(number, EVERYBODY)
    for client in range(CLIENTS):
        lab.sender().send(FACTS, number, client, REPORTS[client][None])
    assert batch.close().all()
    assert batch.release().count == CLIENTS


def delivery(client: int, facts: Any = FACTS) -> wire.Call:
    return wire.Call(facts, 1, client)


def test_site_does_not_wait_for_ever(lab: Lab, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITING_SECONDS", 0.1)
    with lab.serving(), Peer(lab) as before:
        lab.analyzer().open(1, EVERYBODY)
        reply = before.announce(delivery(0), FACTS.delivery_bytes).answer()
        assert reply == wire.Reply(wire.CONTINUE)
        lab.patience = 0.5
        with pytest.raises(wire.ShufflerError, match="keeps this call waiting"):
            lab.sender().send(FACTS, 1, 1, REPORTS[1][None])


def test_silent_and_slow_peers_stop_nobody(tmp_path: Path) -> None:
    """Many more than there are threads, in every place where a peer can fall silent."""
    lab, size = Lab(tmp_path, sites=2), FACTS.delivery_bytes
    with lab.serving(), ExitStack() as silent:
        lab.analyzer().open(1, EVERYBODY)
        for _ in range(12):
            silent.enter_context(Peer(lab, tls=False))
            silent.enter_context(Peer(lab, tls=False)).send(b"\x16\x03")
            silent.enter_context(Peer(lab))
            silent.enter_context(Peer(lab)).send(b'{"agreement": ')
        other = replace(FACTS, run="b" * 32)
        lab.analyzer(other).open(1, EVERYBODY)
        for _ in range(limits.PEER_CONNECTIONS):  # with a valid token, on another run
            silent.enter_context(Peer(lab, "site-1")).announce(wire.Call(other, 1, 3), size)
        a_site = Peer(lab, "site-0").announce(delivery(0), size)
        assert a_site.answer() == wire.Reply(wire.CONTINUE)
        a_site.close()
        for client in range(3):
            lab.sender().send(FACTS, 1, client, REPORTS[client][None])
        # The analyzer waits for nobody.
        assert lab.analyzer().open(2, EVERYBODY).collecting


def test_nothing_is_taken_before_a_peer_is_known_and_may(tmp_path: Path) -> None:
    lab, size = Lab(tmp_path, sites=2), FACTS.delivery_bytes
    other = replace(FACTS, run="b" * 32)
    with lab.serving():
        lab.analyzer().open(1, np.arange(CLIENTS) < 2)
        for name, call, token, method, sent, reason in (
            ("site-0", delivery(0), "5a" * 32, wire.DELIVER, size, "UNAUTHENTICATED"),
            ("site-0", delivery(4), "", wire.DELIVER, size, "PERMISSION_DENIED"),
            ("site-0", delivery(0), "", wire.DELIVER, 1 << 30, "INVALID_ARGUMENT"),
            ("site-0", delivery(0), "", wire.DELIVER, 1 << 50, "INVALID_ARGUMENT"),
            ("site-0", delivery(2), "", wire.DELIVER, size, "FAILED_PRECONDITION"),
            ("site-0", wire.Call(FACTS, 2, 0), "", wire.DELIVER, size, "FAILED_PRECONDITION"),
            ("site-0", delivery(0, other), "", wire.DELIVER, size, "NOT_FOUND"),
            ("site-0", delivery(0), "", wire.BEGIN, 1, "UNAUTHENTICATED"),
            ("analyzer", delivery(0), "", wire.DELIVER, size, "PERMISSION_DENIED"),
            ("analyzer", delivery(0), "", wire.BEGIN, 1 << 20, "INVALID_ARGUMENT"),
        ):  # fmt: skip
            with Peer(lab, name) as peer:
                own = lab.held_by(name).token
                reply = peer.announce(call, sent, method, token=token or own).answer()
                assert reply is not None and reply.reason == reason, (reply, reason)
        # A line that is none, or has no end.
        for line in (
            b"GET / HTTP/1.1\r\n",
            b"\n",
            b"[" * (wire.HEAD_BYTES + 1) + b"\n",
            b"x" * 200_000,
        ):
            with Peer(lab) as peer:
                try:
                    reply = peer.send(line).answer()
                except OSError:
                    reply = None  # it was closed before all of it was sent
                assert reply is None or reply.reason == "INVALID_ARGUMENT"


def test_connection_serves_one_token_and_many_calls(tmp_path: Path) -> None:
    lab = Lab(tmp_path, sites=2)
    sealed = os.urandom(FACTS.delivery_bytes)
    with lab.serving(), Peer(lab) as peer:
        lab.analyzer().open(1, EVERYBODY)
        assert peer.announce(delivery(0), len(sealed)).answer() == wire.Reply(wire.CONTINUE)
        assert peer.send(sealed).answer() == wire.Reply(wire.OK)
        # What is there already is not asked for.
        assert peer.announce(delivery(0), len(sealed)).answer() == wire.Reply(wire.OK)
        # A refusal does not end it; another token does.
        refused = peer.announce(delivery(5), len(sealed)).answer()
        assert refused is not None and refused.reason == "PERMISSION_DENIED"
        assert peer.announce(delivery(1), len(sealed)).answer() == wire.Reply(wire.CONTINUE)
        assert peer.send(os.urandom(len(sealed))).answer() == wire.Reply(wire.OK)
        other = lab.held_by("site-1").token
        refused = peer.announce(delivery(3), len(sealed), token=other).answer()
        assert refused is not None and refused.reason == "UNAUTHENTICATED"
        assert peer.answer() is None


def test_unknown_peer_has_little_time(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELLO_SECONDS", 0.5)
    lab = Lab(tmp_path)
    with lab.serving():
        for peer in (Peer(lab, tls=False), Peer(lab), Peer(lab).send(b'{"token": ')):
            assert peer.answer() is None  # it is closed


def test_peer_that_stalls_gives_its_turn_back(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALL_SECONDS", 0.5)
    lab, size = Lab(tmp_path), FACTS.delivery_bytes
    with lab.serving():
        lab.analyzer().open(1, EVERYBODY)
        stalled = Peer(lab).announce(delivery(0), size)
        assert stalled.answer() == wire.Reply(wire.CONTINUE)
        stalled.send(bytes(3))
        a_round(lab)  # of the same site: it waits for its turn
        assert stalled.answer() is None


@pytest.mark.parametrize(("slowest", "arrives"), [(1, True), (1 << 30, False)])
def test_slow_line_is_a_line_of_the_size_that_is_set(
    tmp_path: Path, monkeypatch: MonkeyPatch, slowest: int, arrives: bool
) -> None:
    """Pieces come often enough; whether all of them may come is a matter of the setting."""
    monkeypatch.setattr(limits, "STALL_SECONDS", 3.0)
    lab, size = Lab(tmp_path), FACTS.delivery_bytes
    with serving(lab, slowest=slowest):
        lab.analyzer().open(1, EVERYBODY)
        slow = Peer(lab).announce(delivery(0), size)
        assert slow.answer() == wire.Reply(wire.CONTINUE)
        sealed = os.urandom(size)
        try:
            for place in range(0, size, 8):
                slow.send(sealed[place : place + 8])
                asyncio.run(asyncio.sleep(0.5))
        except OSError:
            assert not arrives
        assert (slow.answer() == wire.Reply(wire.OK)) is arrives


def test_flood_drives_out_itself(tmp_path: Path) -> None:
    """Another address's connection, which is older and has not said anything, keeps its place."""
    lab = Lab(tmp_path)
    with serving(lab, Limits(strangers=4, peers=8)), ExitStack() as open_ones:
        lab.analyzer().open(1, EVERYBODY)
        honest = open_ones.enter_context(Peer(lab, tls=False))
        flood = [
            open_ones.enter_context(Peer(lab, tls=False, source="127.0.0.2")) for _ in range(20)
        ]
        assert [peer.answer() for peer in flood[:16]] == [None] * 16
        honest.secure()
        reply = honest.announce(delivery(0), FACTS.delivery_bytes).answer()
        assert reply == wire.Reply(wire.CONTINUE)


def test_peer_has_few_connections_and_idle_ones_make_way(tmp_path: Path) -> None:
    lab, size = Lab(tmp_path), FACTS.delivery_bytes
    with lab.serving(), ExitStack() as open_ones:
        lab.analyzer().open(1, EVERYBODY)
        peers = [open_ones.enter_context(Peer(lab)) for _ in range(limits.PEER_CONNECTIONS + 2)]
        idle, *calling, last, extra = peers
        wrong = idle.announce(delivery(0), 1).answer()
        assert wrong is not None and wrong.reason == "INVALID_ARGUMENT"
        for peer in calling:
            peer.announce(delivery(0), size)
        assert calling[0].answer() == wire.Reply(wire.CONTINUE)
        last.announce(delivery(1), size)
        assert idle.answer() is None
        refused = extra.announce(delivery(1), size).answer()
        assert refused is not None and refused.reason == "RESOURCE_EXHAUSTED"


def test_peer_with_all_its_connections_ends_no_other_peers(tmp_path: Path) -> None:
    """Not even one that is idle, and older: its own make way, or it is refused."""
    lab, size = Lab(tmp_path, sites=2), FACTS.delivery_bytes
    with lab.serving(), ExitStack() as open_ones:
        lab.analyzer().open(1, EVERYBODY)
        other = open_ones.enter_context(Peer(lab, "site-1"))
        wrong = other.announce(delivery(CLIENTS - 1), 1).answer()
        assert wrong is not None and wrong.reason == "INVALID_ARGUMENT"
        calling = [open_ones.enter_context(Peer(lab)) for _ in range(limits.PEER_CONNECTIONS)]
        for peer in calling:
            peer.announce(delivery(0), size)
        assert calling[0].answer() == wire.Reply(wire.CONTINUE)
        extra = open_ones.enter_context(Peer(lab))
        refused = extra.announce(delivery(1), size).answer()
        assert refused is not None and refused.reason == "RESOURCE_EXHAUSTED"
        again = other.announce(delivery(CLIENTS - 1), size).answer()
        assert again == wire.Reply(wire.CONTINUE)


def test_turns_are_one_a_peer_and_bounded_in_memory() -> None:
    async def played() -> None:
        turns = Turns(100)
        twice = [turns.ask("a", 1) for _ in range(2)]
        assert [each.granted.done() for each in twice] == [True, False]
        turns.end(twice[0])
        assert twice[1].granted.done()
        turns.end(twice[1])
        first, second, same = turns.ask("a", 60), turns.ask("b", 60), turns.ask("a", 1)
        huge, small, analyzer = turns.ask("c", 10**9), turns.ask("d", 1), turns.ask("server", 0)

        def granted() -> list[bool]:
            return [each.granted.done() for each in (first, second, same, huge, small, analyzer)]

        # Nobody overtakes a call that waits for memory but the analyzer, who takes none.
        assert granted() == [True, False, False, False, False, True]
        turns.end(first)
        assert granted() == [True, True, True, False, False, True]
        turns.end(small)  # it went away before its turn
        turns.end(second)
        assert not granted()[3]
        turns.end(same)
        assert granted()[3]  # larger than all of it: it has it alone
        late = turns.ask("d", 1)
        assert not late.granted.done()
        turns.end(huge)
        assert late.granted.done()

    asyncio.run(played())


def test_limits_follow_the_file_handles(monkeypatch: MonkeyPatch) -> None:
    for handles in (128, 1024, 20_000, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda _, own=handles: (own, own))
        most = Limits.of_process()
        assert most.strangers >= 16 and most.peers >= 32
        # Those that are being closed have a handle for a moment: strangers count twice.
        whole = 2 * most.strangers + most.peers + limits.OWN_HANDLES
        assert handles == resource.RLIM_INFINITY or whole <= handles
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    with pytest.raises(ConfigError, match="ulimit -n = 100"):
        Limits.of_process()
    monkeypatch.undo()
    for bad in ({"memory": 0}, {"memory": -1}, {"slowest": 0}):
        with pytest.raises(InvalidValueError, match=f"--{next(iter(bad))}"):
            Limits.of_process(**bad)


def test_refused_calls_leave_one_line_each(lab: Lab, caplog: LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with lab.serving():
        lab.analyzer().open(1, EVERYBODY)
        for _ in range(20):
            with Peer(lab) as stranger:
                stranger.announce(delivery(0), 4, token="secret token").answer()
            with Peer(lab) as site:
                site.announce(delivery(7), FACTS.delivery_bytes).answer()
    said = [line for line in caplog.messages if line.startswith("refused")]
    assert said == [
        "refused: a peer without a valid token: this token was not handed out by this shuffler",
        "refused: site 0: this token does not speak for that client",
    ]
    whole = "\n".join(caplog.messages)
    assert "127.0.0.1" not in whole.replace(lab.held_by("site-0").address, "")
    assert "secret token" not in whole and lab.held_by("site-0").token not in whole


def test_refusal_log_is_bounded_in_rate_and_size(caplog: LogCaptureFixture) -> None:
    now, refusals = [0.0], RefusalLog(logging.getLogger("refusals"), clock=lambda: now[0])
    for second in range(130):
        now[0] = float(second)
        for kind in ("one", "other"):
            refusals.note(kind, f"{kind} {second}")
    assert caplog.messages == [
        "refused: one 0", "refused: other 0",
        "refused: one 60 (and 59 more like it since the last such line)",
        "refused: other 60 (and 59 more like it since the last such line)",
        "refused: one 120 (and 59 more like it since the last such line)",
        "refused: other 120 (and 59 more like it since the last such line)",
    ]  # fmt: skip
    caplog.clear()
    for number in range(5000):
        refusals.note(f"kind {number}", "x\n\x1b[2J\u202e" + "y" * 10_000)
    assert len(caplog.messages) < 1100
    assert all(len(line) < SHOWN + 20 and line.isprintable() for line in caplog.messages)


FLOOD = """
import socket, ssl, sys, time
address = (sys.argv[1], int(sys.argv[2]))
held = []
for number in range(int(sys.argv[3])):
    peer = socket.create_connection(address, 30.0)
    if number % 3:
        peer.sendall(b"\\x16\\x03\\x01\\x40\\x00" + bytes(1000 * (number % 3)))
    held.append(peer)
print("open", flush=True)
sys.stdin.read()
"""


@linux
@pytest.mark.slow
def test_strangers_do_not_fill_a_port_of_1024_handles(tmp_path: Path) -> None:
    """Twice as many connections as the shuffler has handles; a site delivers meanwhile."""
    lab = Lab(tmp_path)
    host, port = host_and_port(lab.held_by("site-0").address)
    said = tmp_path / "said"
    with said.open("wb") as log, ExitStack() as running:
        command = ["sh", "-c", 'ulimit -n 1024 && exec "$@"', "sh", *COMMAND]
        command += ["shuffler", "serve", str(lab.store)]
        server = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
        running.callback(server.wait)
        running.callback(server.kill)
        wait_until(lambda: "listening" in said.read_text(), SECONDS, said.read_text)
        a_round(lab, 1)
        before = memory_of(server.pid)
        for number in range(2, 6):
            flood = subprocess.Popen(
                [sys.executable, "-c", FLOOD, host, str(port), "500"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            running.callback(flood.wait)
            running.callback(flood.kill)
            assert flood.stdout is not None and flood.stdout.readline() == b"open\n"
            a_round(lab, number)
        assert len(list(Path(f"/proc/{server.pid}/fd").iterdir())) < 512
        assert memory_of(server.pid) - before < 64 << 20
        assert server.poll() is None
    text = said.read_text()
    assert "Traceback" not in text and "turned away" in text
    assert text.count("refused") < 20


def memory_of(process: int) -> int:
    """Bytes that a process holds in memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (line,) = [each for each in lines if each.startswith("VmRSS")]
    return int(line.split()[1]) << 10


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_large_report_arrives_whole(lab: Lab) -> None:
    """Larger than any buffer on its way; and a stranger's pass is no way in."""
    settings = lab.store / "settings.json"
    facts = json.loads(settings.read_text())
    settings.write_text(json.dumps({**facts, "largest_report": 1 << 24}))
    large = replace(FACTS, dimension=1 << 21)
    sealed = np.random.default_rng(1).bytes(large.delivery_bytes)
    with serving(lab, memory=1 << 20):
        batch = lab.analyzer(large).open(1, EVERYBODY)
        link = Link(lab.held_by("site-0"), SECONDS)
        for client in range(4):
            link.ask(wire.DELIVER, wire.Call(large, 1, client), bytes([client]) + sealed[1:])
        assert batch.close().sum() == 4
        pieces = list(batch.fetch())
    assert sorted(piece[0] for piece in pieces) == [0, 1, 2, 3]
    assert {piece[1:] for piece in pieces} == {sealed[1:]}


def test_peer_sends_more_than_announced_is_cut_off(tmp_path: Path) -> None:
    """All bytes from the network count, also those that carry nothing."""
    lab = Lab(tmp_path)
    settings = Settings.read(lab.store / "settings.json", "settings")
    here, there = socket.socketpair()
    context = ssl.create_default_context(cadata=settings.certificate)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def flood() -> None:
        with suppress(OSError), context.wrap_socket(there) as peer:
            for _ in range(64):
                peer.sendall(bytes(BESIDE))

    async def taken() -> int:
        stream, found = TlsStream(here, _tls(lab.store, settings)), 0
        await stream.handshake()
        stream.allow(1000)
        with pytest.raises(ConnectionAbortedError, match="more than was announced"):
            while part := await stream.read(BESIDE):
                found += len(part)
        stream.close()
        return found

    sender = Thread(target=flood)
    sender.start()
    assert 1000 <= asyncio.run(taken()) <= 2 * BESIDE
    sender.join()


def test_token_that_is_no_text_is_one_line(tmp_path: Path, caplog: LogCaptureFixture) -> None:
    lab = Lab(tmp_path)
    with serving(lab):
        for line in (b'{"token": "\\ud800"}\n', b'{"token": 5}\n', b'{"token": ["x"]}\n'):
            with Peer(lab) as peer:
                reply = peer.send(line).answer()
                assert reply is not None and reply.reason == "INVALID_ARGUMENT"
    assert not [record for record in caplog.records if record.exc_info]


def test_an_answer_that_ends_early_is_none() -> None:
    """After any byte of its line or of what comes behind it: it is asked for again."""
    content = bytes(range(20))
    whole = wire.Reply(wire.OK, size=len(content)).encoded() + content
    for length in range(len(whole) + 1):
        sent = SimpleNamespace(sendall=lambda data: None)
        connection: Any = SimpleNamespace(tls=sent, answers=io.BytesIO(whole[:length]))
        if length == len(whole):
            assert _exchanged(connection, b"", b"", SECONDS)[1] == content
            continue
        with pytest.raises((ConnectionError, ValueError)):
            _exchanged(connection, b"", b"", SECONDS)

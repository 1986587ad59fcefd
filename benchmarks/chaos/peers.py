"""Peers that keep a port busy while a run plays: silent, slow and hostile ones.

All of them reach this machine's own addresses alone, in bounded numbers, and end with the run.
"""

from __future__ import annotations

import json
import random
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.chaos.apart.parties import RELEASES, Party, parties
from benchmarks.chaos.superlink import SuperLink
from benchmarks.chaos.tally import Tally

KINDS = ("silent", "slow", "hostile")
AT_A_TIME, ALTOGETHER = 200, 4000
"""Connections of such peers."""
PAUSE_SECONDS, PATIENCE = 0.005, 2.0


@dataclass(frozen=True)
class Port:
    """Where they connect; by TLS, if there is a `certificate`; `tokens` that they show."""

    host: str
    port: int
    certificate: str = ""
    tokens: tuple[str, ...] = ()


@contextmanager
def besieged(kind: str, target: Port, said: Path) -> Iterator[None]:
    """Peers of this kind hold the port meanwhile."""
    peers = Party(partial(_play, kind, target), said)
    peers.start()
    try:
        yield
        if peers.ended():
            raise RuntimeError(f"{kind} peers ended before the run did")
    finally:
        peers.kill()


def _play(kind: str, target: Port) -> int:
    draw, held = random.Random(kind), list[socket.socket]()
    opened = 0
    while True:  # until it is killed
        if opened < ALTOGETHER:
            opened += 1
            with suppress(OSError):
                held.append(_connected(kind, target, draw))
        else:
            time.sleep(10 * PAUSE_SECONDS)
        while len(held) > AT_A_TIME:
            held.pop(0).close()
        if kind == "slow":
            for peer in held:
                with suppress(OSError):
                    peer.send(b" ")
        time.sleep(PAUSE_SECONDS)


def _connected(kind: str, target: Port, draw: random.Random) -> socket.socket:
    """A connection of such a peer, with what it says at once."""
    peer = socket.create_connection((target.host, target.port), PATIENCE)
    if target.certificate and draw.random() < 0.7:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=target.certificate)
        peer = context.wrap_socket(peer, server_hostname=target.host)
    if kind == "slow":
        peer.sendall(
            draw.choice([b"POST / HTTP/1.1\r\nContent-Length: 100\r\n", b'{"token":', b"PRI"])
        )
    elif kind == "hostile":
        token = draw.choice([*target.tokens, "5a" * 32])
        line = json.dumps({"token": token, "method": "Deliver", "bytes": 1 << 40}).encode()
        said = [
            draw.randbytes(draw.randrange(1, 5000)),
            line + b"\n",
            line[:-9],
            b"[" * 20_000,
            b"GET / HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + draw.randbytes(900),
            b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        ]
        peer.sendall(draw.choice(said))
        if draw.random() < 0.5:
            peer.close()
    return peer


def peers_of_shuffler(folder: Path) -> Tally:
    """A run with each kind of them, of either release; of hostile ones one is a site, whose report
    does not open."""
    tally = Tally("peers of the shuffler", seen=0)
    for number, kind in enumerate(KINDS):
        release = RELEASES[number % 2]
        run, place = folder / kind / "run", folder / kind
        with parties(place) as found:
            if kind == "hostile":
                found.spoil()
            own = json.loads((found.passes / "site-0.json").read_text())
            host, port = own["address"].split(":")
            target = Port(host, int(port), own["certificate"], (own["token"],))
            with besieged(kind, target, place / "said-peers"):
                found.start_server(run, release)
                lost, uncounted, problem = found.came_of(run, tally)
            tally.add(kind, lost=lost, uncounted=uncounted, problem=problem)
    return tally


def peers_of_superlink(folder: Path) -> Tally:
    """A run on a SuperLink with two SuperNodes, with each kind of them."""
    tally = Tally("peers of the SuperLink")
    with SuperLink(folder) as link:
        for kind in KINDS:
            with besieged(kind, Port(link.host, link.port), folder / f"said-{kind}"):
                problem = link.play(folder / f"run-{kind}")
            tally.add(kind, problem=tally.said(problem) or problem)
    return tally

"""How much a shuffler gives to peers, known and unknown, and for how long."""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from dataclasses import dataclass

from fl_shuffle.errors import ConfigError, require_integer
from fl_shuffle.shuffler.remote import MEMORY, SLOWEST

HELLO_SECONDS = 20.0
"""A peer has so long from its connection to a whole line with a valid token."""
IDLE_SECONDS = 60.0
"""A known peer's connection without a call is closed after this time."""
STALL_SECONDS = 30.0
"""A peer that neither sends nor takes a byte for so long is given up."""
WAITING_SECONDS = 15.0
"""A peer that has to wait is told so this often."""
PEER_CONNECTIONS = 4
"""Of one token; an idle one makes way."""
MOST_STRANGERS = 128
MOST_PEERS = 4096
"""Connections of peers that are not known yet, and of those that are."""
OWN_HANDLES = 64
"""Files that the process itself needs: its store, libraries, the listening socket."""
LEAST_HANDLES = 128


@dataclass(frozen=True)
class Limits:
    """At most `strangers` connections whose token is not known yet, and `peers` others. Calls under
    way hold at most `memory` bytes together, or one call by itself; a call of n bytes takes at most
    `STALL_SECONDS` + n / `slowest` seconds."""

    strangers: int
    peers: int
    memory: int = MEMORY
    slowest: int = SLOWEST

    @classmethod
    def of_process(cls, memory: int = MEMORY, slowest: int = SLOWEST) -> Limits:
        """Return the limits for the number of file handles that this process may have.

        Raises `ConfigError` where that is too small, `InvalidValueError` for the other two.
        """
        require_integer("--memory", memory, minimum=1 << 20)
        require_integer("--slowest", slowest, minimum=1)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        handles = MOST_STRANGERS + MOST_PEERS if soft == resource.RLIM_INFINITY else soft
        if handles < LEAST_HANDLES:
            raise ConfigError(
                f"ulimit -n = {handles}: a shuffler needs at least {LEAST_HANDLES}; raise it"
            )
        left = handles - OWN_HANDLES
        strangers = min(MOST_STRANGERS, left // 4)
        return cls(strangers, min(MOST_PEERS, left - 2 * strangers), memory, slowest)


@dataclass(eq=False)
class Turn:
    """A call's turn to send its bytes: `granted` once it has come."""

    peer: str
    size: int
    granted: asyncio.Future[None]


class Turns:
    """Whose bytes are taken now: those of one call a peer, and no more than `memory` together.

    Calls come in the order in which they asked. A slow peer holds its own turn, and what its call
    takes of the memory.
    """

    def __init__(self, memory: int) -> None:
        self._memory = self._free = memory
        self._waiting: deque[Turn] = deque()
        self._busy = set[str]()

    def ask(self, peer: str, size: int) -> Turn:
        """Return a turn for this peer's `size` bytes; give it back with `end`."""
        turn = Turn(peer, min(size, self._memory), asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        self._grant()
        return turn

    def end(self, turn: Turn) -> None:
        """End the turn: the call is over, or nobody waits for its turn any more."""
        if turn in self._waiting:
            self._waiting.remove(turn)
        else:
            self._busy.discard(turn.peer)
            self._free += turn.size
        self._grant()

    def _grant(self) -> None:
        full = False
        for turn in list(self._waiting):
            # Nobody who takes memory overtakes a call that waits for it: its turn would not come.
            full = full or (turn.size > self._free and turn.peer not in self._busy)
            if turn.peer in self._busy or (full and turn.size):
                continue
            self._waiting.remove(turn)
            self._busy.add(turn.peer)
            self._free -= turn.size
            if not turn.granted.done():
                turn.granted.set_result(None)

"""What a shuffler does with each call: who may, what is kept, what leaves.

It logs rounds and refused calls, without times or addresses, and no report that was taken: its log
does not say who sent when.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.agreement import Agreement
from fl_shuffle.shuffler.remote.credentials import Settings, digest_of
from fl_shuffle.shuffler.remote.sealing import OVERHEAD
from fl_shuffle.shuffler.remote.store import Store
from fl_shuffle.shuffler.remote.wire import Announced, ShufflerError

log = logging.getLogger("fl_shuffle.shuffler")

PAGE_BYTES = 1 << 22
"""Approximate bytes of a batch that are sent at a time."""


@dataclass(frozen=True)
class Peer:
    """Who calls, as its token says: the analyzer, or a site with its `clients`."""

    name: str
    clients: range | None = None


class RequestHandler:
    """Answers calls, from several threads, or raises `FlShuffleError`. `private` is the shuffler's
    own key.

    A call goes through all of these in turn: who is it (`authenticated`), may it call so
    (`permit`), are its bytes wanted (`wants`), what comes of it (`answer`).
    """

    def __init__(self, settings: Settings, store: Store, private: bytes) -> None:
        self._settings = settings
        self._store = store
        self._private = private
        self._peers = {settings.analyzer: Peer("the analyzer")}
        parts = np.array_split(np.arange(settings.clients), max(1, len(settings.sites)))
        for number, digest in enumerate(settings.sites):
            clients = range(int(parts[number][0]), int(parts[number][-1]) + 1)
            self._peers[digest] = Peer(f"site {number}", clients)

    def authenticated(self, line: bytes) -> tuple[Peer, dict[str, Any]]:
        """Return who sent a line that announces a call, and what else it says, unchecked; raises
        `ShufflerError` alone."""
        token, facts = wire.facts_in(line)
        peer = self._peers.get(digest_of(token))
        if peer is None:
            raise ShufflerError("this token was not handed out by this shuffler", "UNAUTHENTICATED")
        return peer, facts

    def permit(self, peer: Peer, announced: Announced) -> None:
        """Refuse a call that is not this peer's to make, or with other than its number of bytes."""
        call, size = announced.call, announced.size
        if announced.method != wire.DELIVER:
            if peer.clients is not None:
                raise ShufflerError("this is not the analyzer's token", "UNAUTHENTICATED")
            bitmap = (call.agreement.clients + 7) // 8
            if size > max(bitmap, wire.POSITION_BYTES):
                raise ShufflerError("no call of the analyzer sends so much", "INVALID_ARGUMENT")
            return
        if peer.clients is None:
            raise ShufflerError("the analyzer's token delivers no reports", "PERMISSION_DENIED")
        if call.client not in peer.clients:
            raise ShufflerError("this token does not speak for that client", "PERMISSION_DENIED")
        whole, most = call.agreement.delivery_bytes, self._settings.largest_report + OVERHEAD
        if size > most or size != whole:
            said = f"what a client sends of a round has {whole} bytes, no other number"
            said = f"{size} bytes are larger than what this shuffler takes" if size > most else said
            raise ShufflerError(said, "INVALID_ARGUMENT")

    def wants(self, announced: Announced) -> bool:
        """Return whether its bytes are wanted; not those of a report that is there already."""
        if announced.method != wire.DELIVER:
            return True
        call = announced.call
        return self._store.wants(call.agreement, call.round_number, call.client)

    def answer(self, announced: Announced, sent: bytes) -> bytes:
        """Answer a call that is permitted, with the bytes that came with it.

        A batch is fetched a few pieces at a time, from a position on; none is behind the last one.
        """
        call = announced.call
        agreement, number = call.agreement, call.round_number
        if announced.method == wire.DELIVER:
            self._store.add(agreement, number, call.client, sent)
            return b""
        if announced.method == wire.BEGIN:
            return self._begin(agreement, number, sent)
        if announced.method == wire.CLOSE:
            return self._close(agreement, number)
        if announced.method == wire.FINISH:
            self._store.hand_over(agreement, number)
            return b""
        first = int.from_bytes(sent[: wire.POSITION_BYTES], "big")
        most = max(1, PAGE_BYTES // agreement.piece_bytes)
        return b"".join(self._store.batch(agreement, number, first, most))

    def _begin(self, agreement: Agreement, number: int, bitmap: bytes) -> bytes:
        """Open a round for the analyzer; answers where it stands."""
        settings = self._settings
        asked = wire.mask_of(bitmap, agreement.clients)
        if agreement.clients != settings.clients:
            raise ShufflerError(
                f"data.clients = {agreement.clients}: this shuffler was set up for "
                f"{settings.clients} clients; use that number"
            )
        if agreement.delivery_bytes > settings.largest_report + OVERHEAD:
            raise ShufflerError(
                f"{agreement.batches} reports of {agreement.report_bytes} bytes a client and round "
                f"(sealed, {OVERHEAD} more each): this shuffler takes at most "
                f"{settings.largest_report} of a client (shuffler init --max-report-bytes)"
            )
        state = self._store.begin(agreement, number, asked)
        if state == wire.OPEN:
            log.info("run %s, round %d: open", agreement.run[:8], number)
        return bytes([state])

    def _close(self, agreement: Agreement, number: int) -> bytes:
        """Close a round for the analyzer, if enough reports are there; answers who is in it.

        How many there are is not told before: asking again and again would tell when they came.
        """
        least = max(self._settings.min_reports, agreement.min_reports)
        present = self._store.close_round(agreement, number, least, self._private)
        count = np.count_nonzero(present)
        log.info("run %s, round %d: closed with %d reports", agreement.run[:8], number, count)
        return wire.bitmap_of(present)

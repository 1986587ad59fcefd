"""What a shuffler does with each call: who may, what is kept, what leaves.

It logs rounds, without times, and never a client: what it writes tells nobody who sent when.
"""

from __future__ import annotations

import logging

import numpy as np

from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.agreement import Agreement
from fl_shuffle.shuffler.remote.credentials import Settings, digest_of
from fl_shuffle.shuffler.remote.sealing import OVERHEAD
from fl_shuffle.shuffler.remote.store import Store
from fl_shuffle.shuffler.remote.wire import Call, ShufflerError

log = logging.getLogger("fl_shuffle.shuffler")

PAGE_BYTES = 1 << 22
"""About so much of a batch goes out at a time."""


class RequestHandler:
    """Answers calls, from several threads, or raises `ShufflerError`. `private` is the shuffler's
    own key."""

    def __init__(self, settings: Settings, store: Store, private: bytes) -> None:
        self._settings = settings
        self._store = store
        self._private = private
        parts = np.array_split(np.arange(settings.clients), max(1, len(settings.sites)))
        self._clients = dict(zip(settings.sites, parts, strict=False))

    def answer(self, method: str, data: bytes) -> bytes:
        """What is said to a call as it travels.

        A batch is fetched a few pieces at a time, from a position on; none is behind the last one.
        """
        token, call, sent = Call.decoded(data)
        agreement, number = call.agreement, call.round_number
        if method == wire.DELIVER:
            self._deliver(digest_of(token), call, sent)
            return b""
        if digest_of(token) != self._settings.analyzer:
            raise ShufflerError("this is not the analyzer's token", "UNAUTHENTICATED")
        if method == wire.BEGIN:
            return self._begin(agreement, number, sent)
        if method == wire.CLOSE:
            return self._close(agreement, number)
        if method == wire.FINISH:
            self._store.hand_over(agreement, number)
            return b""
        first = int.from_bytes(sent[: wire.POSITION_BYTES], "big")
        most = max(1, PAGE_BYTES // agreement.piece_bytes)
        return b"".join(self._store.batch(agreement, number, first, most))

    def _deliver(self, site: str, call: Call, sealed: bytes) -> None:
        """Take a site's sealed reports, one for each batch of a round, of one of its clients."""
        clients, agreement = self._clients.get(site), call.agreement
        if clients is None:
            raise ShufflerError("this token was not handed out by this shuffler", "UNAUTHENTICATED")
        if not clients[0] <= call.client <= clients[-1]:
            raise ShufflerError("this token does not speak for that client", "PERMISSION_DENIED")
        if len(sealed) != agreement.delivery_bytes:
            raise ShufflerError(
                f"what a client sends of a round has {agreement.delivery_bytes} bytes, no other "
                "number",
                "INVALID_ARGUMENT",
            )
        self._store.add(agreement, call.round_number, call.client, sealed)

    def _begin(self, agreement: Agreement, number: int, bitmap: bytes) -> bytes:
        """Open a round for the analyzer; answers where it stands."""
        settings = self._settings
        asked = wire.mask_of(bitmap, agreement.clients)
        if agreement.clients != settings.clients:
            raise ShufflerError(
                f"data.clients = {agreement.clients}: this shuffler enrolled {settings.clients}"
            )
        if agreement.delivery_bytes > settings.largest_report + OVERHEAD:
            raise ShufflerError(
                f"{agreement.batches} reports of {agreement.report_bytes} bytes a client and round "
                f"(sealed, {OVERHEAD} more each): this shuffler takes at most "
                f"{settings.largest_report} of a client (shuffler init --largest-report)"
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

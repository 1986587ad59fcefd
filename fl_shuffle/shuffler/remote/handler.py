"""What a shuffler does with each call: who may, what is kept, what leaves.

It logs rounds, without times, and never a client: what it writes tells nobody who sent when.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.agreement import Agreement
from fl_shuffle.shuffler.remote.credentials import Settings, digest_of
from fl_shuffle.shuffler.remote.sealing import OVERHEAD
from fl_shuffle.shuffler.remote.store import Store, Taken
from fl_shuffle.shuffler.remote.wire import ShufflerError

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
        parts = np.array_split(np.arange(settings.clients), len(settings.sites))
        self._clients = dict(zip(settings.sites, parts, strict=True))

    def answer(self, method: str, data: bytes) -> bytes:
        """What is said to a call as it travels."""
        token, call, sent = wire.Call.decoded(data)
        if method == wire.DELIVER:
            return self._deliver(self._clients.get(digest_of(token)), call, sent)
        if digest_of(token) != self._settings.analyzer:
            raise ShufflerError("UNAUTHENTICATED", "this is not the analyzer's token")
        answers = {
            wire.BEGIN: self._begin,
            wire.CLOSE: self._close,
            wire.FETCH: self._fetch,
            wire.FINISH: self._finish,
        }
        return answers[method](call, sent)

    def _deliver(self, clients: NDArray[np.int64] | None, call: wire.Call, sealed: bytes) -> bytes:
        """Take a site's sealed reports, one for each batch of a round, of one of its clients."""
        if clients is None:
            raise ShufflerError("UNAUTHENTICATED", "this token was not handed out by this shuffler")
        if call.client is None or not clients[0] <= call.client <= clients[-1]:
            raise ShufflerError("PERMISSION_DENIED", "this token does not speak for that client")
        agreement = self._known(call)
        if call.agreement != agreement:
            # The analyzer could tell such a report by what it is bound to.
            raise ShufflerError(
                "FAILED_PRECONDITION",
                "this report is bound to other facts than this run was begun with: is every site "
                "sent the same configuration?",
            )
        if len(sealed) != agreement.delivery_bytes:
            raise ShufflerError(
                "INVALID_ARGUMENT",
                f"what a client sends of a round has {agreement.delivery_bytes} bytes, no other "
                "number",
            )
        taken = self._store.add(call.place, call.client, sealed)
        if taken is not Taken.ACCEPTED:
            already = taken is Taken.ALREADY
            raise ShufflerError("ALREADY_EXISTS" if already else "FAILED_PRECONDITION", taken.value)
        return b""

    def _begin(self, call: wire.Call, bitmap: bytes) -> bytes:
        """Open a round for the analyzer; answers where it stands."""
        agreement, settings = call.agreement, self._settings
        if agreement is None:
            raise ShufflerError("INVALID_ARGUMENT", "a round is begun with the facts of its run")
        asked = wire.mask_of(bitmap, agreement.clients)
        if agreement.clients != settings.clients:
            raise ShufflerError(
                "FAILED_PRECONDITION",
                f"data.clients = {agreement.clients}: this shuffler enrolled {settings.clients}",
            )
        if agreement.delivery_bytes > settings.largest_report + OVERHEAD:
            raise ShufflerError(
                "FAILED_PRECONDITION",
                f"{agreement.batches} reports of {agreement.report_bytes} bytes a client and round "
                f"(sealed, {OVERHEAD} more each): this shuffler takes at most "
                f"{settings.largest_report} of a client (shuffler init --largest-report)",
            )
        if self._store.begin(agreement, call.round_number, asked):
            log.info("run %s, round %d: open", call.run[:8], call.round_number)
            return wire.OPEN
        return wire.HANDED_OVER if self._store.handed_over(call.place) else wire.CLOSED

    def _close(self, call: wire.Call, sent: bytes) -> bytes:
        """Close a round for the analyzer, if enough reports are there; answers who is in it.

        How many there are is not told before: asking again and again would tell when they came.
        """
        least = max(self._settings.min_reports, self._known(call).min_reports)
        present = self._store.close_round(call.place, least, self._private)
        if present is None:
            raise ShufflerError(
                "FAILED_PRECONDITION",
                f"fewer than {least} usable reports of round {call.round_number} are here; nothing "
                "is released",
            )
        count = np.count_nonzero(present)
        log.info("run %s, round %d: closed with %d reports", call.run[:8], call.round_number, count)
        return wire.bitmap_of(present)

    def _fetch(self, call: wire.Call, sent: bytes) -> bytes:
        """What is released of a closed round, for the analyzer: some of its pieces from a position
        on, none behind the last one."""
        if self._store.attendance(call.place) is None:
            raise ShufflerError("FAILED_PRECONDITION", "the round is not closed")
        if self._store.handed_over(call.place):
            raise ShufflerError("FAILED_PRECONDITION", "the round was handed over and is gone")
        first = int.from_bytes(sent[: wire.POSITION_BYTES], "big")
        most = max(1, PAGE_BYTES // self._known(call).piece_bytes)
        return b"".join(self._store.batch(call.place, first, most))

    def _finish(self, call: wire.Call, sent: bytes) -> bytes:
        """Forget a closed round's batch: the analyzer has done with it."""
        self._store.hand_over(call.place)
        return b""

    def _known(self, call: wire.Call) -> Agreement:
        agreement = self._store.agreement(call.run)
        if agreement is None:
            raise ShufflerError("NOT_FOUND", "no such run was begun here")
        return agreement

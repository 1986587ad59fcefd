"""What a shuffler does with each call: who may, what is kept, what leaves.

It logs rounds, without times, and never a client: what it writes tells nobody who sent when.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from fl_shuffle.errors import FlShuffleError
from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.agreement import Agreement
from fl_shuffle.shuffler.remote.credentials import Settings, digest_of
from fl_shuffle.shuffler.remote.sealing import OVERHEAD
from fl_shuffle.shuffler.remote.store import Store, Taken
from fl_shuffle.shuffler.remote.summing import adding

log = logging.getLogger("fl_shuffle.shuffler")


class Refused(FlShuffleError):
    """A call that is not answered; `reason` is one of gRPC's status codes, by name."""

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        super().__init__(text)


class RequestHandler:
    """Answers calls, from several threads. `private` is the shuffler's own key."""

    def __init__(self, settings: Settings, store: Store, private: bytes) -> None:
        self._settings = settings
        self._store = store
        self._private = private
        self._sites = {site.digest: site for site in settings.sites}

    def deliver(self, data: bytes) -> bytes:
        """Take a site's sealed reports, one for each batch of a round, of one of its clients."""
        call, sealed = wire.Call.decoded(data)
        client = -1 if call.client is None else call.client
        site = self._sites.get(digest_of(call.token))
        if site is None:
            raise Refused("UNAUTHENTICATED", "this token was not handed out by this shuffler")
        if not site.plays(client):
            raise Refused("PERMISSION_DENIED", "this token does not speak for that client")
        agreement = self._known(call.run)
        if call.agreement != agreement:
            # The analyzer could tell such a report by what it is bound to.
            raise Refused(
                "FAILED_PRECONDITION",
                "this report is bound to other facts than this run was begun with: is every site "
                "sent the same configuration?",
            )
        if len(sealed) != agreement.delivery_bytes:
            raise Refused(
                "INVALID_ARGUMENT",
                f"what a client sends of a round has {agreement.delivery_bytes} bytes, no other "
                "number",
            )
        taken = self._store.add(call.run, call.round_number, client, sealed)
        if taken is Taken.ALREADY:
            raise Refused("ALREADY_EXISTS", taken.value)
        if taken is not Taken.ACCEPTED:
            raise Refused("FAILED_PRECONDITION", taken.value)
        return b""

    def begin(self, data: bytes) -> bytes:
        """Open a round for the analyzer; answers where it stands."""
        call, bitmap = wire.Call.decoded(data)
        self._require_analyzer(call)
        agreement = call.agreement
        if agreement is None:
            raise Refused("INVALID_ARGUMENT", "a round is begun with the facts of its run")
        asked = wire.mask_of(bitmap, agreement.clients)
        settings = self._settings
        if agreement.clients != settings.clients:
            raise Refused(
                "FAILED_PRECONDITION",
                f"data.clients = {agreement.clients}: this shuffler enrolled {settings.clients}",
            )
        if agreement.delivery_bytes > settings.largest_report + OVERHEAD:
            raise Refused(
                "FAILED_PRECONDITION",
                f"{agreement.batches} reports of {agreement.report_bytes} bytes a client and round "
                f"(sealed, {OVERHEAD} more each): this shuffler takes at most "
                f"{settings.largest_report} of a client (shuffler init --largest-report)",
            )
        number = call.round_number
        if self._store.begin(agreement, number, asked):
            log.info("run %s, round %d: open", call.run[:8], number)
            return wire.OPEN
        gone = self._store.handed_over(call.run, number)
        return wire.HANDED_OVER if gone else wire.CLOSED

    def close(self, data: bytes) -> bytes:
        """Close a round for the analyzer, if enough reports are there; answers who is in it.

        How many there are is not told before: asking again and again would tell when they came.
        """
        call = self._from_analyzer(data)
        agreement = self._known(call.run)
        run, number = call.run, call.round_number
        present = self._store.attendance(run, number)
        if present is not None:
            return wire.bitmap_of(present)
        least = max(self._settings.min_reports, agreement.min_reports)
        if agreement.release == "sum":
            add = adding(agreement, number, self._private)
            present = self._store.add_up(run, number, least, add)
        else:
            present = self._store.shuffle(run, number, least)
        if present is None:
            raise Refused(
                "FAILED_PRECONDITION",
                f"fewer than {least} usable reports of round {number} are here; nothing is "
                "released",
            )
        log.info("run %s, round %d: closed with %d reports", run[:8], number, present.sum())
        return wire.bitmap_of(present)

    def fetch(self, data: bytes) -> Iterator[bytes]:
        """What is released of a closed round, for the analyzer."""
        call = self._from_analyzer(data)
        if self._store.attendance(call.run, call.round_number) is None:
            raise Refused("FAILED_PRECONDITION", "the round is not closed")
        if self._store.handed_over(call.run, call.round_number):
            raise Refused("FAILED_PRECONDITION", "the round was handed over and is gone")
        yield from self._store.batch(call.run, call.round_number)

    def finish(self, data: bytes) -> bytes:
        """Forget a closed round's batch: the analyzer has done with it."""
        call = self._from_analyzer(data)
        self._store.hand_over(call.run, call.round_number)
        return b""

    def _from_analyzer(self, data: bytes) -> wire.Call:
        """A call with nothing beside it."""
        call, rest = wire.Call.decoded(data)
        self._require_analyzer(call)
        if rest:
            raise Refused("INVALID_ARGUMENT", f"a call of {len(data)} bytes is too long")
        return call

    def _require_analyzer(self, call: wire.Call) -> None:
        if digest_of(call.token) != self._settings.analyzer:
            raise Refused("UNAUTHENTICATED", "this is not the analyzer's token")

    def _known(self, run: str) -> Agreement:
        agreement = self._store.agreement(run)
        if agreement is None:
            raise Refused("NOT_FOUND", "no such run was begun here")
        return agreement

"""Talking to a shuffler: a site hands reports over, the analyzer gets what is released.

A shuffler that does not answer (it may have been killed, and be about to come back) is asked again
until patience ends; its store knows what it has.
"""

from __future__ import annotations

import time

import grpc
import numpy as np
from numpy.typing import NDArray

from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.agreement import Agreement, report_as_bytes
from fl_shuffle.shuffler.remote.credentials import Pass
from fl_shuffle.shuffler.remote.sealing import seal
from fl_shuffle.shuffler.remote.wire import ShufflerError

CALL_SECONDS = 60.0
"""A single call may take so long."""
PAUSE_SECONDS = 0.5
"""Between two tries."""
SHOWN = 200
"""So many characters of what a shuffler says are shown."""
AGAIN = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
"""What may be otherwise at the next try."""


class Link:
    """A channel to the shuffler that a pass is for; `patience`: seconds to go on trying."""

    def __init__(self, own: Pass, patience: float) -> None:
        self._own = own
        self._patience = patience
        credentials = grpc.ssl_channel_credentials(root_certificates=own.certificate.encode())
        self._channel = grpc.secure_channel(
            own.address,
            credentials,
            options=[
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 200),
                ("grpc.max_reconnect_backoff_ms", 2000),
            ],
        )

    def ask(self, method: str, call: wire.Call, sent: bytes = b"") -> bytes:
        """The answer to a call, in this pass's name, with what is `sent` beside it.

        After an error that passes it is asked again, as long as patience lasts. Raises
        `ShufflerError`.
        """
        asked = self._channel.unary_unary(f"/{wire.SERVICE}/{method}")
        data = call.encoded(self._own.token, sent)
        until = time.monotonic() + self._patience
        while True:
            try:
                return bytes(asked(data, timeout=CALL_SECONDS))
            except grpc.RpcError as error:
                reason, text = error.code().name, str(error.details() or "")
            said = " ".join(text.split())[:SHOWN]
            if reason not in AGAIN:
                raise ShufflerError(f"the shuffler at {self._own.address} refused: {said}", reason)
            if time.monotonic() > until:
                raise ShufflerError(
                    f"the shuffler at {self._own.address} does not answer: is it running, is this "
                    f"its certificate? ({reason}: {said})",
                    reason,
                )
            time.sleep(PAUSE_SECONDS)


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
        sealed = b"".join(seal(report_as_bytes(report), self._key, info) for report in reports)
        call = wire.Call(agreement, round_number, client)
        self._link.ask(wire.DELIVER, call, sealed)

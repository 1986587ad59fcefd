"""What is sealed opens for one key, one run and one round, whole, or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.shuffler.remote.agreement import (
    Agreement,
    opened_report,
    report_as_bytes,
)
from fl_shuffle.shuffler.remote.sealing import (
    OVERHEAD,
    SealError,
    new_key,
    open_sealed,
    public_key,
    seal,
)

RUN = Agreement("0f" * 16, "reports", 10, 3, 2, -10, 1 << 20)
PRIVATE = new_key()
PUBLIC = public_key(PRIVATE)
REPORT = np.array([0.5, -2.0, 1024.0], dtype=np.float32)


def sealed_report() -> bytes:
    return seal(report_as_bytes(REPORT), PUBLIC, RUN.info(7))


def test_a_report_opens_as_it_was_and_every_one_has_the_same_size() -> None:
    first, second = sealed_report(), sealed_report()
    assert first != second
    assert len(first) == len(second) == RUN.sealed_bytes == 12 + OVERHEAD
    opened = opened_report(first, PRIVATE, RUN, 7)
    assert opened is not None and opened.tobytes() == REPORT.tobytes()
    assert report_as_bytes(REPORT) not in first


@pytest.mark.parametrize("changed", [
    {"run": "10" * 16}, {"release": "sum"}, {"clients": 11}, {"min_reports": 3}, {"exponent": -9},
])  # fmt: skip
def test_another_key_round_run_or_fact_does_not_open_it(changed: dict[str, Any]) -> None:
    sealed = sealed_report()
    assert opened_report(sealed, PRIVATE, RUN, 8) is None
    assert opened_report(sealed, new_key(), RUN, 7) is None
    with pytest.raises(SealError, match="for another run or round"):
        open_sealed(sealed, PRIVATE, replace(RUN, **changed).info(7))


def test_no_byte_can_be_changed_and_none_left_out_or_added() -> None:
    sealed = sealed_report()
    changes = [bytes(32) + bytes(100), sealed + b"\0"]  # the first: a point of small order
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1 if place != 31 else 0x40  # the top bit of a point means nothing
        changes += [bytes(changed), sealed[:place]]
    for each in changes:
        with pytest.raises(SealError):
            open_sealed(each, PRIVATE, RUN.info(7))


def test_absurd_agreements_are_refused() -> None:
    for wrong in (
        {"run": "0f" * 15}, {"run": "0F" * 16}, {"release": "all"}, {"clients": 0},
        {"dimension": 0}, {"dimension": 1 << 40}, {"min_reports": 11}, {"exponent": -200},
        {"largest": 0}, {"release": "sum", "clients": 10_000, "largest": 1 << 50},
    ):  # fmt: skip
        with pytest.raises(InvalidValueError):
            replace(RUN, **wrong)


def test_what_is_off_the_grid_or_too_large_is_no_report() -> None:
    for bad in (2.0**-11, 1025.0, np.nan, np.inf, -np.inf, 3e38):
        report = REPORT.copy()
        report[1] = bad
        sealed = seal(report_as_bytes(report), PUBLIC, RUN.info(7))
        assert opened_report(sealed, PRIVATE, RUN, 7) is None
    for nonsense in (seal(bytes(8), PUBLIC, RUN.info(7)), b"", bytes(300), sealed_report()[:-1]):
        assert opened_report(nonsense, PRIVATE, RUN, 7) is None


# RFC 9180, appendix A.2.1: base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305,
# and the first of its encryptions.
RFC = {
    name: bytes.fromhex(digits)
    for name, digits in {
        "info": "4f6465206f6e2061204772656369616e2055726e",
        "private": "8057991eef8f1f1af18f4a9491d16a1ce333f695d4db8e38da75975c4478e0fb",
        "public": "4310ee97d88cc1f088a5576c77ab0cf5c3ac797f3d95139c6c84b5429c59662a",
        "capsule": "1afa08d3dec047a643885163f1180476fa7ddb54c6a8029ea33f95796bf2ac4a",
        "key": "ad2744de8e17f4ebba575b3f5f5a8fa1f69c2a07f6e7500bc60ca6e3e3ec1c91",
        "nonce": "5c4d98150661b848853b547f",
        "message": "4265617574792069732074727574682c20747275746820626561757479",
        "beside": "436f756e742d30",
        "sealed": "1c5250d8034ec2b784ba2cfd69dbdb8af406cfe3ff938e131f0def8c8b60b4db21993c62ce81883d"
        "2dd1b51a28",
    }.items()
}


def test_the_vectors_of_rfc_9180() -> None:
    """The vectors bind associated data, where our messages have none: that changes the tag alone,
    and their key and nonce give the message that we must open."""
    cipher, nonce = ChaCha20Poly1305(RFC["key"]), RFC["nonce"]
    assert cipher.encrypt(nonce, RFC["message"], RFC["beside"]) == RFC["sealed"]
    assert public_key(RFC["private"]) == RFC["public"]
    ours = RFC["capsule"] + cipher.encrypt(nonce, RFC["message"], None)
    assert len(ours) == len(RFC["message"]) + OVERHEAD
    assert open_sealed(ours, RFC["private"], RFC["info"]) == RFC["message"]

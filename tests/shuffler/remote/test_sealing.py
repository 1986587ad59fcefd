"""What is sealed opens for one key, one run and one round, whole, or not at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.shuffler.remote.agreement import opened_report, report_as_bytes
from fl_shuffle.shuffler.remote.sealing import OVERHEAD, new_key, open_sealed, public_key, seal
from tests.shuffler.remote.small_shuffler import FACTS

PRIVATE = new_key()
REPORT = np.array([0.5, -2.0, 1024.0, 0.0], dtype=np.float32)


def sealed(report: np.ndarray = REPORT) -> bytes:
    return seal(report_as_bytes(report), public_key(PRIVATE), FACTS.info(7))


def test_a_report_opens_as_it_was_for_its_key_round_and_run_alone() -> None:
    first, second = sealed(), sealed()
    assert first != second and report_as_bytes(REPORT) not in first
    assert len(first) == len(second) == FACTS.sealed_bytes == 16 + OVERHEAD
    opened = opened_report(first, PRIVATE, FACTS, 7)
    assert opened is not None and opened.tobytes() == REPORT.tobytes()
    assert opened_report(first, PRIVATE, FACTS, 8) is None
    assert opened_report(first, new_key(), FACTS, 7) is None
    for changed in (
        {"run": "10" * 16}, {"release": "sum"}, {"clients": 11}, {"min_reports": 3},
        {"exponent": -9},
    ):  # fmt: skip
        assert opened_report(first, PRIVATE, replace(FACTS, **changed), 7) is None


def test_no_byte_can_be_changed_and_none_left_out_or_added() -> None:
    right = sealed()
    changes = [bytes(32) + bytes(100), right + b"\0"]  # the first: a point of small order
    for place in range(len(right)):
        changed = bytearray(right)
        changed[place] ^= 1 if place != 31 else 0x40  # the top bit of a point means nothing
        changes += [bytes(changed), right[:place]]
    for each in changes:
        with pytest.raises(InvalidTag):
            open_sealed(each, PRIVATE, FACTS.info(7))
        assert opened_report(each, PRIVATE, FACTS, 7) is None


def test_absurd_agreements_are_refused() -> None:
    for wrong in (
        {"run": "0f" * 15}, {"run": "0F" * 16}, {"release": "all"}, {"clients": 0},
        {"dimension": 0}, {"dimension": 1 << 40}, {"min_reports": 11}, {"exponent": -200},
        {"largest": 0}, {"release": "sum", "clients": 10_000, "largest": 1 << 50},
    ):  # fmt: skip
        with pytest.raises(InvalidValueError):
            replace(FACTS, **wrong)


def test_what_is_off_the_grid_or_too_large_is_no_report() -> None:
    for bad in (2.0**-11, 1025.0, np.nan, np.inf, -np.inf, 3e38):
        report = REPORT.copy()
        report[1] = bad
        assert opened_report(sealed(report), PRIVATE, FACTS, 7) is None
    assert opened_report(sealed(REPORT[:2]), PRIVATE, FACTS, 7) is None


def test_a_message_of_rfc_9180_opens() -> None:
    """Appendix A.2.1: base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305, under
    its first key and nonce. Its vectors bind associated data, where our messages have none."""
    info, private, capsule, key, nonce, message = map(bytes.fromhex, (
        "4f6465206f6e2061204772656369616e2055726e",
        "8057991eef8f1f1af18f4a9491d16a1ce333f695d4db8e38da75975c4478e0fb",
        "1afa08d3dec047a643885163f1180476fa7ddb54c6a8029ea33f95796bf2ac4a",
        "ad2744de8e17f4ebba575b3f5f5a8fa1f69c2a07f6e7500bc60ca6e3e3ec1c91",
        "5c4d98150661b848853b547f",
        "4265617574792069732074727574682c20747275746820626561757479",
    ))  # fmt: skip
    assert public_key(private)[:4].hex() == "4310ee97"
    ours = capsule + ChaCha20Poly1305(key).encrypt(nonce, message, None)
    assert open_sealed(ours, private, info) == message

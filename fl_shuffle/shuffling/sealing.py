"""Sealing a report to the holder of a key: HPKE (RFC 9180), base mode, one message a key.

DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305. A sealed message is the ephemeral public
key, 32 bytes, then the ciphertext with its tag, 16 bytes longer than what it hides. `info` is not
in it: whoever opens must name the same one.
"""

from __future__ import annotations

import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from fl_shuffle.errors import FlShuffleError

KEY_BYTES = 32
"""Of a public or a private key."""
TAG_BYTES = 16
"""Of Poly1305."""
OVERHEAD = KEY_BYTES + TAG_BYTES
"""A sealed message is so much longer than what it hides."""

# Identifiers of RFC 9180, section 7: KEM 0x0020, KDF 0x0001, AEAD 0x0003; mode 0 is the base mode.
_KEM = b"KEM\x00\x20"
_SUITE = b"HPKE\x00\x20\x00\x01\x00\x03"
_BASE_MODE = b"\x00"


class SealError(FlShuffleError):
    """A sealed message that was not made for this key and this `info`, or not left as it was."""


def new_key() -> bytes:
    """A private key from the operating system's entropy."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public key that belongs to a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def seal(message: bytes, public: bytes, info: bytes) -> bytes:
    """The message, for the holder of the key that belongs to `public` alone, bound to `info`."""
    ephemeral = X25519PrivateKey.generate()
    capsule = ephemeral.public_key().public_bytes_raw()
    shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(public))
    cipher, nonce = _context(shared, capsule, public, info)
    return capsule + cipher.encrypt(nonce, message, None)


def open_sealed(sealed: bytes, private: bytes, info: bytes) -> bytes:
    """The message in `sealed`. Raises `SealError` if it is not for this key and `info`, or not
    whole."""
    if len(sealed) < OVERHEAD:
        raise SealError(f"a sealed message of {len(sealed)} bytes: it has at least {OVERHEAD}")
    capsule = sealed[:KEY_BYTES]
    key = X25519PrivateKey.from_private_bytes(private)
    try:
        shared = key.exchange(X25519PublicKey.from_public_bytes(capsule))
        cipher, nonce = _context(shared, capsule, key.public_key().public_bytes_raw(), info)
        return cipher.decrypt(nonce, sealed[KEY_BYTES:], None)
    except (InvalidTag, ValueError):  # ValueError: a point of small order
        raise SealError(
            "a sealed message does not open: it was sealed to another key, for another run or "
            "round, or changed on its way"
        ) from None


def _context(
    secret: bytes, capsule: bytes, public: bytes, info: bytes
) -> tuple[ChaCha20Poly1305, bytes]:
    """The cipher and nonce of the one message: sections 4.1 and 5.1 of the RFC."""
    agreed = _extract(_KEM, b"", b"eae_prk", secret)
    shared = _expand(_KEM, agreed, b"shared_secret", capsule + public, 32)
    context = (
        _BASE_MODE
        + _extract(_SUITE, b"", b"psk_id_hash", b"")
        + _extract(_SUITE, b"", b"info_hash", info)
    )
    schedule = _extract(_SUITE, shared, b"secret", b"")
    key = _expand(_SUITE, schedule, b"key", context, 32)
    return ChaCha20Poly1305(key), _expand(_SUITE, schedule, b"base_nonce", context, 12)


def _extract(suite: bytes, salt: bytes, label: bytes, secret: bytes) -> bytes:
    return hmac.digest(salt, b"HPKE-v1" + suite + label + secret, "sha256")


def _expand(suite: bytes, key: bytes, label: bytes, info: bytes, size: int) -> bytes:
    labelled = size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return HKDFExpand(SHA256(), size, labelled).derive(key)

"""Sealing a report to the holder of a key: HPKE (RFC 9180), base mode, one message a key.

DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305. A sealed message is the ephemeral public
key, 32 bytes, then the ciphertext with its tag, 16 bytes longer than what it hides. `info` is not
in it: whoever opens must name the same one.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from fl_shuffle.errors import FlShuffleError

KEY_BYTES = 32
"""Of a public or a private key."""
OVERHEAD = KEY_BYTES + 16
"""A sealed message is so much longer than what it hides: a key and Poly1305's tag."""
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


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
    return _SUITE.encrypt(message, X25519PublicKey.from_public_bytes(public), info)


def open_sealed(sealed: bytes, private: bytes, info: bytes) -> bytes:
    """The message in `sealed`. Raises `SealError` if it is not for this key and `info`, or not
    whole."""
    try:
        return _SUITE.decrypt(sealed, X25519PrivateKey.from_private_bytes(private), info)
    except InvalidTag:  # also of a point of small order, and of too few bytes
        raise SealError(
            "a sealed message does not open: it was sealed to another key, for another run or "
            "round, or changed on its way"
        ) from None

"""Sealing a report to the holder of a key: HPKE (RFC 9180), base mode, one message a key.

DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305. A sealed message is the ephemeral public
key, 32 bytes, then the ciphertext with its tag, 16 bytes longer than what it hides. `info` is not
in it: the opener must name the same one.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

KEY_BYTES = 32
"""Of a public or a private key."""
OVERHEAD = KEY_BYTES + 16
"""Bytes that a sealed message adds to what it hides: a key and Poly1305's tag."""
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def new_key() -> bytes:
    """Return a private key from the operating system's entropy."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the public key that belongs to a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def seal(message: bytes, public: bytes, info: bytes) -> bytes:
    """Return the message, for the holder of the key that belongs to `public` alone, bound to
    `info`."""
    return _SUITE.encrypt(message, X25519PublicKey.from_public_bytes(public), info)


def open_sealed(sealed: bytes, private: bytes, info: bytes) -> bytes:
    """Return the message in `sealed`. Raises `cryptography.exceptions.InvalidTag` if it is not for
    this key and `info`, or not whole; also for a point of small order, and for too few bytes."""
    return _SUITE.decrypt(sealed, X25519PrivateKey.from_private_bytes(private), info)

"""Who may talk to a shuffler: its own settings, and the files it hands out to the others.

A site (a SuperNode, with the clients it plays) and the analyzer each have a secret token of 32
random bytes; the shuffler keeps digests of them. Tokens travel over TLS, whose certificate is in
the same file. The analyzer's public key is not: a site gets it from the analyzer, since it keeps
the shuffler from reading.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from fl_shuffle._internal.durable_files import replace_text, said_in_one_line
from fl_shuffle.errors import ConfigError, require_integer
from fl_shuffle.shuffler.remote.sealing import KEY_BYTES, new_key

FORMAT, VERSION = "fl-shuffle", 2
"""What these files begin with, and of which version they are."""
SECRET = re.compile(f"[0-9a-fA-F]{{{2 * KEY_BYTES}}}")
"""A key or a token, as it is written down."""


def digest_of(token: str) -> str:
    """Return what is kept of a token; it has too much entropy to be guessed from that."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True)
class _Secret:
    """What a file holds that its owner alone may read."""

    def write(self, path: Path, kind: str) -> None:
        """Write it as a file of that kind. Raises `ConfigError` if it cannot be written."""
        content = {FORMAT: f"{kind} {VERSION}", **asdict(self)}
        with said_in_one_line(path, kind=ConfigError):
            replace_text(path, json.dumps(content) + "\n")

    @classmethod
    def read(cls, path: Path, kind: str) -> Self:
        """Raise `ConfigError` for a file that is none of that kind, or that others may read."""
        text = _text_of(path, private=True)
        try:
            found = json.loads(text)
            if found.pop(FORMAT, "") == f"{kind} {VERSION}":
                return cls(**found)
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            said = " ".join(str(error).split())[:80]
            raise ConfigError(f"{path}: is damaged ({said}); make a new one") from None
        raise ConfigError(
            f"{path}: is not the {kind} file of this version; make one with: "
            "fl-shuffle shuffler init"
        )


@dataclass(frozen=True)
class Settings(_Secret):
    """A shuffler's own: nothing of it is the analyzer's to choose.

    No batch below `min_reports` leaves; the reports of a client and round may not have more than
    `largest_report` bytes together. `key` opens what is sealed to the shuffler; its TLS has a
    `certificate` (PEM) and the key to it. `analyzer` and `sites` are digests of tokens: of as many
    consecutive parts of the clients as there are sites the i-th site plays the i-th.
    """

    address: str
    clients: int
    min_reports: int
    largest_report: int
    key: str = field(default_factory=lambda: new_key().hex())
    certificate: str = ""
    tls_key: str = ""
    analyzer: str = ""
    sites: Sequence[str] = ()

    def __post_init__(self) -> None:
        require_address(self.address)
        require_integer("--clients", self.clients, minimum=2)
        require_integer("--min-reports", self.min_reports, minimum=2, maximum=self.clients)
        require_integer("--max-report-bytes", self.largest_report, minimum=4)
        if not SECRET.fullmatch(self.key):
            raise ValueError("no key")


@dataclass(frozen=True)
class Pass(_Secret):
    """What a shuffler lets somebody in with, a site or the analyzer.

    `certificate` (PEM) is the one its TLS must show; `key` is its public key, to which reports are
    sealed where only their sum is released. Token and key are hexadecimal digits.
    """

    address: str
    certificate: str
    token: str
    key: str

    def __post_init__(self) -> None:
        require_address(self.address)
        secrets = SECRET.fullmatch(self.token) and SECRET.fullmatch(self.key)
        if not secrets or not isinstance(self.certificate, str):
            raise ValueError("no token, key or certificate")


def write_key(path: Path, key: bytes) -> None:
    """Write a key as a file of hexadecimal digits."""
    replace_text(path, key.hex() + "\n")


def read_key(path: Path, *, private: bool) -> bytes:
    """Return the key in a file; raises `ConfigError` if there is none, or a private one is not
    so."""
    digits = _text_of(path, private=private).strip()
    if not SECRET.fullmatch(digits):
        raise ConfigError(
            f"{path}: holds no key (64 hexadecimal digits); make one with: fl-shuffle shuffler key"
        )
    return bytes.fromhex(digits)


def require_address(address: object) -> str:
    """Return `HOST:PORT`; raises `ConfigError` for anything else."""
    text = address if isinstance(address, str) and address.isascii() else ""
    host, _, port = text.rpartition(":")
    if not host or not (port.isdigit() and 0 < int(port[:6]) < 65536):
        raise ConfigError(f"address {address!r}: must be HOST:PORT, as in shuffler.example:9443")
    return text


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; an IPv6 host without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _text_of(path: Path, *, private: bool) -> str:
    with said_in_one_line(path, "read", ConfigError):
        if private and path.stat().st_mode & 0o077:
            raise ConfigError(f"{path}: other users can read this secret; run: chmod 600 {path}")
        return path.read_text(encoding="utf-8")

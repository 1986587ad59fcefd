"""Who may talk to a shuffler: its own settings, and the files it hands out to the others.

A site (a SuperNode, with the clients it plays) and the analyzer each have a secret token of 32
random bytes; the shuffler keeps digests of them. Tokens travel over TLS, whose certificate is in
the same file. The analyzer's public key is not: a site gets it from the analyzer, since it keeps
the shuffler from reading.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fl_shuffle.durable_files import replace_text
from fl_shuffle.errors import ConfigError, FlShuffleError, require_integer
from fl_shuffle.shuffler.remote.sealing import KEY_BYTES

TOKEN_BYTES = 32
"""Of a token."""
LARGEST_FILE = 1 << 24
"""Bytes; settings list every site."""
VERSION = 1
"""Of these files."""


def new_token() -> bytes:
    """A secret from the operating system's entropy."""
    return secrets.token_bytes(TOKEN_BYTES)


def digest_of(token: bytes) -> str:
    """What is kept of a token; it has too much entropy to be guessed from that."""
    return hashlib.sha256(token).hexdigest()


@dataclass(frozen=True)
class Settings:
    """A shuffler's own: nothing of it is the analyzer's to choose.

    No batch below `min_reports` leaves; the reports of a client and round may not have more than
    `largest_report` bytes together. `analyzer` and `sites` are digests of tokens: of as many
    consecutive parts of the clients as there are sites the i-th site plays the i-th.
    """

    address: str
    clients: int
    min_reports: int
    largest_report: int
    analyzer: str = ""
    sites: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_address(self.address)
        require_integer("--clients", self.clients, minimum=2)
        require_integer("--min-reports", self.min_reports, minimum=2, maximum=self.clients)
        require_integer("--largest-report", self.largest_report, minimum=4)

    def write(self, path: Path) -> None:
        """As a file that its owner alone may read."""
        _write(path, "settings", asdict(self))

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Raises `ConfigError` for a file that is none."""
        with _read(path, "settings") as found:
            require_integer("sites", len(found["sites"]), minimum=1)
            return cls(**{**found, "sites": tuple(found["sites"])})


@dataclass(frozen=True)
class Pass:
    """What a shuffler lets somebody in with: `kind` is "site" or "analyzer".

    `certificate` (PEM) is the one its TLS must show; `key` is its public key, to which reports are
    sealed where only their sum is released.
    """

    kind: str
    address: str
    certificate: str
    token: bytes
    key: bytes

    def write(self, path: Path) -> None:
        """As a file that its owner alone may read."""
        facts = {"address": self.address, "certificate": self.certificate}
        _write(path, self.kind, {**facts, "token": self.token.hex(), "key": self.key.hex()})

    @classmethod
    def read(cls, path: Path, kind: str) -> Pass:
        """Raises `ConfigError` for a file that is no pass of that kind, or that others may read."""
        with _read(path, kind) as found:
            token, key = bytes.fromhex(found["token"]), bytes.fromhex(found["key"])
            if len(token) != TOKEN_BYTES or len(key) != KEY_BYTES:
                raise ValueError("a token or key of the wrong length")
            address = require_address(found["address"])
            return cls(kind, address, str(found["certificate"]), token, key)


def write_key(path: Path, key: bytes) -> None:
    """A key as a file of hexadecimal digits."""
    replace_text(path, key.hex() + "\n")


def read_key(path: Path, *, private: bool) -> bytes:
    """The key in a file; raises `ConfigError` if there is none, or a private one is not so."""
    text = _text_of(path, private=private)
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"{path}: holds no key (64 hexadecimal digits); make one with: fl-shuffle shuffler key"
        )
    return key


def require_address(address: object) -> str:
    """`HOST:PORT`; raises `ConfigError` for anything else."""
    text = address if isinstance(address, str) else ""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise ConfigError(f"address {address!r}: must be HOST:PORT, as in shuffler.example:9443")
    return text


def _write(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    try:
        replace_text(path, json.dumps({"fl-shuffle": kind, "version": VERSION, **content}) + "\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def _read(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    """What is in the file. Raises `ConfigError` for one of another kind or version, and where what
    is made of it inside cannot be."""
    text = _text_of(path, private=True)
    try:
        found = json.loads(text)
        said = found.get("fl-shuffle") if isinstance(found, dict) else None
        if said == kind and found["version"] == VERSION:
            yield {key: found[key] for key in found.keys() - {"fl-shuffle", "version"}}
            return
    except (KeyError, TypeError, ValueError, RecursionError, FlShuffleError) as error:
        said = " ".join(str(error).split())[:80]
        raise ConfigError(f"{path}: is damaged ({said}); make a new one") from None
    raise ConfigError(
        f"{path}: is no {kind} file of this version; make them with: fl-shuffle shuffler init"
    )


def _text_of(path: Path, *, private: bool) -> str:
    try:
        if private and path.stat().st_mode & 0o077:
            raise ConfigError(f"{path}: others may read this secret; run: chmod 600 {path}")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise ConfigError(f"{path}: is larger than {LARGEST_FILE:,} bytes: is it one?")
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None

"""The shuffler's process: a directory that is its own, and a server with TLS.

`initialise` makes the directory and what is handed out; `opened` answers the calls of `wire`.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fl_shuffle._internal.durable_files import PRIVATE_FOLDER, said_in_one_line
from fl_shuffle.errors import ConfigError, require_integer
from fl_shuffle.shuffler.remote import MEMORY, SLOWEST
from fl_shuffle.shuffler.remote.credentials import (
    Pass,
    Settings,
    digest_of,
    host_and_port,
    require_address,
)
from fl_shuffle.shuffler.remote.handler import RequestHandler, log
from fl_shuffle.shuffler.remote.limits import Limits
from fl_shuffle.shuffler.remote.listener import Listener, listening
from fl_shuffle.shuffler.remote.sealing import KEY_BYTES, public_key
from fl_shuffle.shuffler.remote.store import Store

SETTINGS = "settings.json"
CERTIFICATE_DAYS = 3650
"""So long a made certificate holds."""


def initialise(directory: Path, out: Path, settings: Settings, sites: int) -> None:
    """Make a shuffler's directory, and in `out` a pass for each of `sites` sites and the analyzer.

    `settings` as they will be, but for the certificate and the tokens' digests. Site i plays the
    i-th of as many consecutive parts of the clients, as a SuperNode with `partition-id=i
    num-partitions=sites` does. Raises `ConfigError` if one of the folders is there already and not
    empty.
    """
    require_integer("--sites", sites, minimum=1, maximum=settings.clients)
    for folder in (directory, out):
        with said_in_one_line(folder, "used", ConfigError):
            folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise ConfigError(f"{folder} is not empty; choose a new folder")
            folder.chmod(PRIVATE_FOLDER)
    certificate, tls_key = _certificate(host_and_port(settings.address)[0])
    key = public_key(bytes.fromhex(settings.key)).hex()

    def hand_out(kind: str, name: str) -> str:
        token = secrets.token_hex(KEY_BYTES)
        Pass(settings.address, certificate, token, key).write(out / f"{name}.json", kind)
        return digest_of(token)

    enrolled = [hand_out("site", f"site-{index}") for index in range(sites)]
    analyzer = hand_out("analyzer", "analyzer")
    # Last: a directory without settings is none, and refused by `serve`.
    whole = replace(
        settings, certificate=certificate, tls_key=tls_key, analyzer=analyzer, sites=enrolled
    )
    whole.write(directory / SETTINGS, "settings")


def _certificate(host: str) -> tuple[str, str]:
    """Return a certificate for `host` that signs itself, and its key, both as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fl-shuffle shuffler")])
    try:
        named: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        named = x509.DNSName(host)
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.SubjectAlternativeName([named]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM).decode(), pem.decode()


@contextmanager
def opened(
    directory: Path, listen: str | None = None, *, memory: int = MEMORY, slowest: int = SLOWEST
) -> Iterator[Listener]:
    """Yield a server that answers calls for the shuffler in `directory`, at `listen` (default: its
    own address), until this is left. `memory`, `slowest`: see `Limits`.

    Raises `ConfigError` for a directory that is none or an address that cannot be listened at, and
    `RunError` if another process has the directory.
    """
    most = Limits.of_process(memory, slowest)
    settings = Settings.read(directory / SETTINGS, "settings")
    if directory.stat().st_mode & 0o077:
        raise ConfigError(f"{directory}: other users can enter it; run: chmod 700 {directory}")
    address = settings.address if listen is None else require_address(listen)
    with closing(Store.open(directory)) as store:
        handler = RequestHandler(settings, store, bytes.fromhex(settings.key))
        tls = _tls(directory, settings)
        with closing(_bound(address)) as port, listening(handler, tls, port, most) as listener:
            log.info("listening at %s for %d clients", address, settings.clients)
            yield listener


def _bound(address: str) -> socket.socket:
    """Return a socket at this address; raises `ConfigError` if there can be none."""
    host, port = host_and_port(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            # A shuffler that is started again does not wait for its old connections to expire.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(place)
        except BaseException:
            bound.close()
            raise
    except OSError:
        raise ConfigError(
            f"--listen {address}: is not available; choose a free port of this machine"
        ) from None
    return bound


def _tls(directory: Path, settings: Settings) -> ssl.SSLContext:
    """Return a TLS context of the settings' certificate; raises `ConfigError` for one that is
    damaged."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        # Python takes them from a file alone; this folder holds the key already.
        with NamedTemporaryFile("w", dir=directory, prefix="tls-") as file:
            file.write(settings.certificate + settings.tls_key)
            file.flush()
            context.load_cert_chain(file.name)
    except (ssl.SSLError, OSError, ValueError) as error:
        said = " ".join(str(error).split())[:80]
        raise ConfigError(
            f"{directory / SETTINGS}: its certificate cannot be used ({said}); make a new one"
        ) from None
    return context

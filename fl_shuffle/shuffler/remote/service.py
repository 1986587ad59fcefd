"""The shuffler's process: a directory that is its own, and a server with TLS.

`initialise` makes the directory and what is handed out; `opened` answers calls over gRPC, whose
messages are the plain bytes of `wire`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fl_shuffle.durable_files import PRIVATE_FOLDER, replace_text
from fl_shuffle.errors import ConfigError, FlShuffleError, require_integer
from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.credentials import (
    Pass,
    Settings,
    digest_of,
    new_token,
    read_key,
    require_address,
    write_key,
)
from fl_shuffle.shuffler.remote.handler import RequestHandler, log
from fl_shuffle.shuffler.remote.sealing import OVERHEAD, new_key, public_key
from fl_shuffle.shuffler.remote.store import Store

SETTINGS, KEY, TLS_KEY, CERTIFICATE = "settings.json", "seal.key", "tls.key", "tls.crt"
CERTIFICATE_DAYS = 3650
"""So long a made certificate holds; put another in its place, and in the passes, before that."""
THREADS = 8
"""Calls that are worked on at a time."""
MOST_CALLS = 64
"""Calls that may wait; more are turned away, and come again."""
GRACE_SECONDS = 5.0
"""Calls under way may take so long to finish when the process is asked to end."""


def initialise(directory: Path, out: Path, settings: Settings, sites: int) -> None:
    """Make a shuffler's directory, and in `out` a pass for each of `sites` sites and the analyzer.

    `settings` as they will be, but for the tokens' digests. Site i plays the i-th of as many
    consecutive parts of the clients, as a SuperNode with `partition-id=i num-partitions=sites`
    does. Raises `ConfigError` if one of the folders is there already and not empty.
    """
    address = settings.address
    require_integer("--sites", sites, minimum=1, maximum=settings.clients)
    for folder in (directory, out):
        _make_folder(folder)
    key, certificate = new_key(), _certificate(directory, address.rpartition(":")[0])
    write_key(directory / KEY, key)

    def hand_out(kind: str, name: str) -> str:
        token = new_token()
        Pass(kind, address, certificate, token, public_key(key)).write(out / f"{name}.json")
        return digest_of(token)

    enrolled = tuple(hand_out("site", f"site-{index}") for index in range(sites))
    analyzer = hand_out("analyzer", "analyzer")
    # Last: a directory without settings is none. What is in a half-made one is of no use: it is
    # refused as not empty, by `serve` as well, until somebody removes it.
    replace(settings, analyzer=analyzer, sites=enrolled).write(directory / SETTINGS)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty; choose a new folder")
        folder.chmod(PRIVATE_FOLDER)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be used: {error.strerror}") from None


def _certificate(directory: Path, host: str) -> str:
    """A certificate for `host` that signs itself, and its key, in the directory; its PEM text."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fl-shuffle shuffler")])
    try:
        named: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        try:
            named = x509.DNSName(host)
        except ValueError:
            raise ConfigError(f"--address: {host!r} is no host name") from None
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
    text = certificate.public_bytes(Encoding.PEM).decode()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    replace_text(directory / TLS_KEY, pem.decode())
    replace_text(directory / CERTIFICATE, text)
    return text


@contextmanager
def opened(directory: Path, listen: str | None = None) -> Iterator[grpc.Server]:
    """A server that answers calls for the shuffler in `directory`, at `listen` (default: its own
    address), until this is left.

    Raises `ConfigError` for a directory that is none or an address that cannot be listened at, and
    `RunError` if another process has the directory.
    """
    settings = Settings.read(directory / SETTINGS)
    if directory.stat().st_mode & 0o077:
        raise ConfigError(f"{directory}: others may enter it; run: chmod 700 {directory}")
    key = read_key(directory / KEY, private=True)
    try:
        tls = [(directory / name).read_bytes() for name in (TLS_KEY, CERTIFICATE)]
    except OSError as error:
        raise ConfigError(f"{directory}: its certificate cannot be read: {error}") from None
    with closing(Store.open(directory)) as store:
        server = _server(RequestHandler(settings, store, key), settings.largest_report)
        address = settings.address if listen is None else require_address(listen)
        credentials = grpc.ssl_server_credentials([(tls[0], tls[1])])
        try:
            bound = server.add_secure_port(address, credentials)
        except RuntimeError:
            bound = 0
        if not bound:
            raise ConfigError(f"--listen {address}: cannot be listened at; is the port taken?")
        server.start()
        log.info("listening at %s for %d clients", address, settings.clients)
        try:
            yield server
        finally:
            server.stop(GRACE_SECONDS).wait()


def _server(handler: RequestHandler, largest_report: int) -> grpc.Server:
    methods = {
        name: grpc.unary_unary_rpc_method_handler(_refusing(partial(handler.answer, name)))
        for name in wire.METHODS
    }
    most = largest_report + OVERHEAD + wire.HEAD_BYTES
    server = grpc.server(
        ThreadPoolExecutor(THREADS),
        maximum_concurrent_rpcs=MOST_CALLS,
        options=[
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ],
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(wire.SERVICE, methods),))
    return server


def _refusing(
    answer: Callable[[bytes], bytes],
) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    """What is wrong with a call is the caller's to know, in one line; a fault of ours is not."""

    def handle(data: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return answer(data)
        except wire.ShufflerError as refusal:
            reason, text = refusal.reason, str(refusal)
        except FlShuffleError as error:
            reason, text = "INVALID_ARGUMENT", str(error)
        except Exception as error:
            log.exception("a call failed here")
            reason, text = "UNAVAILABLE", f"the shuffler failed: {type(error).__name__}"
        context.abort(grpc.StatusCode[reason], text)
        raise AssertionError("unreachable")

    return handle

"""The shuffler's process: a directory that is its own, and a server with TLS.

`initialise` makes the directory and what is handed out; `opened` answers calls over gRPC, whose
messages are the plain bytes of `wire`.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fl_shuffle.durable_files import PRIVATE_FOLDER, said_in_one_line
from fl_shuffle.errors import ConfigError, FlShuffleError, require_integer
from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.credentials import Pass, Settings, digest_of, require_address
from fl_shuffle.shuffler.remote.handler import RequestHandler, log
from fl_shuffle.shuffler.remote.sealing import KEY_BYTES, OVERHEAD, public_key
from fl_shuffle.shuffler.remote.store import Store

SETTINGS = "settings.json"
CERTIFICATE_DAYS = 3650
"""So long a made certificate holds."""
THREADS = 8
"""Calls that are worked on at a time."""
MOST_CALLS = 64
"""Calls that may wait; more are turned away, and come again."""
GRACE_SECONDS = 5.0
"""Calls under way may take so long to finish when the process is asked to end."""


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
    certificate, tls_key = _certificate(settings.address.rpartition(":")[0].strip("[]"))
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
    """A certificate for `host` that signs itself, and its key, both as PEM."""
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
def opened(directory: Path, listen: str | None = None) -> Iterator[grpc.Server]:
    """A server that answers calls for the shuffler in `directory`, at `listen` (default: its own
    address), until this is left.

    Raises `ConfigError` for a directory that is none or an address that cannot be listened at, and
    `RunError` if another process has the directory.
    """
    settings = Settings.read(directory / SETTINGS, "settings")
    if directory.stat().st_mode & 0o077:
        raise ConfigError(f"{directory}: others may enter it; run: chmod 700 {directory}")
    address = settings.address if listen is None else require_address(listen)
    tls = (settings.tls_key.encode(), settings.certificate.encode())
    with closing(Store.open(directory)) as store:
        handler = RequestHandler(settings, store, bytes.fromhex(settings.key))
        server = _server(handler, settings.largest_report)
        credentials = grpc.ssl_server_credentials([tls])
        try:
            server.add_secure_port(address, credentials)
        except RuntimeError:
            raise ConfigError(f"--listen {address}: cannot be listened at; is it taken?") from None
        server.start()
        log.info("listening at %s for %d clients", address, settings.clients)
        try:
            yield server
        finally:
            server.stop(GRACE_SECONDS).wait()


def _server(handler: RequestHandler, largest_report: int) -> grpc.Server:
    methods = {name: _method(handler, name) for name in wire.METHODS}
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


def _method(handler: RequestHandler, name: str) -> grpc.RpcMethodHandler:
    """What is wrong with a call is the caller's to know, in one line; a fault of ours is not."""

    def handle(data: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return handler.answer(name, data)
        except FlShuffleError as error:
            reason, text = getattr(error, "reason", "INVALID_ARGUMENT"), str(error)
        except Exception as error:
            log.exception("a call failed here")
            reason, text = "UNAVAILABLE", f"the shuffler failed: {type(error).__name__}"
        context.abort(grpc.StatusCode[reason], text)
        raise AssertionError("unreachable")

    return grpc.unary_unary_rpc_method_handler(handle)

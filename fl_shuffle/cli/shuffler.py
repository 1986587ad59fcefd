"""`fl-shuffle shuffler`: the shuffler as a process and a party of its own."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "Run a shuffler apart from the server: set it up, make keys, serve."

DEADLINE_SECONDS = 3600.0
"""As `run.timeout`."""
LARGEST_REPORT = 1 << 24
"""Bytes: four million coordinates."""


def configure(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="what", required=True, metavar="PART")
    key = parts.add_parser("key", help="make the analyzer's key pair: FILE and FILE.pub")
    key.add_argument("file", metavar="FILE", help="where to put the private key")
    key.set_defaults(part=_key)
    init = parts.add_parser("init", help="make a shuffler's directory, and passes to hand out")
    init.add_argument("directory", metavar="DIR", help="the shuffler's own folder, new")
    init.add_argument(
        "--passes", metavar="DIR", required=True, help="folder for what is handed out, new"
    )
    init.add_argument(
        "--address", metavar="HOST:PORT", required=True, help="where the others reach it"
    )
    init.add_argument("--clients", type=int, metavar="N", required=True, help="as data.clients")
    init.add_argument(
        "--sites", type=int, metavar="P", required=True,
        help="SuperNodes; site i plays what partition-id=i num-partitions=P plays",
    )  # fmt: skip
    init.add_argument(
        "--min-reports", type=int, metavar="N", default=2,
        help="no smaller batch leaves, whatever the server asks (default: 2)",
    )  # fmt: skip
    init.add_argument(
        "--deadline", type=float, metavar="SECONDS", default=DEADLINE_SECONDS,
        help=f"a round is closed so long after it began (default: {DEADLINE_SECONDS:g})",
    )  # fmt: skip
    init.add_argument(
        "--largest-report", type=int, metavar="BYTES", default=LARGEST_REPORT,
        help=f"most bytes of a report, 4 a coordinate (default: {LARGEST_REPORT})",
    )  # fmt: skip
    init.set_defaults(part=_init)
    serve = parts.add_parser("serve", help="take reports and release batches, until it is ended")
    serve.add_argument("directory", metavar="DIR", help="the shuffler's own folder")
    serve.add_argument(
        "--listen", metavar="HOST:PORT", help="where to listen (default: its address)"
    )
    serve.set_defaults(part=_serve)


def run(arguments: argparse.Namespace) -> int:
    part: int = arguments.part(arguments)
    return part


def _key(arguments: argparse.Namespace) -> int:
    from fl_shuffle.errors import ConfigError
    from fl_shuffle.shuffling.credentials import write_key
    from fl_shuffle.shuffling.sealing import new_key, public_key

    path = Path(arguments.file)
    public = path.with_name(path.name + ".pub")
    for each in (path, public):
        if each.exists():
            raise ConfigError(f"{each} exists already; choose another name")
    key = new_key()
    write_key(path, key)
    write_key(public, public_key(key))
    print(f"the analyzer's key: {path} (keep it), {public} (give it to every site)")
    return 0


def _init(arguments: argparse.Namespace) -> int:
    from fl_shuffle.errors import require_integer, require_real
    from fl_shuffle.shuffling.service import initialise

    directory, passes = Path(arguments.directory), Path(arguments.passes)
    initialise(
        directory,
        passes,
        address=arguments.address,
        clients=arguments.clients,
        sites=arguments.sites,
        min_reports=arguments.min_reports,
        deadline=require_real("--deadline", arguments.deadline, minimum=1.0),
        largest_report=require_integer("--largest-report", arguments.largest_report, minimum=4),
    )
    print(
        f"{passes}: site-0.json to site-{arguments.sites - 1}.json, one for each SuperNode, and "
        f"analyzer.json for the server; hand each out on a safe way, then delete the folder"
    )
    print(f"start it: fl-shuffle shuffler serve {directory}")
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    import logging
    import os
    import signal
    import sys

    # gRPC's own messages name peers and times.
    os.environ["GRPC_VERBOSITY"] = "NONE"
    from fl_shuffle.shuffling.service import opened

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    logging.getLogger("fl_shuffle.shuffler").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with opened(Path(arguments.directory), arguments.listen) as door:
        try:
            door.wait()
        except KeyboardInterrupt:
            return 0
    return 0

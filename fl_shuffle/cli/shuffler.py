"""Run a shuffler apart from the server: set it up, make keys, serve."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

from fl_shuffle.cli.options import option
from fl_shuffle.errors import ConfigError

PARTS = {
    "key": "make the analyzer's key pair: FILE, to keep, and FILE.pub, for the sites",
    "init": "make a shuffler's directory, and the passes of the server and of every site",
    "serve": "take reports and release batches, until it is ended",
}

LARGEST_REPORT = 1 << 24
"""Bytes: four million coordinates."""


def configure(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    key, init, serve = (
        parts.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        for name, help in PARTS.items()
    )
    option(key, "file", "FILE", "where to put the private key")
    option(init, "directory", "DIR", "the shuffler's own folder, new")
    option(init, "--passes", "DIR", "folder for what is handed out, new", required=True)
    option(init, "--address", "HOST:PORT", "where the others reach it", required=True)
    option(init, "--clients", "N", "as data.clients", type=int, required=True)
    sites = "SuperNodes; site i plays what partition-id=i num-partitions=P plays"
    option(init, "--sites", "P", sites, type=int, required=True)
    least = "no smaller batch leaves, whatever the server asks: what hides a client from it"
    option(init, "--min-reports", "N", least, type=int, required=True)
    most = "most bytes of a client's reports of a round, 4 a coordinate "
    most += f"(default: {LARGEST_REPORT})"
    option(init, "--largest-report", "BYTES", most, type=int, default=LARGEST_REPORT)
    option(serve, "directory", "DIR", "the shuffler's own folder")
    option(serve, "--listen", "HOST:PORT", "where to listen (default: its address)")


def run(arguments: argparse.Namespace) -> int:
    return {"key": _key, "init": _init, "serve": _serve}[arguments.part](arguments)


def _key(arguments: argparse.Namespace) -> int:
    """Write the analyzer's key pair."""
    from fl_shuffle.shuffler.remote.credentials import write_key
    from fl_shuffle.shuffler.remote.sealing import new_key, public_key

    path = Path(arguments.file)
    public = path.with_name(path.name + ".pub")
    for each in (path, public):
        if each.exists():
            raise ConfigError(f"{each} exists already; choose another name")
    private = new_key()
    write_key(path, private)
    write_key(public, public_key(private))
    print(f"the analyzer's key: {path} (keep it), {public} (give it to every site)")
    return 0


def _init(arguments: argparse.Namespace) -> int:
    """Make a shuffler's directory, and passes."""
    from fl_shuffle.shuffler.remote.credentials import Settings
    from fl_shuffle.shuffler.remote.service import initialise

    directory, passes = Path(arguments.directory), Path(arguments.passes)
    settings = Settings(
        arguments.address, arguments.clients, arguments.min_reports, arguments.largest_report
    )
    initialise(directory, passes, settings, arguments.sites)
    print(
        f"{passes}: site-0.json to site-{arguments.sites - 1}.json, one for each SuperNode, and "
        f"analyzer.json for the server; hand each out on a safe way, then delete the folder"
    )
    print(f"start it: fl-shuffle shuffler serve {directory}")
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    """Answer calls until the process is asked to end."""
    # gRPC's own messages name peers and times.
    os.environ["GRPC_VERBOSITY"] = "NONE"
    from fl_shuffle.shuffler.remote.service import opened

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    logging.getLogger("fl_shuffle.shuffler").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with opened(Path(arguments.directory), arguments.listen) as server:
        try:
            server.wait_for_termination()
        except KeyboardInterrupt:
            return 0
    return 0

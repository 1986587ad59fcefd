"""`fl-shuffle shuffler`: the shuffler as a process and a party of its own."""

from __future__ import annotations

import argparse

SUMMARY = "Run a shuffler apart from the server: set it up, make keys, serve."

LARGEST_REPORT = 1 << 24
"""Bytes: four million coordinates."""


def configure(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    key = parts.add_parser(
        "key", help="make the analyzer's key pair: FILE and FILE.pub",
        description="Make the analyzer's key pair: FILE, to keep, and FILE.pub, for the sites.",
    )  # fmt: skip
    key.add_argument("file", metavar="FILE", help="where to put the private key")
    init = parts.add_parser(
        "init", help="make a shuffler's directory, and passes to hand out",
        description="Make a shuffler's directory, and the passes of the server and of every site.",
    )  # fmt: skip
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
        "--min-reports", type=int, metavar="N", required=True,
        help="no smaller batch leaves, whatever the server asks: what hides a client from it",
    )  # fmt: skip
    init.add_argument(
        "--largest-report", type=int, metavar="BYTES", default=LARGEST_REPORT,
        help="most bytes of a client's reports of a round, 4 a coordinate "
        f"(default: {LARGEST_REPORT})",
    )  # fmt: skip
    serve = parts.add_parser(
        "serve", help="take reports and release batches, until it is ended",
        description="Take reports and release batches, until it is ended.",
    )  # fmt: skip
    serve.add_argument("directory", metavar="DIR", help="the shuffler's own folder")
    serve.add_argument(
        "--listen", metavar="HOST:PORT", help="where to listen (default: its address)"
    )


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.cli.shuffler import parts

    play = {"key": parts.key, "init": parts.init, "serve": parts.serve}
    return play[arguments.part](arguments)

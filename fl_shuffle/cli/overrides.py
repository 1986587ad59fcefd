"""`--set SECTION.KEY=VALUE`, for every command that reads a configuration."""

from __future__ import annotations

import argparse


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="override one setting of the configuration; may be repeated",
    )

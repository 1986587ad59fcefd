"""Write a Flower app of your own that runs: apps, configuration, budgets, a test."""

from __future__ import annotations

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the new folder, and its package's name")


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.scaffold.writing import write_app

    target = Path(arguments.name)
    for path in write_app(target):
        print(path)
    print(f"next: cd {target} && fl-shuffle simulate config.toml")
    return 0

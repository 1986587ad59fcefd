"""`fl-shuffle new`: write a runnable app of your own."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from fl_shuffle.scaffold.writing import write_app


def run(arguments: Namespace) -> int:
    target = Path(arguments.name)
    for path in write_app(target):
        print(path)
    print(f"next: cd {target} && fl-shuffle simulate config.toml")
    return 0

"""`fl-shuffle new`: write a runnable app of your own."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from fl_shuffle.cli.scaffold.writing import DEPLOY, write_app


def run(arguments: Namespace) -> int:
    target = Path(arguments.name)
    for path in write_app(target, deploy=arguments.deploy):
        print(path)
    if arguments.deploy:
        print(f"a deployment on this machine: {target / DEPLOY}")
    print(f"next: cd {target} && fl-shuffle simulate config.toml")
    return 0

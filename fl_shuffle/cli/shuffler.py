"""`fl-shuffle shuffler`: the shuffler as a process and a party of its own."""

from __future__ import annotations

import logging
import signal
import sys
from argparse import Namespace
from pathlib import Path

from fl_shuffle.errors import ConfigError


def run(arguments: Namespace) -> int:
    return {"key": _key, "init": _init, "serve": _serve}[arguments.part](arguments)


def _key(arguments: Namespace) -> int:
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


def _init(arguments: Namespace) -> int:
    """Make a shuffler's directory, and passes."""
    from fl_shuffle.shuffler.remote.credentials import Settings
    from fl_shuffle.shuffler.remote.service import initialise

    directory, passes = Path(arguments.directory), Path(arguments.credentials)
    settings = Settings(
        arguments.address, arguments.clients, arguments.min_reports, arguments.max_report_bytes
    )
    initialise(directory, passes, settings, arguments.sites)
    print(
        f"{passes}: site-0.json to site-{arguments.sites - 1}.json, one for each SuperNode, and "
        f"analyzer.json for the server; hand each out on a safe way, then delete the folder"
    )
    print(f"start it: fl-shuffle shuffler serve {directory}")
    return 0


def _serve(arguments: Namespace) -> int:
    """Answer calls until the process is asked to end."""
    from fl_shuffle.shuffler.remote.service import opened

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    logging.getLogger("fl_shuffle.shuffler").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    limits = {"memory": arguments.memory, "slowest": arguments.slowest}
    with opened(Path(arguments.directory), arguments.listen, **limits) as server:
        try:
            server.wait_for_termination()
        except KeyboardInterrupt:
            return 0
    return 0

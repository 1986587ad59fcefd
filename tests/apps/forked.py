"""Flower's programs of a site, forked from a process that has loaded their libraries already.

A SuperNode starts a program for every message, and loading Flower and PyTorch takes seconds of CPU.
What runs is Flower's: one process a call, with the caller's arguments, environment and streams; a
ClientApp is loaded from its bundle.

    python -P tests/apps/forked.py DOOR
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
import threading
from importlib.metadata import entry_points
from pathlib import Path

PROGRAMS = ("flower-supernode", "flower-superexec", "flwr-clientapp")
CALLER = """\
#!{python} -IS
import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({address!r})
    socket.send_fds(connection, [b"."], [1, 2])
    asked = [{name!r}, sys.argv, dict(os.environ), os.getcwd()]
    connection.sendall(json.dumps(asked).encode() + b"\\n")
    sys.exit(ord(connection.recv(1) or b"\\1"))
"""


def callers(folder: Path, address: Path) -> None:
    """Programs of these names in `folder` that have the process behind `address` fork one. Who ends
    such a program ends what was forked."""
    folder.mkdir()
    for name in PROGRAMS:
        program = folder / name
        program.write_text(CALLER.format(python=sys.executable, address=str(address), name=name))
        program.chmod(stat.S_IRWXU)


def _serve(address: str) -> None:
    # What the app needs of others; its own modules are those of its bundle.
    import mpmath
    import scipy.special
    import torch

    assert all((mpmath, scipy.special, torch))
    found = {
        entry.name: entry.load()
        for entry in entry_points(group="console_scripts")
        if entry.name in PROGRAMS
    }
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{address}-")
        listener.listen(64)
        os.rename(f"{address}-", address)
        while True:
            connection, _ = listener.accept()
            if not os.fork():
                listener.close()
                _play(connection, found)
            connection.close()


def _play(connection: socket.socket, programs: dict[str, object]) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _, streams, *_ = socket.recv_fds(connection, 1, 2)
        with connection.makefile("rb") as sent:
            name, sys.argv, environment, folder = json.loads(sent.readline())
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        programs[name]()  # type: ignore[operator]
        code = 0
    except SystemExit as exited:
        code = exited.code if isinstance(exited.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(bytes([code & 255]))
        os._exit(code)


def _end_with(connection: socket.socket) -> None:
    connection.recv(1)
    os._exit(1)


if __name__ == "__main__":
    _serve(sys.argv[1])

"""Flower's programs on this machine, and its free ports."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

OFFLINE = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}


def program(name: str) -> str:
    """A console script of the environment this Python runs in."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0):
            return True
    except OSError:
        return False

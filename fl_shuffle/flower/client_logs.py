"""What clients log where Ray plays them: to the user's terminal or nowhere, and never to a disk.

Ray keeps what its processes print in files below /tmp/ray, which every local user can read. Lines
below `fl_shuffle.client` depend on records: how many of them count as zero, what an app raised.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any

CLIENT_LOG = "fl_shuffle.client"
OTHERS_MAY_NOT = 0o077
"""Of the files that a process creates: nobody but its user reads them."""

LogRecords = list[dict[str, Any]]
"""Log records as plain attributes: they go from one process to another."""


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: LogRecords = []

    def emit(self, record: logging.LogRecord) -> None:
        # The template stays apart from its values: the terminal shows each template once.
        plain = (bool, int, float, str)
        args = record.args if isinstance(record.args, tuple) else ()
        values = tuple(each if isinstance(each, plain) else str(each) for each in args)
        told = {"name": record.name, "levelno": record.levelno, "levelname": record.levelname}
        self.said.append({**told, "msg": str(record.msg), "args": values})


@contextmanager
def kept_from_disk() -> Iterator[LogRecords]:
    """Keep all that this process prints or logs within it out of Ray's files; return the list of
    what clients log."""
    log, kept = logging.getLogger(CLIENT_LOG), _Kept()
    handlers, propagate = log.handlers, log.propagate
    log.handlers, log.propagate = [kept], False
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, ExitStack() as redirected:
            for number in (1, 2):
                redirected.enter_context(_descriptor_replaced(number, nowhere.fileno()))
            redirected.enter_context(redirect_stdout(nowhere))
            redirected.enter_context(redirect_stderr(nowhere))
            yield kept.said
    finally:
        log.handlers, log.propagate = handlers, propagate


@contextmanager
def _descriptor_replaced(number: int, other: int) -> Iterator[None]:
    """Make the file descriptor `number` another name of `other`.

    A log handler holds the stream of the time when it was made: importing Opacus gives the root
    logger one. Replacing `sys.stderr` does not reach it, and neither does it reach compiled code.
    """
    _flush()
    before = os.dup(number)
    os.dup2(other, number)
    try:
        yield
    finally:
        # What is still in a buffer must not be written after the descriptor is back.
        _flush()
        os.dup2(before, number)
        os.close(before)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()


def say_here(said: LogRecords) -> None:
    """Log what clients have logged in another process."""
    for record in said:
        logging.getLogger(record["name"]).handle(logging.makeLogRecord(record))


def quiet_on_ray() -> None:
    """Drop what clients log in this process from now on, if it is one in which Flower's runtime has
    Ray play them: there is no way to the user's terminal but by Ray's files."""
    log, ray = logging.getLogger(CLIENT_LOG), sys.modules.get("ray")
    if log.handlers or ray is None or not ray.is_initialized():
        return
    if ray.get_runtime_context().get_actor_id() is not None:
        log.addHandler(logging.NullHandler())
        log.propagate = False


@contextmanager
def private_files() -> Iterator[None]:
    """Make files of processes that are started within it this user's alone to read."""
    before = os.umask(OTHERS_MAY_NOT)
    try:
        yield
    finally:
        os.umask(before)

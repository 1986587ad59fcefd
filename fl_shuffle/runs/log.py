"""run.log: what the server's side says about a run, and nothing that a client says.

The file is published with the run, so only loggers below `fl_shuffle.run` reach it. Clients log
below `fl_shuffle.client` (which records have no finite gradient, exceptions that may quote records,
how gradients are computed, which may be decided on the first records): that stays with whoever
keeps the data.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from fl_shuffle.runs.directory import LOG, RunDirectory

log = logging.getLogger("fl_shuffle.run")


@contextmanager
def logging_to(directory: RunDirectory, *, times: bool) -> Iterator[None]:
    """Write what is said below `fl_shuffle.run` to the directory's run.log, with times or not."""
    with directory.append(LOG) as file:
        handler = logging.StreamHandler(file)
        stamp = "%(asctime)s " if times else ""
        handler.setFormatter(logging.Formatter(f"{stamp}%(levelname)s %(name)s: %(message)s"))
        before = log.level
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(before)

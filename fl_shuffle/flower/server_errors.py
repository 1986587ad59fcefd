"""What Flower's log says where a run is refused: one line, as `fl-shuffle simulate` says it.

Flower logs whatever a ServerApp raises with its traceback, on the Simulation Runtime twice.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from fl_shuffle.errors import FlShuffleError
from fl_shuffle.runs.directory import RunPlace

_FLOWER = logging.getLogger("flwr")


class _OneLine(logging.Filter):
    """Leaves tracebacks out of records about the framework's own errors."""

    def filter(self, record: logging.LogRecord) -> bool:
        found = record.exc_info[1] if record.exc_info else sys.exc_info()[1]
        if not isinstance(found, FlShuffleError):
            return True
        if record.exc_info:
            record.msg, record.args = "%s: %s", (record.getMessage(), found)
            record.exc_info = record.exc_text = None
        # A traceback that was logged as a text.
        return "Traceback (most recent call last)" not in record.getMessage()


_ONE_LINE = _OneLine()


def require_run_config(run_config: Mapping[str, object]) -> None:
    """Have this process's Flower say refusals in one line; raise `InvalidValueError` or
    `ConfigError` for what Flower's run configuration says of the run directory, before the data."""
    _FLOWER.addFilter(_ONE_LINE)
    RunPlace.of(run_config)

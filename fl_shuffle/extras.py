"""Optional libraries: whether they are there, and what to install where they are missing."""

from __future__ import annotations

from importlib.util import find_spec

from fl_shuffle.errors import ConfigError


def installed(library: str) -> bool:
    """Whether `library` can be imported; it is not."""
    return find_spec(library) is not None


def require_extra(library: str, extra: str, what: str) -> None:
    """Raise `ConfigError`, naming the extra to install, unless `library` is there."""
    if not installed(library):
        raise ConfigError(
            f"{what} needs {library}, which is not installed; pip install 'fl-shuffle[{extra}]'"
        )

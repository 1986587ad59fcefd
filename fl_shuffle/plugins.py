"""Loading a user's own `module:attribute`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from fl_shuffle.errors import ConfigError


def load_attribute(path: str, *, field: str) -> Any:
    """Import `module:attribute` (the current directory is searched too) and return the attribute.

    Raises `ConfigError` naming `field` if the path is malformed, the module cannot be imported, or
    it has no such attribute. An error raised *inside* the user's module while it is imported is
    passed on: it is theirs to see.
    """
    module_name, separator, attribute = path.partition(":")
    if not separator or not module_name or not attribute:
        raise ConfigError(f"{field} = {path!r}: must look like module:attribute")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise ConfigError(
            f"{field} = {path!r}: there is no module {error.name!r} on the Python path or in {here}"
        ) from None
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigError(
            f"{field} = {path!r}: module {module_name!r} has no attribute {attribute!r}"
        ) from None

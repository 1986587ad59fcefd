"""Names of a package that are loaded when they are first asked for."""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # `typing` takes longer than all of this package's first lines
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(
    package: str,
    exports: Mapping[str, tuple[str, ...]],
    renamed: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__`; `exports` maps modules to their names.

    Importing the package then loads no module. Each name is looked up once and kept. `renamed` maps
    names of the last release to today's: they still work, with a `DeprecationWarning`.
    """
    home = {name: module for module, names in exports.items() for name in names}
    today = renamed or {}

    def get(name: str) -> Any:
        if name in today:
            from fl_shuffle._internal.renamed import warn_renamed

            warn_renamed(f"{package}.{name}", f"{package}.{today[name]}", stacklevel=2)
            return getattr(sys.modules[package], today[name])
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return get, names

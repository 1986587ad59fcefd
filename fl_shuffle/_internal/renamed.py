"""Names of an earlier version that are still accepted, each use with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

V = TypeVar("V")
R = TypeVar("R")
P = ParamSpec("P")


class RenamedWarning(DeprecationWarning):
    """A name of an earlier version was used. The command line shows it, as Python does not."""


def warn_renamed(old: str, new: str, *, stacklevel: int = 2) -> None:
    """Emit a `RenamedWarning`: `old` is now called `new`, and goes in the next release.

    `stacklevel` is the frame, seen from the caller, that is blamed: 2 is the caller's caller.
    """
    warnings.warn(
        f"{old} is now called {new}; the old name goes in 0.4",
        RenamedWarning,
        stacklevel=stacklevel + 1,
    )


class RenamedKeys(dict[str, V]):
    """A dictionary that still finds values under keys of an earlier version, with a warning.

    It lists the new keys alone.

    Parameters
    ----------
    items : mapping
        Values under their new keys.
    old : mapping of str to str
        Old key -> new key.
    """

    def __init__(self, items: Mapping[str, V], old: Mapping[str, str]) -> None:
        super().__init__(items)
        self._old = dict(old)

    def __missing__(self, key: str) -> V:
        new = self._old.get(key)
        if new is None or new not in self:
            raise KeyError(key)
        warn_renamed(repr(key), repr(new))
        return self[new]


def renamed_arguments(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have a function take arguments by older names (old="new"), too, each with a warning."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in names.keys() & kwargs.keys():
                if names[old] in kwargs:
                    raise TypeError(
                        f"{function.__qualname__}() got {names[old]} and {old}, its old name: "
                        f"leave out {old}"
                    )
                warn_renamed(f"{function.__qualname__}({old}=)", f"{names[old]}=")
                kwargs[names[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def with_new_keys(table: Any, old: Mapping[str, str]) -> Any:
    """Return the table with its old keys (`old`: old -> new) under their new names; what is no
    table, as it is."""
    if not isinstance(table, Mapping):
        return table
    return {old.get(name, name): value for name, value in table.items()}


def with_old_keys(table: Mapping[str, V], old: Mapping[str, str]) -> dict[str, V]:
    """Return the table with the values of renamed keys under their old names, too, behind the
    others."""
    return {**table, **{name: table[new] for name, new in old.items() if new in table}}


def renamed_attribute(old: str, new: str) -> Any:
    """Return a read-only property that has the value of attribute `new`, with a warning."""

    def get(self: object) -> Any:
        name = type(self).__name__
        warn_renamed(f"{name}.{old}", f"{name}.{new}")
        return getattr(self, new)

    return property(get, doc=f"The old name of `{new}`.")


def show_on_terminal() -> None:
    """Have this process print each `RenamedWarning`, once and in one line, for the user."""
    warnings.filterwarnings("default", category=RenamedWarning)
    plain = warnings.formatwarning

    def formatted(
        message: Warning | str, category: type[Warning], filename: str, lineno: int,
        line: str | None = None,
    ) -> str:  # fmt: skip
        if issubclass(category, RenamedWarning):
            return f"note: {message}\n"
        return plain(message, category, filename, lineno, line)

    warnings.formatwarning = formatted

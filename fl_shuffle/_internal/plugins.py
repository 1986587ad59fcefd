"""What is installed: a user's own `module:attribute`, what packages offer by name, optional
libraries."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_shuffle.errors import ConfigError

if TYPE_CHECKING:
    from pandas import DataFrame


def load_attribute(path: str, *, field: str) -> Any:
    """Import `module:attribute` and return the attribute.

    This package's own modules are taken from this package. Others are looked for on the Python
    path, and in the current directory after it: a folder there cannot stand in for anything that is
    installed. Whatever is named here runs with the user's rights: a configuration is code.

    Raises `ConfigError` naming `field` if the path is malformed, the module cannot be imported, or
    it has no such attribute. An error raised *inside* the user's module while it is imported is
    passed on: it is theirs to see.
    """
    module_name, separator, attribute = path.partition(":")
    if not separator or not module_name or not attribute:
        raise ConfigError(f"{field} = {path!r}: must look like module:attribute")
    require_package(path, field=field)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise _no_module(path, error.name, field) from None
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigError(
            f"{field} = {path!r}: module {module_name!r} has no attribute {attribute!r}"
        ) from None


def require_package(path: str, *, field: str) -> None:
    """Raise `ConfigError` unless the outermost package of `module:attribute` can be found, as
    `load_attribute` would find it; nothing is imported."""
    module, _, attribute = path.partition(":")
    if module.endswith(".py"):
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(
            f"{field} = {path!r}: must name a module, not a file; did you mean "
            f"'{dotted}:{attribute}'?"
        )
    package, here = module.partition(".")[0], str(Path.cwd())
    if package != "fl_shuffle" and here not in sys.path:
        sys.path.append(here)
    there = package in sys.modules or (package.isidentifier() and find_spec(package) is not None)
    if not there:
        raise _no_module(path, package, field)


def _no_module(path: str, name: str, field: str) -> ConfigError:
    where = f"on the Python path or in {Path.cwd()}"
    return ConfigError(f"{field} = {path!r}: there is no module {name!r} {where}")


def load_function(path: str, *arguments: str, field: str) -> Any:
    """Load what `load_attribute` does, if it can be called with these arguments in this order.

    Raises `ConfigError` as well where it cannot.
    """
    found = load_attribute(path, field=field)
    wanted = f"{field} = {path!r}: it must be a function of ({', '.join(arguments)})"
    if not callable(found):
        raise ConfigError(f"{wanted}, and is a {type(found).__name__}")
    try:
        signature = inspect.signature(found)
    except ValueError:  # some built-in functions have none: the call itself will tell
        return found
    try:
        signature.bind(*arguments)
    except TypeError:
        raise ConfigError(f"{wanted}, and takes {signature}") from None
    return found


def registered(group: str) -> dict[str, str]:
    """Name -> `module:attribute` of everything that installed packages offer as `fl_shuffle.GROUP`.

    A package declares it in its pyproject.toml:

        [project.entry-points."fl_shuffle.models"]
        resnet = "their_package.models:resnet"

    and its users write `model.kind = "resnet"`. A name offered twice raises `ConfigError`.
    """
    from importlib.metadata import entry_points  # slow to load, and seldom needed

    found: dict[str, str] = {}
    for entry in entry_points(group=f"fl_shuffle.{group}"):
        path = f"{entry.module}:{entry.attr}"
        if found.setdefault(entry.name, path) != path:
            raise ConfigError(
                f"two packages offer {entry.name!r} as fl_shuffle.{group}: {found[entry.name]} and "
                f"{path}; name one of the two paths"
            )
    return found


def installed(library: str) -> bool:
    """Return whether `library` can be imported; it is not."""
    return find_spec(library) is not None


def require_extra(library: str, extra: str, what: str) -> None:
    """Raise `ConfigError`, naming what to install, unless `library` can be imported.

    `extra` is the optional dependency group of this package that has the library; `what` is the
    option, setting, or command that needs it.
    """
    if not installed(library):
        wanted = " ".join(repr(each) for each in requirements(extra)) or library
        raise ConfigError(f"{what} needs {library}, which is not installed; pip install {wanted}")


def data_frame(columns: Mapping[str, Any]) -> DataFrame:
    """Return columns of equal length as a pandas data frame.

    Raises `ConfigError`, naming what to install, without pandas.
    """
    require_extra("pandas", "pandas", "to_frame")
    import pandas

    return pandas.DataFrame(columns)


def requirements(extra: str = "") -> list[str]:
    """Return the requirements of this package, as pip takes them: of one extra, or of no extra.

    Empty where the package was copied and not installed, as into a Flower app's bundle.
    """
    from importlib.metadata import PackageNotFoundError, requires  # slow to load, seldom needed

    try:
        listed = requires("fl-shuffle") or []
    except PackageNotFoundError:
        return []
    marker = f'extra == "{extra}"' if extra else ""
    split = [each.partition(";") for each in listed]
    return [name.strip() for name, _, condition in split if condition.strip() == marker]

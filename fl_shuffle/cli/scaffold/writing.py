"""Writing an app from its template."""

from __future__ import annotations

import keyword
import re
from importlib.util import find_spec
from pathlib import Path

from fl_shuffle.errors import ConfigError

# Flower sends files of few kinds to a SuperLink, and this repository is an app itself.
TEMPLATE = Path(__file__).with_name("template.md")
BLOCK = re.compile(r"^~~~~\w+\n# file: (\S+)\n(.*?)^~~~~$", re.MULTILINE | re.DOTALL)
DEPLOY = "deploy.sh"
"""Written where it is asked for."""
CLIENTS = 120
"""Of the federation in the template: enough to hide in, few enough for seconds."""
LEVELS = (4, 8, 16)
"""Epsilons of single reports in the budgets file, in turn."""


def write_app(target: Path, *, deploy: bool = False) -> list[Path]:
    """Write a runnable app into the new folder `target`; returns its files.

    `deploy` adds a script that plays a whole deployment of the app on this machine. Raises
    `ConfigError` for a name that cannot be a Python package, or that is taken.
    """
    package = target.name.replace("-", "_").lower()
    if not package.isidentifier() or not package.isascii() or keyword.iskeyword(package):
        raise ConfigError(
            f"NAME = {target.name!r}: must begin with a letter and hold letters, digits, - and _ "
            "only; it names a Python package"
        )
    if find_spec(package) is not None:
        raise ConfigError(
            f"NAME = {target.name!r}: the app would hide the Python module {package!r}, which "
            "exists already; choose another name"
        )
    if target.exists():
        raise ConfigError(f"NAME = {target.name!r}: {target} exists; choose another name")
    template = TEMPLATE.read_text(encoding="utf-8")
    values = {"@NAME@": target.name, "@PACKAGE@": package, "@CLIENTS@": str(CLIENTS)}
    for mark, value in values.items():
        template = template.replace(mark, value)
    budgets = [f"{client},{LEVELS[client % len(LEVELS)]},1e-5" for client in range(CLIENTS)]
    table = "\n".join(["client_id,epsilon,delta", *budgets, ""])
    found = {"budgets.csv": table, **dict(BLOCK.findall(template))}
    if not deploy:
        del found[DEPLOY]
    try:
        for name, text in found.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                path.chmod(path.stat().st_mode | 0o111)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from None
    return [target / name for name in found]

"""The two Flower apps that every run executes: `clients/app.py` and `server/app.py`.

A wheel holds them in this package. In a checkout they lie beside it, where `flwr run .` and readers
find them. They are then loaded from there under the names that they have in a wheel, since
configurations and ledgers have these names; a user's own `server` or `clients` is another package.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def _load(name: str, folder: Path) -> None:
    """Load the package in `folder` as the part `name` of this package."""
    full = f"{__name__}.{name}"
    spec = spec_from_file_location(
        full, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[full] = module
    spec.loader.exec_module(module)
    globals()[name] = module


_here = Path(__file__).resolve().parent
for _name in ("clients", "server"):
    if not (_here / _name).is_dir():
        _load(_name, _here.parents[1] / _name)

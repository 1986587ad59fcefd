"""Whose records are: what a source says of it, as names that can be compared.

Budgets, noise and records go to a client by its name, so the same rules hold for .csv, .parquet,
.npz and sources in Python. Owners are public: an error may say which record has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from numbers import Integral, Number, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.csv_files import whole_text
from fl_shuffle.errors import DataError

LONGEST_NAME = 1000
"""Characters of a client's name."""
LARGEST_FLOAT = 2**53
"""Beyond it a float stands for several whole numbers, so it names nobody."""

Where = Callable[[int], str]
"""Where the owner of a record stands, in words."""


def owner_names(cells: Sequence[Any] | NDArray[Any], where: Where) -> NDArray[Any]:
    """Return the client of each record [N]: int64 if all are whole numbers, else texts.

    A float that is a whole number is that number, and so is its text ("3.0"): pandas writes these
    for a column that once had a gap. Texts lose blanks at their ends. Numbers with leading zeros
    stay texts. Raises `DataError`, with `where` and the reason, for an owner that is missing, not
    decodable, a broken number, or too long.
    """
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "iu" and cells.ndim == 1:
        return cells
    known: dict[Any, str] = {}
    names = []
    for number, cell in enumerate(cells):
        key = (type(cell), cell)
        try:
            name = known.get(key)
        except TypeError:  # nothing that could be compared: a list, say
            raise DataError(f"{where(number)}: a client must be a whole number or a text") from None
        if name is None:
            name = known[key] = _name(cell, number, where)
        names.append(name)
    whole = {name: whole_text(name) for name in dict.fromkeys(names)}
    if names and all(number is not None for number in whole.values()):
        return np.array([int(whole[name] or 0) for name in names], dtype=np.int64)
    return np.array(names, dtype=np.str_)


def _name(cell: Any, number: int, where: Where) -> str:
    """Return the name in a cell; raises `DataError`."""
    why = ""
    if isinstance(cell, bytes):
        name = cell.decode("utf-8", errors="replace").strip()
    elif isinstance(cell, Number) and not isinstance(cell, bool | np.bool_ | Integral):
        value = float(cell) if isinstance(cell, Real) or hasattr(cell, "__float__") else math.nan
        if math.isnan(value):
            why = "is missing (NaN); every record needs a client: add it"
        elif value != math.floor(value) if math.isfinite(value) else True:
            why = f"is {cell}: a number that names a client must be whole"
        elif abs(value) > LARGEST_FLOAT:
            why = f"is {cell}: a float that large names several numbers; write it as a text"
        name = "" if why else str(int(value))
    else:
        name = "" if cell is None else str(cell).strip()
    if not why and not name:
        why = "is missing; every record needs a client: add it"
    elif "\ufffd" in name or re.search("[\ud800-\udfff]", name):
        why = "cannot be decoded; save the file as UTF-8"
    elif len(name) > LONGEST_NAME:
        why = f"has a name of {len(name)} characters; it may have {LONGEST_NAME}"
    if why:
        raise DataError(f"{where(number)}: the client {why}")
    return name

"""The two pages that every run plays: `clients/app.py` and `server/app.py`.

A wheel holds them in this package. In a checkout they lie beside it, where `flwr run .` and readers
find them; they are then imported from there, under the same names.
"""

from __future__ import annotations

from pathlib import Path

_here = Path(__file__).resolve().parent
if not (_here / "clients").is_dir():
    __path__.append(str(_here.parents[1]))

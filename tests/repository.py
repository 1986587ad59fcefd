"""The repository's root and the product's own Python files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(
    path for top in ("fl_shuffle", "clients", "server") for path in (ROOT / top).rglob("*.py")
)

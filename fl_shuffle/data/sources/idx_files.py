"""IDX files, in which MNIST and its kin lie: found by every name they are shipped under, and read.

Such a file begins with two zeros, its type, the number of its dimensions, and these, of four bytes
each. torchvision knows one name and one folder, and a `.gz` only with its own checksum.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype("u1"), 0x0C: np.dtype(">i4")}
"""By the third byte of a file."""
PIECE = 1 << 20
"""Bytes that are unpacked at a time: a file is believed no size that it does not have."""


class PartFiles(NamedTuple):
    """The files of one part of a set, by their plain names."""

    images: str
    labels: str


def part_of(name: str, split: str, *, train: bool) -> PartFiles | None:
    """Return which files hold a part of this class of torchvision.datasets; None if they are no IDX
    files. `split`: EMNIST's."""
    part = "train" if train else "test"
    if name == "EMNIST":
        return PartFiles(
            *(f"emnist-{split}-{part}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
        )
    if name == "QMNIST":
        return PartFiles(f"qmnist-{part}-images-idx3-ubyte", f"qmnist-{part}-labels-idx2-int")
    if name in ("MNIST", "FashionMNIST", "KMNIST"):
        stem = "train" if train else "t10k"
        return PartFiles(f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte")
    return None


def find(folders: Sequence[Path], name: str) -> Path | None:
    """Return the first file of this name: as it is, with a point (`.idx3-ubyte`), or either as
    `.gz`."""
    for folder in folders:
        for plain in (name, name.replace("-idx", ".idx")):
            for path in (folder / plain, folder / f"{plain}.gz"):
                if path.is_file():
                    return path
    return None


def read(path: Path) -> NDArray[Any]:
    """Return what a file holds. Raises `ValueError`, which names it, if it is not whole."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _read(path, file)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a complete .gz file: {error}") from None


def _read(path: Path, file: gzip.GzipFile | BufferedReader) -> NDArray[Any]:
    head = file.read(4)
    dimensions = head[3] if head[:2] == b"\0\0" and len(head) == 4 and head[2] in TYPES else 0
    given = file.read(4 * dimensions)
    if not dimensions or len(given) < 4 * dimensions:
        raise ValueError(f"{path} is not an IDX file of bytes or whole numbers")
    shape = [int(each) for each in np.frombuffer(given, dtype=">u4")]
    kind = TYPES[head[2]]
    expected = math.prod(shape) * kind.itemsize
    held = bytearray()
    for piece in _pieces(file):
        held += piece
        if len(held) > expected:
            raise ValueError(f"{path} has more than the {expected:,} bytes that its header states")
    if len(held) < expected:
        begun = len(head) + len(given)
        raise ValueError(f"{path} has {begun + len(held):,} bytes instead of {begun + expected:,}")
    return np.frombuffer(bytes(held), dtype=kind).reshape(shape)


def _pieces(file: gzip.GzipFile | BufferedReader) -> Iterator[bytes]:
    while piece := file.read(PIECE):
        yield piece

"""MNIST: its IDX files read with NumPy, downloaded by torchvision where there are none."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import DataError

DATA_VARIABLE = "FL_SHUFFLE_DATA"
SHAPES: dict[str, tuple[int, ...]] = {
    "train-images-idx3-ubyte": (60_000, 28, 28),
    "train-labels-idx1-ubyte": (60_000,),
    "t10k-images-idx3-ubyte": (10_000, 28, 28),
    "t10k-labels-idx1-ubyte": (10_000,),
}
UNSIGNED_BYTES = 0x08
"""The type of the numbers, in the third byte of an IDX file."""
THREE_WAYS = (
    f"name a folder that holds MNIST/raw with --data DIR, [data] root, or the variable "
    f"{DATA_VARIABLE}"
)
Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]


def header(shape: tuple[int, ...]) -> bytes:
    """How an IDX file of unsigned bytes begins: two zeros, the type, the dimensions, the sizes."""
    return bytes([0, 0, UNSIGNED_BYTES, len(shape)]) + np.array(shape, ">u4").tobytes()


def file_size(shape: tuple[int, ...]) -> int:
    return len(header(shape)) + int(np.prod(shape))


def read(configured: str) -> tuple[*Arrays, *Arrays]:
    """From `configured`, else $FL_SHUFFLE_DATA, else `data/`. Raises `DataError`."""
    root = Path(configured or os.environ.get(DATA_VARIABLE, "") or "data")
    explicit = bool(configured or os.environ.get(DATA_VARIABLE))
    if explicit and not root.is_dir():
        raise DataError(f"data folder {root} does not exist or is not a folder; {THREE_WAYS}")
    raw = root / "MNIST" / "raw"
    if not any((raw / name).is_file() for name in SHAPES):
        _download(root)
    train_images, train_labels, test_images, test_labels = (
        _read_idx(raw / name, shape) for name, shape in SHAPES.items()
    )
    return (
        train_images,
        train_labels.astype(np.int64),
        test_images,
        test_labels.astype(np.int64),
    )


def _download(root: Path) -> None:
    from fl_shuffle.tasks.sources.torchvision_datasets import import_torchvision_datasets

    try:
        import_torchvision_datasets().MNIST(str(root), train=True, download=True)
    except Exception as error:  # any transport or filesystem failure has the same remedy
        raise DataError(
            f"MNIST is not in {root} and could not be downloaded "
            f"({type(error).__name__}: {error}); {THREE_WAYS}"
        ) from None


def _read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    raw, expected = path.parent, header(shape)
    if not path.is_file():
        raise DataError(f"{path} is missing; restore it or remove {raw} to download again")
    size = path.stat().st_size
    if size != file_size(shape):
        raise DataError(
            f"{path} has {size} bytes instead of {file_size(shape)}: it is truncated or not "
            f"MNIST; remove {raw} to download again"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; {THREE_WAYS}") from None
    if content[: len(expected)] != expected:
        raise DataError(
            f"{path} cannot be read: it does not begin as MNIST's file does; remove {raw} to "
            "download again"
        )
    return np.frombuffer(bytearray(content), np.uint8, offset=len(expected)).reshape(shape)

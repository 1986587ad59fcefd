"""CIFAR-10 as pictures: a folder, or a tar, of train/CLASS/FILE and test/CLASS/FILE.

The classes are known, so nothing that is published depends on the files' names. How many training
files there are is public. A training file that is no picture of 32 x 32, or that lies in a folder
of another name, counts as zero, and only the holder's log (`fl_shuffle.client`) says how many there
are; among the test records, which are public, it is an error.
"""

from __future__ import annotations

import io
import logging
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.data.sources.images import SUFFIXES
from fl_shuffle.data.sources.tables import NO_CLASS
from fl_shuffle.errors import DataError

log = logging.getLogger("fl_shuffle.client")

CLASSES: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
SIDE: Final = 32
PARTS: Final = ("train", "test")
_TARS: Final = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
_ORIGINAL: Final = "cifar-10-python.tar.gz"
"""torchvision's own file, which holds no pictures."""
_LARGEST: Final = 1 << 20
"""Bytes of a picture: one of 32 x 32 pixels has a few thousand."""
PictureArrays = tuple[NDArray[np.uint8], NDArray[np.int64]]


def find(root: Path) -> Path | None:
    """Return the folder or the tar of pictures that `root` is, or holds; None without one.

    Raises `DataError` for several tars.
    """
    if root.is_file():
        return root
    if (root / PARTS[0]).is_dir():
        return root
    for folder in (root / "CIFAR10", root):
        tars = sorted(
            each
            for each in (folder.iterdir() if folder.is_dir() else ())
            if each.name.endswith(_TARS) and each.name != _ORIGINAL and "cifar10" in each.name
        )
        if len(tars) > 1:
            listed = ", ".join(each.name for each in tars)
            raise DataError(f"{folder} holds several tars of pictures ({listed}); name one as root")
        if tars:
            return tars[0]
    return None


def read(place: Path) -> tuple[PictureArrays, PictureArrays]:
    """Return both parts of a folder or a tar, uint8 [N, 3, 32, 32] and classes [N], in the order of
    the files' names; raises `DataError`."""
    files = sorted(_in_tar(place) if place.is_file() else _in_folder(place))
    held = {part: [each for each in files if each[0] == part] for part in PARTS}
    for part in PARTS:
        if not held[part]:
            raise DataError(
                f"{place} holds no pictures ({', '.join(SUFFIXES)}) in {part}/CLASS; lay them out "
                "as train/CLASS/FILE and test/CLASS/FILE"
            )
    return _private(held["train"]), _public(held["test"], place)


_File = tuple[str, str, str, bytes]
"""Part, class, name, and content; sorted by these."""


def _in_folder(root: Path) -> Iterator[_File]:
    for part in PARTS:
        for path in (root / part).glob("*/*"):
            if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file():
                with path.open("rb") as file:
                    yield part, path.parent.name, path.name, file.read(_LARGEST + 1)


def _in_tar(place: Path) -> Iterator[_File]:
    """Yield the pictures of a tar, whatever folders stand above `train` and `test`."""
    try:
        with tarfile.open(place) as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                above = path.parts[-3:-1]
                if len(above) < 2 or above[0] not in PARTS or not member.isfile():
                    continue
                if path.suffix.lower() in SUFFIXES and not path.name.startswith("."):
                    opened = tar.extractfile(member)
                    content = b"" if opened is None else opened.read(_LARGEST + 1)
                    yield above[0], above[1], path.name, content
    except (OSError, EOFError, tarfile.TarError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{place} cannot be read as a tar of pictures ({reason})") from None


def _private(files: list[_File]) -> PictureArrays:
    """Return the training pictures; zeros and `NO_CLASS` for what counts as zero."""
    images = np.zeros((len(files), 3, SIDE, SIDE), dtype=np.uint8)
    labels = np.full(len(files), NO_CLASS, dtype=np.int64)
    for number, (_, name, _, content) in enumerate(files):
        picture = _picture(content)
        if name in CLASSES and not isinstance(picture, str):
            images[number], labels[number] = picture, CLASSES.index(name)
    wrong = int((labels == NO_CLASS).sum())
    if wrong:
        log.warning(
            "%d of %d training files are no pictures of %d x %d in a folder of a class: they count "
            "as zero",
            wrong, len(files), SIDE, SIDE,
        )  # fmt: skip
    return images, labels


def _public(files: list[_File], place: Path) -> PictureArrays:
    images, labels = [], []
    for part, name, file, content in files:
        where = f"{place}: {part}/{name}/{file}"
        if name not in CLASSES:
            raise DataError(f"{where}: {name!r} is not one of the classes {', '.join(CLASSES)}")
        picture = _picture(content)
        if isinstance(picture, str):
            raise DataError(f"{where} is no picture of {SIDE} x {SIDE} ({picture}); remove it")
        images.append(picture)
        labels.append(CLASSES.index(name))
    return np.array(images, dtype=np.uint8), np.array(labels, dtype=np.int64)


def _picture(content: bytes) -> NDArray[np.uint8] | str:
    """Return a picture [3, 32, 32], or why it is none."""
    from PIL import Image

    if len(content) > _LARGEST:
        return f"larger than {_LARGEST:,} bytes"
    try:
        with Image.open(io.BytesIO(content)) as opened:
            if opened.size != (SIDE, SIDE):
                return f"{opened.size[0]} x {opened.size[1]} pixels"
            return np.asarray(opened.convert("RGB"), dtype=np.uint8).transpose(2, 0, 1)
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises what it likes at a file that is no picture.
        return f"{type(error).__name__}: {error}"

"""A folder of pictures: one folder for each class, or one for each client and below it each class.

    [data]
    source = "images"
    root = "pictures"            # pictures/train/cat/1.png, pictures/test/cat/2.jpg
    partition = "natural"        # for pictures/train/CLIENT/cat/1.png
    features = "pixels"
    [data.source_options]
    size = 32                    # every picture is resized to 32 x 32; or [height, width]
    mode = "rgb"                 # or "gray"
    class_names = ["cat", "dog"]  # default: the names of the folders in pictures/test

The classes shape the published model, so they are declared, or read from the test folder, which is
public. How many files there are, in whose folder, is public as well. A private file that is no
picture, or lies in a folder of another name, counts as zero, and only its holder's log says so.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.records import Records
from fl_shuffle.data.sources.options import FIELD, require_known, text_option, texts_option
from fl_shuffle.data.sources.tables import NO_CLASS
from fl_shuffle.errors import ConfigError, DataError, InvalidValueError, require_choice

log = logging.getLogger("fl_shuffle.client")

OPTIONS = ("size", "mode", "class_names")
MODES = {"rgb": "RGB", "gray": "L"}
"""Pillow's name of each mode."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
SIZE = 32
MOST_SIDE = 1024


@dataclass(frozen=True)
class _Target:
    """What every picture becomes: its size, its mode, and the class of its folder."""

    height: int
    width: int
    mode: str
    names: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a picture: [H, W] if it is gray, else [3, H, W]."""
        size = self.height, self.width
        return size if self.mode == "gray" else (3, *size)


def read(section: DataSection) -> Records:
    """Return both parts as uint8 [N, 3, H, W], or [N, H, W] in gray, files in order of their names.

    Raises
    ------
    ConfigError, InvalidValueError
        For options that do not fit.
    DataError
        For folders that are missing or laid out otherwise, and for a test file that is no picture.
    """
    options = section.source_options
    require_known(options, "images", OPTIONS)
    root = Path(section.root)
    if not section.root or not (root / "train").is_dir():
        raise DataError(
            f"data.root = {section.root!r}: source 'images' needs a folder with train/CLASS/FILE, "
            "or train/CLIENT/CLASS/FILE"
        )
    names = texts_option(options, "class_names") or _folder_names(root / "test")
    if not names:
        raise ConfigError(
            f'{FIELD}: source "images" needs class_names = ["cat", "dog"], or a folder '
            f"{root / 'test'} with one folder for each class; classes are published with the "
            "model's shape and never read from private folders"
        )
    mode = require_choice(f"{FIELD}.mode", text_option(options, "mode", "rgb"), MODES)
    target = _Target(*_size(options.get("size", SIZE)), mode, names)
    files, clients = _private_files(root / "train")
    if section.partition == "natural" and clients is None:
        raise DataError(
            f"data.partition = 'natural': {root / 'train'} has no folders of clients; lay the "
            "pictures out as train/CLIENT/CLASS/FILE, or choose another partition"
        )
    images, labels = _private_pictures(files, target)
    test_images, test_labels = _public_pictures(root / "test", target)
    return Records(
        images, labels, test_images, test_labels, classes=len(names), train_clients=clients
    )


def _size(value: object) -> tuple[int, int]:
    sides = value if isinstance(value, list | tuple) else (value, value)
    fits = len(sides) == 2 and all(
        isinstance(side, int) and not isinstance(side, bool) and 1 <= side <= MOST_SIDE
        for side in sides
    )
    if not fits:
        allowed = f"must be a whole number from 1 to {MOST_SIDE:,}, or [height, width]"
        raise InvalidValueError(f"{FIELD}.size", value, allowed)
    return int(sides[0]), int(sides[1])


def _folder_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the folders in it, sorted; none where it is missing."""
    if not folder.is_dir():
        return ()
    return tuple(sorted(each.name for each in folder.iterdir() if _is_shown(each, folder=True)))


def _is_shown(path: Path, *, folder: bool) -> bool:
    """Return whether it is a folder, or a file with a picture's suffix, that is not hidden."""
    if path.name.startswith("."):
        return False
    return path.is_dir() if folder else path.suffix.lower() in SUFFIXES and path.is_file()


def _files_of(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if _is_shown(each, folder=False))


def _folders_of(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if _is_shown(each, folder=True))


def _private_files(train: Path) -> tuple[list[Path], NDArray[np.str_] | None]:
    """Return the training files in order, and the client of each, None in a layout without them."""
    files: list[Path] = []
    clients: list[str] = []
    plain = 0
    for folder in _folders_of(train):
        own = _files_of(folder)
        below = [file for each in _folders_of(folder) for file in _files_of(each)]
        if own and below:
            raise DataError(
                f"{folder} holds pictures and folders of pictures; lay them out as "
                "train/CLASS/FILE, or all as train/CLIENT/CLASS/FILE"
            )
        plain += len(own)
        files += own or below
        clients += [folder.name] * len(below)
    if not files:
        raise DataError(
            f"{train} holds no pictures ({', '.join(SUFFIXES)}) in train/CLASS or "
            "train/CLIENT/CLASS"
        )
    if plain and clients:
        raise DataError(
            f"{train} holds folders of classes beside folders of clients; lay the pictures out as "
            "train/CLASS/FILE, or all as train/CLIENT/CLASS/FILE"
        )
    return files, np.array(clients) if clients else None


def _private_pictures(
    files: list[Path], target: _Target
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the training pictures and their classes; `NO_CLASS` for what counts as zero."""
    images = np.zeros((len(files), *target.shape), dtype=np.uint8)
    labels = np.full(len(files), NO_CLASS, dtype=np.int64)
    unreadable = unnamed = 0
    for number, file in enumerate(files):
        try:
            label = target.names.index(file.parent.name)
        except ValueError:
            unnamed += 1
            continue
        picture = _picture(file, target)
        if isinstance(picture, str):
            unreadable += 1
            continue
        images[number], labels[number] = picture, label
    if unreadable or unnamed:
        log.warning(
            "%d of %d training files are no pictures, and %d lie in folders that are none of the "
            "classes: they count as zero",
            unreadable, len(files), unnamed,
        )  # fmt: skip
    return images, labels


def _public_pictures(test: Path, target: _Target) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the test pictures and their classes; none where there is no such folder."""
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    for folder in _folders_of(test) if test.is_dir() else []:
        if folder.name not in target.names:
            raise DataError(
                f"{folder}: {folder.name!r} is not one of the classes {', '.join(target.names)}; "
                f"remove the folder, or add it to {FIELD}.class_names"
            )
        for file in _files_of(folder):
            picture = _picture(file, target)
            if isinstance(picture, str):
                raise DataError(f"{file} is not a readable picture ({picture}); remove it")
            images.append(picture)
            labels.append(target.names.index(folder.name))
    found = np.array(images, dtype=np.uint8).reshape(-1, *target.shape)
    return found, np.array(labels, dtype=np.int64)


def _picture(file: Path, target: _Target) -> NDArray[np.uint8] | str:
    """Return the picture in its target's size and mode, or why it cannot be read."""
    from PIL import Image

    try:
        with Image.open(file) as opened:
            found = opened.convert(MODES[target.mode])
            if found.size != (target.width, target.height):
                size = target.width, target.height
                found = found.resize(size, Image.Resampling.BILINEAR)
            pixels = np.asarray(found, dtype=np.uint8)
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises what it likes at a file that is no picture.
        return f"{type(error).__name__}: {error}"
    return pixels if target.mode == "gray" else np.moveaxis(pixels, 2, 0)

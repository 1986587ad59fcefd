"""Image data sets of torchvision by name, from its own files on disk, downloaded where allowed.

    [data]
    source = "emnist"
    source_options = { split = "letters" }
    root = "data"

`cifar10` is also read from a folder or a tar of pictures (`cifar_pictures`), where `root` is one or
holds one. Images are uint8, [N, H, W] where they are gray and [N, 3, H, W] where they are not.
Numbers of classes and shapes stand here; nothing of them is read from the records.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.records import Records
from fl_shuffle.data.sources import cifar_pictures, idx_files
from fl_shuffle.data.sources.options import FIELD, require_known, text_option
from fl_shuffle.errors import DataError, require_choice

DATA_VARIABLE = "FL_SHUFFLE_DATA"
"""Names the folder that holds data sets where a configuration names none."""
EMNIST_CLASSES = {
    "balanced": 47, "byclass": 62, "bymerge": 47, "letters": 27, "digits": 10, "mnist": 10,
}  # fmt: skip
"""By split. `letters` counts from 1: class 0 stays empty."""

_CIFAR10_BATCHES = "cifar-10-batches-py"
"""torchvision's folder, which is read before any pictures beside it."""

_REMEDY = (
    "name the folder that holds its files (of MNIST the one that MNIST/raw lies in, or the files "
    f"themselves) with --data DIR, [data] root, or the variable {DATA_VARIABLE}"
)


@dataclass(frozen=True)
class ImageSet:
    """A class of torchvision.datasets, and what it holds.

    A part is asked for by `split`, "train" or "test", where the class takes that; else by `train`.
    """

    name: str
    classes: int
    shape: tuple[int, ...]
    by_split: bool = False


SETS = {
    "mnist": ImageSet("MNIST", 10, (28, 28)),
    "fashion-mnist": ImageSet("FashionMNIST", 10, (28, 28)),
    "kmnist": ImageSet("KMNIST", 10, (28, 28)),
    "qmnist": ImageSet("QMNIST", 10, (28, 28)),
    "emnist": ImageSet("EMNIST", 47, (28, 28)),
    "usps": ImageSet("USPS", 10, (16, 16)),
    "svhn": ImageSet("SVHN", 10, (3, 32, 32), by_split=True),
    "cifar10": ImageSet("CIFAR10", 10, (3, 32, 32)),
    "cifar100": ImageSet("CIFAR100", 100, (3, 32, 32)),
    "stl10": ImageSet("STL10", 10, (3, 96, 96), by_split=True),
}
"""By the names of `configuration.sections.TORCHVISION_SOURCES`."""


def read(section: DataSection) -> Records:
    """Return both parts of the set that `source` names. Raises `DataError` with the remedy."""
    found, options = SETS[section.source], section.source_options
    require_known(options, section.source, ("split",) if found.name == "EMNIST" else ())
    asked: dict[str, Any] = {}
    classes, split = found.classes, ""
    if found.name == "EMNIST":
        split = text_option(options, "split", "balanced")
        asked["split"] = require_choice(f"{FIELD}.split", split, EMNIST_CLASSES)
        classes = EMNIST_CLASSES[split]
    root = _root(section)
    if found.name == "CIFAR10" and not (root / _CIFAR10_BATCHES).is_dir():
        pictures = cifar_pictures.find(root)
        if pictures is not None:
            train, test = cifar_pictures.read(pictures)
            return Records(*train, *test, classes=classes)
    parts: list[tuple[NDArray[np.uint8], NDArray[np.int64]]] = []
    for part in ("train", "test"):
        which = {"split": part} if found.by_split else {"train": part == "train"}
        idx = idx_files.part_of(found.name, split, train=part == "train")
        images, labels = _part(section, found.name, root, {**which, **asked}, idx)
        if images.shape[1:] != found.shape:
            raise DataError(
                f"{section.source} in {root}: images of shape {images.shape[1:]} instead of "
                f"{found.shape}; remove its folder there to download it again"
            )
        parts.append((images, labels))
    (train_images, train_labels), (test_images, test_labels) = parts
    return Records(train_images, train_labels, test_images, test_labels, classes=classes)


def root_of(section: DataSection) -> Path:
    """Return `root`, else $FL_SHUFFLE_DATA, else `data/`, which alone is made where it is
    missing."""
    return Path(section.root or os.environ.get(DATA_VARIABLE, "") or "data")


def _root(section: DataSection) -> Path:
    """Return `root_of`. Raises `DataError` where a folder is named that is none."""
    named = section.root or os.environ.get(DATA_VARIABLE, "")
    if (
        named
        and not Path(named).is_dir()
        and not (section.source == "cifar10" and Path(named).is_file())
    ):
        raise DataError(f"data folder {named} does not exist or is not a folder; {_REMEDY}")
    return root_of(section)


def _part(
    section: DataSection,
    name: str,
    root: Path,
    asked: Mapping[str, Any],
    idx: idx_files.PartFiles | None,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images and labels of a part: as torchvision finds them below `root`, as IDX files
    under another name or elsewhere, or downloaded."""
    kind = getattr(import_torchvision_datasets(), name)
    try:
        return _arrays(kind(str(root), download=False, **asked))
    except Exception as error:  # torchvision raises what it likes at a file that is none of its own
        reason = _first_line(error)
    if idx is not None:
        # Sets of the same file names can lie in a folder: it is one's own where it bears the name,
        # or where the configuration names it beside the set.
        folders = [root / name / "raw", root / name, *[root] * bool(section.root)]
        found = [idx_files.find(folders, file) for file in idx]
        try:
            pixels, labels = (None if each is None else idx_files.read(each) for each in found)
        except ValueError as error:
            reason = str(error)
        else:
            if pixels is not None and labels is not None and len(pixels) == len(labels):
                return _plain(pixels, labels)
            if pixels is not None and labels is not None:
                reason = f"{found[0]} has {len(pixels):,} records, and {found[1]} {len(labels):,}"
            elif any(found):
                reason = f"beside {found[0] or found[1]} there is no {idx[found[0] is not None]}"
    try:
        return _arrays(kind(str(root), download=True, **asked))
    except Exception as error:  # any transport or filesystem failure has the same remedy
        raise DataError(
            f"{section.source} cannot be read from {root} ({reason}) and could not be "
            f"downloaded ({_first_line(error)}); remove torchvision's files of {name} there if "
            f"they are damaged, or {_REMEDY}"
        ) from None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def import_torchvision_datasets() -> Any:
    """Return `torchvision.datasets`, also beside a CPU-only torch.

    A torchvision built for CUDA registers fake kernels for two operators (`nms`, `qnms`) that its
    compiled library would define; beside a CPU-only torch that library does not load, and the plain
    import raises `RuntimeError`. Data sets need neither operator: where the import fails for
    exactly that reason they are declared first, and it goes through.
    """
    try:
        return import_module("torchvision.datasets")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
    return import_module("torchvision.datasets")


_declared: list[Any] = []  # the library object must stay alive, or its operators vanish


def _arrays(data_set: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images and labels that the set holds as arrays; channels come first."""
    images = np.asarray(data_set.data)
    return _plain(images, data_set.labels if hasattr(data_set, "labels") else data_set.targets)


def _plain(images: NDArray[Any], given: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    labels = np.asarray(given)
    if labels.ndim == 2:  # QMNIST: who wrote it, and more, beside the class
        labels = labels[:, 0]
    if images.ndim == 4 and images.shape[-1] == 3:
        images = images.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images, dtype=np.uint8), labels.astype(np.int64)

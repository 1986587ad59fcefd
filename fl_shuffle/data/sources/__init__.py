"""Records for a simulated federation: what sources there are, and which of their records test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.plugins import load_function
from fl_shuffle.configuration.sections import TORCHVISION_SOURCES, DataSection
from fl_shuffle.data.records import Records
from fl_shuffle.data.sources import (
    digits,
    files,
    gapminder,
    huggingface,
    image_sets,
    images,
)
from fl_shuffle.errors import DataError, InvalidValueError

SHIPPED = ("digits", *TORCHVISION_SOURCES)
"""Sources that read files of this machine; what is made of these may be kept on it."""

READERS: dict[str, Callable[[DataSection], Records]] = {
    "digits": lambda section: Records(*digits.read(), classes=10),
    "gapminder": gapminder.read,
    "files": files.read,
    "images": images.read,
    "huggingface": huggingface.read,
    **dict.fromkeys(TORCHVISION_SOURCES, image_sets.read),
}
STAMPED = ("digits", "gapminder", "files", "images", *TORCHVISION_SOURCES)
"""Sources that return the same while the files that they read stay as they are."""
WITHOUT_OPTIONS = ("digits", "gapminder")


def stamps_of(section: DataSection) -> tuple[tuple[object, ...], ...]:
    """Return the stamp of every file that the section's source may read: path, size, times, and
    which file it is.

    Nothing is read. Of a user's own source, and of a hub, it says nothing.
    """
    if section.source == "files":
        root = Path(section.root)
        named = [root] if root.is_file() else _files_below(root, depth=2)
    elif section.source == "images":
        named = _files_below(Path(section.root), depth=4) if section.root else []
    elif section.source in TORCHVISION_SOURCES:
        place = image_sets.root_of(section)
        named = [place] if place.is_file() else _files_below(place, depth=3)
    else:
        named = []
    found = []
    for path in named:
        with suppress(OSError):  # It is gone, and refused where it is read.
            known = path.stat()
            times = known.st_mtime_ns, known.st_ctime_ns
            found.append((str(path.resolve()), known.st_size, *times, known.st_ino))
    return tuple(found)


def _files_below(folder: Path, depth: int) -> list[Path]:
    """Return the files in folders of at most this depth, in a fixed order; none of what is no
    folder."""
    found: list[Path] = []
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return found
    for path in entries:
        if path.is_file():
            found.append(path)
        elif depth > 1 and path.is_dir():
            found += _files_below(path, depth - 1)
    return found


def load_records(section: DataSection) -> Records:
    """Return records of the section's source, with `validation` of the training part held out as
    the test part when asked. Raises `DataError` with the remedy when they cannot be had."""
    if section.source in WITHOUT_OPTIONS and section.source_options:
        raise InvalidValueError(
            "data.source_options", section.source_options, f"source {section.source!r} takes none"
        )
    reader = READERS.get(section.source)
    if reader is not None:
        records = reader(section)
    else:
        answer = load_function(section.source, "section", field="data.source")(section)
        if not isinstance(answer, Records):
            raise DataError(
                f"data.source = {section.source!r} returned {type(answer).__name__}; "
                "it must return fl_shuffle.data.Records"
            )
        records = answer
    _require_test_labels(records)
    _require_test_inputs(records)
    if not section.validation_fraction:
        if not len(records.test_labels):
            raise DataError(
                f"data.source = {section.source!r} has no test records: add some (they count "
                "as public), or hold private ones out with data.validation_fraction = 0.1"
            )
        return records
    held = held_out(section, records)
    out, keep = np.flatnonzero(held), np.flatnonzero(~held)
    owners = records.train_clients
    return replace(
        records,
        train_images=records.train_images[keep],
        train_labels=records.train_labels[keep],
        test_images=records.train_images[out],
        test_labels=records.train_labels[out],
        train_clients=None if owners is None else owners[keep],
    )


def held_out(section: DataSection, records: Records) -> NDArray[np.bool_]:
    """Return which training records [N] are held out: a share of all, or of each client's, who
    keeps one.

    That number depends on the numbers of records alone.
    """
    generator = np.random.Generator(np.random.Philox(key=[section.seed, 0x56414C]))
    order = generator.permutation(len(records.train_labels))
    held = np.zeros(len(order), dtype=bool)
    if records.train_clients is None or section.partition != "natural":
        held[order[: max(1, round(section.validation_fraction * len(order)))]] = True
        return held
    owners: NDArray[Any] = records.train_clients[order]
    _, owner, sizes = np.unique(owners, return_inverse=True, return_counts=True)
    by_owner = np.argsort(owner.reshape(-1), kind="stable")
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    share = np.repeat(np.minimum(np.round(section.validation_fraction * sizes), sizes - 1), sizes)
    held[order[by_owner[place < share]]] = True
    if not held.any():
        raise DataError(
            f"data.validation_fraction = {section.validation_fraction:g} holds no record out: "
            "clients "
            f"have at most {int(sizes.max())} records each; raise it"
        )
    return held


def _require_test_labels(records: Records) -> None:
    """Check only the source's own test records: they are public, as an error about them is."""
    labels = records.test_labels
    if records.regression:
        if not np.isfinite(labels).all():
            raise DataError(
                "test labels must be finite numbers; correct the test records (in a .csv, a blank "
                "line is also a record)"
            )
        return
    outside = (labels < 0) | (labels >= records.classes)
    if outside.any():
        raise DataError(
            f"test label {labels[outside][0]} is not in 0 .. {records.classes - 1}; "
            "correct it, or Records.classes"
        )


def _require_test_inputs(records: Records) -> None:
    """Check only the source's own test records, as above: one NaN among them ruins accuracy and
    loss."""
    inputs = records.test_images
    if inputs.dtype.kind not in "fc" or not len(inputs):
        return
    bad = np.asarray(~np.isfinite(inputs.reshape(len(inputs), -1)).all(axis=1))
    if bad.any():
        first = int(np.argmax(bad))
        raise DataError(
            f"{int(bad.sum()):,} of {len(bad):,} test records have inputs that are not finite "
            f"numbers; the first is test record {first}; correct them or leave them out"
        )

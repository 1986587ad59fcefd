"""Feature vectors kept on disk, so that the next run with the same images does not compute them.

They are as private as the images they were made of. So they lie in the user's own cache folder,
never in a run's directory: the folder has mode 700 and belongs to the user, the files have mode
600. What a file is called and what it holds follow from everything that the vectors depend on: the
images, the map and its options, the code, the libraries and the processor; so what is read is, bit
for bit, what would be computed. A file that was damaged, or not written to its end, does not have
the digest it begins with, and is computed anew.

`$FL_SHUFFLE_CACHE` names another folder, in which `features` is made, or is "off".
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import platform
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle.tasks.features import maps, strokes
from fl_shuffle.tasks.features.maps import FeatureMap, Features

log = logging.getLogger(__name__)

CACHE_VARIABLE: Final = "FL_SHUFFLE_CACHE"
OFF: Final = "off"
MOST_BYTES: Final = 2 << 30
"""Where all files together take more, those that were not used for longest go."""

_DIGEST: Final = 32
"""Bytes of the digest before a file's content."""
_SUFFIX: Final = ".features"
_UNFINISHED: Final = ".new-"
_ABANDONED: Final = 24 * 3600.0
"""Seconds after which a file that was not finished is nobody's."""
_PRIVATE_FOLDER: Final = 0o700
"""Only the owner reads or enters."""


def cache_folder() -> Path | None:
    """`features` below `$FL_SHUFFLE_CACHE`, else below `$XDG_CACHE_HOME`/fl-shuffle or
    ~/.cache/fl-shuffle; None where it is turned off. Raises `RuntimeError` without a home folder.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return None if named == OFF else Path(named) / "features"
    # A relative one counts as unset (XDG Base Directory Specification).
    base = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (
        (base if base.is_absolute() else Path("~/.cache").expanduser()) / "fl-shuffle" / "features"
    )


class CachedFeatures:
    """A feature map whose vectors are read from the cache folder, or computed and kept there.

    The map is fitted when it first has to compute. Vectors have the bits that the map gives.
    """

    def __init__(self, kind: FeatureMap) -> None:
        self.kind = kind
        self.data_dependent = kind.data_dependent
        self._images: NDArray[Any] | None = None
        self._fitted = False
        # Of images that are kept here, so that no other array takes their address.
        self._paths: dict[int, tuple[NDArray[Any], Path | None]] = {}

    def fit(self, images: NDArray[Any]) -> None:
        """Check the training images, and keep them for when they are needed."""
        self.kind.check(images)
        self._images, self._fitted = images, False
        self._paths.clear()

    def known(self, images: NDArray[Any]) -> bool:
        """Whether a file for these images is there; it may yet turn out to be damaged."""
        path = self._path(images)
        return path is not None and path.is_file()

    def transform(self, images: NDArray[Any]) -> Features:
        """float32 [N, dimension]."""
        path = self._path(images)
        shape = (len(images), self.kind.dimension)
        found = None if path is None else _read(path, shape)
        if found is not None:
            return found
        if not self._fitted and self._images is not None:
            self.kind.fit(self._images)
            self._fitted = True
        vectors = self.kind.transform(images)
        if path is not None:
            _write(path, vectors)
        return vectors

    def _path(self, images: NDArray[Any]) -> Path | None:
        """Where the vectors of these images lie, or would lie; None without a folder to use."""
        if id(images) not in self._paths:
            folder = _private_folder()
            path = None if folder is None else folder / (self._digest(images) + _SUFFIX)
            self._paths[id(images)] = images, path
        return self._paths[id(images)][1]

    def _digest(self, images: NDArray[Any]) -> str:
        digest = hashlib.blake2b(digest_size=_DIGEST)
        digest.update(json.dumps(_circumstances(self.kind), sort_keys=True).encode())
        for array in (images, self._images if self.data_dependent else None):
            if array is not None:
                digest.update(str((array.shape, array.dtype.str)).encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def _circumstances(kind: FeatureMap) -> Mapping[str, Any]:
    """What the vectors depend on beside the images."""
    sources = [inspect.getsource(module) for module in (maps, strokes)]
    return {
        "map": kind.kind,
        "options": {name: getattr(kind, name) for name in inspect.signature(type(kind)).parameters},
        "code": hashlib.sha256("".join(sources).encode()).hexdigest(),
        "libraries": [np.__version__, torch.__version__],
        "machine": [platform.node(), platform.machine(), torch.backends.cpu.get_cpu_capability()],
    }


def _private_folder() -> Path | None:
    """The cache folder, made if need be; None where it is off or not the user's alone."""
    try:
        folder = cache_folder()
        if folder is None:
            return None
        folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.getuid():
            log.warning("features are not kept: %s belongs to another user", folder)
            return None
        if stat.S_IMODE(found.st_mode) & 0o077:
            folder.chmod(_PRIVATE_FOLDER)
    except (OSError, RuntimeError) as error:
        log.warning("features are not kept: %s", error)
        return None
    return folder


def _read(path: Path, shape: tuple[int, int]) -> Features | None:
    """The file's vectors; None if it is missing or not what was written."""
    try:
        content = path.read_bytes()
        os.utime(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("features are computed anew: %s", error)
        return None
    body = memoryview(content)[_DIGEST:]
    if hashlib.blake2b(body, digest_size=_DIGEST).digest() != content[:_DIGEST]:
        log.warning("features are computed anew: %s is damaged", path)
        return None
    vectors = np.frombuffer(bytearray(body), np.float32)
    return vectors.reshape(shape) if vectors.size == shape[0] * shape[1] else None


def _write(path: Path, vectors: Features) -> None:
    """All of it or nothing, also where several processes write the same file."""
    body = np.ascontiguousarray(vectors, np.float32).data
    digest = hashlib.blake2b(body, digest_size=_DIGEST).digest()
    try:
        # Made with mode 600.
        number, name = tempfile.mkstemp(dir=path.parent, prefix=_UNFINISHED)
        try:
            with open(number, "wb") as file:
                file.write(digest)
                file.write(body)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _make_room(path)
    except OSError as error:
        log.warning("features are not kept: %s", error)


def _make_room(kept: Path) -> None:
    """Remove what was not used for longest until the rest fits; `kept` stays."""
    for path in kept.parent.glob(_UNFINISHED + "*"):
        if _last_used(path) < time.time() - _ABANDONED:
            path.unlink(missing_ok=True)
    files = sorted(kept.parent.glob("*" + _SUFFIX), key=_last_used, reverse=True)
    total = 0
    for path in files:
        try:
            total += path.stat().st_size
            if total > MOST_BYTES and path != kept:
                path.unlink()
        except FileNotFoundError:
            continue  # another process was faster


def _last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0

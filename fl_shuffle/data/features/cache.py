"""Feature vectors kept on disk, so that the next run with the same images does not compute them.

They are as private as the images they were made of. So they lie in the user's own cache folder
(`private_cache`), never in a run's directory. What a file is called and what it holds follow from
everything that the vectors depend on: the images, the map and its options, the code, the libraries
and the processor; so what is read is, bit for bit, what would be computed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle._internal.private_cache import PrivateCache, cache_folder
from fl_shuffle.data.features import (
    base,
    hog,
    hog_pictures,
    joined,
    leaves,
    patches,
    pca,
    pictures,
    raw,
    scattering,
    strokes,
)
from fl_shuffle.data.features.base import FeatureMap, FeatureRows

KEPT: Final = PrivateCache("features", ".features", 2 << 30)
_DIGEST: Final = 32
_CODE: Final = (
    *(base, hog, hog_pictures, joined, leaves, patches, pca, pictures, raw, scattering, strokes),
)
"""All modules that decide vectors."""


def features_folder() -> Path | None:
    """Return `features` in the cache folder; None where it is turned off."""
    base = cache_folder()
    return None if base is None else base / "features"


class CachedFeatures:
    """A feature map whose vectors are read from the cache folder, or computed and kept there.

    The map is fitted when it first has to compute. Vectors have the bits that the map gives.
    """

    def __init__(self, kind: FeatureMap) -> None:
        self.kind = kind
        self.data_dependent = kind.data_dependent
        self._images: NDArray[Any] | None = None
        self._fitted = False

    def fit(self, images: NDArray[Any]) -> None:
        """Check the training images, and keep them for when they are needed."""
        self.kind.check(images)
        self._images, self._fitted = images, False

    def transform(self, images: NDArray[Any]) -> FeatureRows:
        """Return float32 [N, dimension]."""
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
            KEPT.write(path, np.ascontiguousarray(vectors, np.float32).data.cast("B"))
        return vectors

    def _path(self, images: NDArray[Any]) -> Path | None:
        """Return where the vectors of these images lie, or would lie; None without a folder to
        use."""
        folder = features_folder()
        if folder is None or not KEPT.made(folder):
            return None
        return folder / (self._digest(images) + KEPT.suffix)

    def _digest(self, images: NDArray[Any]) -> str:
        digest = hashlib.blake2b(digest_size=_DIGEST)
        digest.update(json.dumps(_circumstances(self.kind), sort_keys=True).encode())
        for array in (images, self._images if self.data_dependent else None):
            if array is not None:
                digest.update(str((array.shape, array.dtype.str)).encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def _circumstances(kind: FeatureMap) -> Mapping[str, Any]:
    """Return what the vectors depend on beside the images."""
    sources = [inspect.getsource(module) for module in _CODE]
    return {
        "format": 3,
        "map": kind.kind,
        "options": kind.options,
        "code": hashlib.sha256("".join(sources).encode()).hexdigest(),
        "libraries": [np.__version__, torch.__version__],
        "machine": [platform.node(), platform.machine(), torch.backends.cpu.get_cpu_capability()],
    }


def _read(path: Path, shape: tuple[int, int]) -> FeatureRows | None:
    """Return the file's vectors; None if it is missing or not what was written."""
    body = KEPT.read(path)
    if body is None or len(body) != 4 * shape[0] * shape[1]:
        return None
    return np.frombuffer(body, np.float32).reshape(shape)

"""1,797 handwritten digits of 8 x 8 pixels (0 to 16), every fifth kept for testing.

The test images of UCI's Optical Recognition of Handwritten Digits (E. Alpaydin, C. Kaynak, 1998;
https://doi.org/10.24432/C50P49), licence CC BY 4.0, in `digits.json`: a format that Flower also
packs into the apps it sends out.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import DataError

FILE = Path(__file__).with_name("digits.json")
Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]


def read_all() -> Arrays:
    """Return every image [1797, 8, 8] and its label, in the source's order."""
    try:
        held = json.loads(FILE.read_text(encoding="ascii"))
        pixels = zlib.decompress(base64.b64decode(held["pixels"], validate=True))
        labels = np.array([int(label) for label in held["labels"]], dtype=np.int64)
        images = np.frombuffer(pixels, np.uint8).reshape(len(labels), 8, 8)
    except (OSError, ValueError, KeyError, zlib.error) as error:
        raise DataError(f"{FILE} cannot be read ({error}); reinstall fl-shuffle") from None
    return images, labels


def read() -> tuple[*Arrays, *Arrays]:
    images, labels = read_all()
    test = np.arange(len(labels)) % 5 == 4
    return images[~test], labels[~test], images[test], labels[test]

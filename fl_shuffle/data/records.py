"""What a data source returns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.data.owners import owner_names
from fl_shuffle.errors import DataError, require_integer

Images = NDArray[np.generic]
Labels = NDArray[Any]

UNDECLARED = 0
"""Stands for a number of classes, or of outputs, that the source has not declared."""


@dataclass(frozen=True)
class Records:
    """Train and test records: images (or rows of any shape) and their labels.

    Parameters
    ----------
    train_images, test_images : ndarray, shape (records, ...)
        Inputs. There may be no test records where `data.validation_fraction` holds some out.
    train_labels, test_labels : ndarray
        Classification: whole numbers of shape (records,) in 0 .. `classes` - 1. Regression: numbers
        of shape (records,) or (records, outputs).
    classes, outputs : int
        Number of classes, or of outputs. Exactly one is given.
    train_clients : ndarray, shape (records,), optional
        Whose each training record is, by number or name, for ``data.partition = "natural"``. It is
        kept as int64 if all are whole numbers ("3" and 3.0, too), else as texts.

    Raises
    ------
    DataError
        For shapes and types that do not fit, and for what is not declared.

    Notes
    -----
    `classes` or `outputs` is declared, never counted: it shapes the model that every client is
    sent, and must not depend on private labels. A training label outside of the classes (or NaN) is
    its holder's mistake: nobody is told, and the record counts as one without a finite gradient
    does.

    Who the clients are, and how many records each has, is public (budgets and noise follow from
    it); neighboring data sets differ in what a record says, never in whose it is. Test records are
    public.

    Examples
    --------
    >>> import numpy as np
    >>> from fl_shuffle.data import Records
    >>> images, labels = np.zeros((6, 8, 8)), np.array([0, 1, 2, 0, 1, 2])
    >>> Records(images[:4], labels[:4], images[4:], labels[4:], classes=3).size
    3
    """

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    classes: int = UNDECLARED
    outputs: int = UNDECLARED
    train_clients: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        if self.classes == UNDECLARED and self.outputs == UNDECLARED:
            raise DataError(
                "Records.classes is missing: declare how many classes the labels have, as "
                "Records(..., classes=10), or outputs=1 for regression; it is published with the "
                "model's shape and is not read from the labels"
            )
        if UNDECLARED not in (self.classes, self.outputs):
            raise DataError(
                "Records.classes and Records.outputs are both given: classes are for "
                "classification, outputs for regression; leave one out"
            )
        name = "outputs" if self.regression else "classes"
        require_integer(f"Records.{name}", self.size, minimum=1)
        for part in ("train", "test"):
            self._require(part, getattr(self, f"{part}_images"), getattr(self, f"{part}_labels"))
        if not len(self.train_labels):
            raise DataError("train data: there must be at least one record")
        if self.test_images.shape[1:] != self.train_images.shape[1:]:
            raise DataError(
                f"test images have shape {self.test_images.shape[1:]}, training ones "
                f"{self.train_images.shape[1:]}; they must be the same"
            )
        owners = self.train_clients
        if owners is not None and not isinstance(owners, np.ndarray):
            raise DataError(
                f"Records.train_clients is a {type(owners).__name__}; it must be a NumPy array "
                "with one client per record"
            )
        if owners is not None and (owners.shape != (len(self.train_labels),)):
            raise DataError(
                f"Records.train_clients has shape {owners.shape}; it must name one client for each "
                f"of the {len(self.train_labels)} training records"
            )
        if owners is not None:
            named = owner_names(owners, lambda number: f"Records.train_clients[{number}]")
            object.__setattr__(self, "train_clients", named)

    @property
    def regression(self) -> bool:
        """Whether labels are numbers to predict."""
        return self.outputs != UNDECLARED

    @property
    def size(self) -> int:
        """How many numbers the model returns for a record: classes or outputs, as declared."""
        return self.outputs if self.regression else self.classes

    def targets(self, labels: Labels) -> Labels:
        """Return labels as a model is trained on: int64 [N], or float32 [N, outputs]."""
        if not self.regression:
            return labels.astype(np.int64)
        return np.ascontiguousarray(labels, dtype=np.float32).reshape(len(labels), self.outputs)

    def fingerprint(self) -> str:
        """Return a digest of every byte of the data.

        Never publish it (see `fl_shuffle.runs.resume`): an attacker who knows all records but one
        can find that one by trying values.
        """
        digest = hashlib.blake2b(str(self.size).encode(), digest_size=16)
        arrays = [self.train_images, self.train_labels, self.test_images, self.test_labels]
        if self.train_clients is not None:
            arrays.append(self.train_clients)
        for array in arrays:
            digest.update(str((array.shape, array.dtype)).encode())
            whole = np.ascontiguousarray(array)
            # Numbers where they are: a copy of millions of records takes time and room.
            digest.update(whole.data if whole.dtype.kind in "biuf" else whole.tobytes())
        return digest.hexdigest()

    def _require(self, part: str, images: Images, labels: Labels) -> None:
        for what, array in (("images", images), ("labels", labels)):
            # Whatever the annotations say: a user's own source may return anything.
            if not isinstance(array, np.ndarray) or not array.ndim:
                raise DataError(
                    f"Records.{part}_{what} is a {type(array).__name__}; it must be a NumPy array "
                    "with one row per record"
                )
        wanted: list[tuple[int, ...]] = [(len(images),)]
        if self.regression:
            wanted = [(len(images), self.outputs)] + (wanted if self.outputs == 1 else [])
        if labels.shape not in wanted:
            raise DataError(
                f"{part} data: {len(images)} images and labels of shape {labels.shape}; there must "
                f"be one label per image, of shape {wanted[-1]}"
            )
        kind = np.floating if self.regression else np.integer
        if not np.issubdtype(labels.dtype, kind):
            raise DataError(
                f"{part} labels must be {'numbers (float)' if self.regression else 'whole numbers'}"
                f", got {labels.dtype}"
            )

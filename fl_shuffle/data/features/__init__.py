"""Feature maps: records in, what a model takes out. `make_features` builds a configuration's.

A map is anything with `fit`, `transform` and `data_dependent`, see `Features`. Each kind that ships
has a file; `kinds` knows them by name, `joined` puts several side by side, and `cache` keeps the
vectors of the costly ones on disk.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle._internal.plugins import load_attribute
from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.features.kinds import build_features, join_features
from fl_shuffle.data.features.pixels import Pixels
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.trials import Subject, try_rows
from fl_shuffle.trials.check import POOL

ROUNDING: Final = 1e-4
"""Vectors may differ by this share of a usual one, where they are computed in another company."""


class Features(Protocol):
    """A map from records to model inputs; `data_dependent` says that its fit uses private data."""

    data_dependent: bool

    def fit(self, images: NDArray[Any]) -> object: ...

    def transform(self, images: NDArray[Any]) -> NDArray[np.float32]: ...


class AsGiven:
    """The records themselves, as float32: for a user's own data."""

    data_dependent = False

    def fit(self, images: NDArray[Any]) -> None:
        """Do nothing: there is nothing to fit."""

    def transform(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """Return float32 copies."""
        return np.ascontiguousarray(images, dtype=np.float32)


def make_features(section: DataSection, shape: tuple[int, ...]) -> Features:
    """Return the section's feature map for records of `shape`. Raises `InvalidValueError` for bad
    options.

    A user's own is `module:function`, called with the options, and returns a `Features`.
    """
    options = dict(section.feature_options)
    if section.features in ("none", "pixels"):
        if options:
            what = f"features {section.features!r} takes none"
            raise InvalidValueError("data.feature_options", options, what)
        return AsGiven() if section.features == "none" else Pixels(shape)
    if isinstance(section.features, str) and ":" in section.features:
        return _own_features(section.features, options)
    channels = {2: 1, 3: shape[0]}.get(len(shape), 0)
    if channels != (1 if len(shape) == 2 else 3) or shape[-2] != shape[-1]:
        raise InvalidValueError(
            "data.features", named(section),
            "needs square images, gray [H, H] or in color [3, H, H], the records have shape "
            f"{shape}; use pixels, none, or your own module:function",
        )  # fmt: skip
    if not isinstance(section.features, str):
        return join_features(section.features, shape[-1], channels, options)
    return build_features(
        section.features, **{"image_side": shape[-1], "channels": channels, **options}
    )


def named(section: DataSection) -> str:
    """Return the section's features in words: one name, or several with commas."""
    return section.features if isinstance(section.features, str) else ", ".join(section.features)


def _own_features(path: str, options: dict[str, Any]) -> Features:
    found = load_attribute(path, field="data.features")
    try:
        inspect.signature(found).bind(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"data.features = {path!r} cannot be called with data.feature_options = {options}: "
            f"{error}"
        ) from None
    features: Features = found(**options)
    for part in ("fit", "transform", "data_dependent"):
        if not hasattr(features, part):
            raise ConfigError(
                f"data.features = {path!r} returned {type(features).__name__} without {part!r}; it "
                "must have fit, transform and data_dependent"
            )
    return features


def try_features(section: DataSection, shape: tuple[int, ...], public: NDArray[Any]) -> None:
    """Have a user's own map describe public records, alone and beside others.

    A map that does not call itself data-dependent must describe records equally, whether it was
    fitted on public records or on changed ones. No private record takes part: a refusal, which the
    server is told, would depend on it. Raises `InvalidValueError`.
    """
    if not isinstance(section.features, str) or ":" not in section.features or not len(public):
        return
    subject = Subject("data.features", section.features)

    def rows_of(features: Features) -> Callable[[Sequence[int]], NDArray[Any]]:
        # A copy each time: it may be changed in place.
        return lambda company: vectors_of(
            section, features, public[np.array(company) % len(public)]
        ).numpy()

    few = public[: 2 * POOL]
    fitted = make_features(section, shape)
    fitted.fit(few.copy())
    try_rows(
        rows_of(fitted), subject, rounding=ROUNDING,
        remedy="describe every record by itself, with numbers that are fixed in advance",
    )  # fmt: skip
    if fitted.data_dependent:
        return
    other = make_features(section, shape)
    other.fit(few // 2 if few.dtype.kind in "iu" else 3 * few + 1)
    one, two = (torch.from_numpy(rows_of(each)(range(len(few)))) for each in (fitted, other))
    if not torch.allclose(one, two, rtol=ROUNDING, atol=ROUNDING * float(one.abs().max())):
        raise subject.refused(
            "gives other features of the same records after a fit on other records, and does "
            "not declare it",
            "set data_dependent = True, and the run will say that its fit is not covered",
        )


def vectors_of(section: DataSection, features: Features, images: NDArray[Any]) -> Tensor:
    """Return what the section's map makes of images, float32 [N, ...]; raises `ConfigError` for a
    map that returns something else."""
    vectors: Any = features.transform(images)
    if (
        not isinstance(vectors, np.ndarray)
        or vectors.dtype != np.float32
        or len(vectors) != len(images)
    ):
        found = (
            f"{vectors.dtype} of shape {vectors.shape}"
            if isinstance(vectors, np.ndarray)
            else type(vectors).__name__
        )
        raise ConfigError(
            f"data.features = {section.features!r}: transform returned {found}; it must return a "
            f"float32 NumPy array with {len(images)} rows"
        )
    # Where they lie as they are read, engines need no copy of their own.
    return torch.from_numpy(np.ascontiguousarray(vectors))

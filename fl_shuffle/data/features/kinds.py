"""The kinds of feature maps by name, and what each one's options are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, Final

from fl_shuffle.data.features.base import FIELD, PIXEL_MAXIMUM, Described, FeatureMap, refused
from fl_shuffle.data.features.hog import OrientedGradients
from fl_shuffle.data.features.hog_pictures import PictureGradients
from fl_shuffle.data.features.joined import Joined
from fl_shuffle.data.features.patches import PatchFeatures
from fl_shuffle.data.features.pca import PrincipalComponents
from fl_shuffle.data.features.raw import RawPixels
from fl_shuffle.data.features.scattering import Scattering
from fl_shuffle.errors import InvalidValueError, require_choice, suggestion

_GRAY: Final[Mapping[str, Callable[..., FeatureMap]]] = {
    "raw": RawPixels,
    "pca": PrincipalComponents,
    "hog": OrientedGradients,
}
"""Kinds for written characters: gray images of the sides of `PIXEL_MAXIMUM`."""
_PICTURES: Final[Mapping[str, Callable[..., FeatureMap]]] = {
    "hog": PictureGradients,
    "scattering": Scattering,
    "patches": PatchFeatures,
}
"""Kinds for pictures of any side, gray or in color; `hog` where the other one has no such side."""
FEATURE_KINDS: Final = tuple(dict.fromkeys([*_GRAY, *_PICTURES]))


def build_features(
    kind: str, *, image_side: int = 28, channels: int = 1, **options: Any
) -> FeatureMap:
    """Return the feature map `kind` for images of a side with 1 or 3 channels; `InvalidValueError`
    for bad options, and for images that it does not take."""
    require_choice("data.features", kind, FEATURE_KINDS)
    written = channels == 1 and image_side in PIXEL_MAXIMUM
    given = {"image_side": image_side}
    if kind in _GRAY and (written or kind not in _PICTURES):
        if channels != 1:
            what = f"takes gray images alone, these have {channels} channels; use hog, scattering, "
            raise InvalidValueError("data.features", kind, what + "patches, pixels, or none")
        maker = _GRAY[kind]
    else:
        maker, given["channels"] = _PICTURES[kind], channels
    known = [name for name in signature(maker).parameters if name != "channels"]
    for name, value in options.items():
        if name not in known:
            why = f"is no option of {kind!r}, which takes {', '.join(known)}"
            if name in signature(_PICTURES.get(kind, maker)).parameters:
                why += f", for gray images of {image_side} x {image_side}"
            raise refused(name, value, why, suggestion(name, known))
    return maker(**given, **options)


def join_features(
    kinds: Sequence[str], image_side: int, channels: int, options: Mapping[str, Any]
) -> FeatureMap:
    """Return the maps side by side. `options` has the table of each one's own; `InvalidValueError`
    for those of other names."""
    for name, own in options.items():
        if name not in kinds:
            why = f"is none of the kinds {', '.join(kinds)}: of several kinds, each has its table"
            raise refused(name, own, why, suggestion(name, kinds))
        if not isinstance(own, Mapping):
            raise refused(name, own, f"must be a table of the options of {name!r}")
    side = {"image_side": image_side, "channels": channels}
    parts: list[Described] = []
    for kind in kinds:
        part = build_features(kind, **{**side, **options.get(kind, {})})
        if not isinstance(part, Described):
            what = "cannot be joined: its vectors have no fixed norm"
            raise InvalidValueError("data.features", kind, what)
        if part.shape != (parts or [part])[0].shape:
            raise refused(kind, options[kind], f"{FIELD}.{kind}.image_side is another one's")
        parts.append(part)
    return Joined(parts)

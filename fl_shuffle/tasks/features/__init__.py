"""Feature maps: images in, float32 vectors out; and the vectors kept on disk."""

from fl_shuffle.tasks.features.maps import (
    FEATURE_KINDS,
    PIXEL_MAXIMUM,
    FeatureMap,
    build_features,
)

__all__ = ["FEATURE_KINDS", "PIXEL_MAXIMUM", "FeatureMap", "build_features"]

"""Feature maps: shapes, bounds, determinism, invariances, and what bad options answer."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_shuffle.data.features.maps import build_features
from fl_shuffle.data.features.strokes import draw_strokes
from fl_shuffle.errors import DataError, InvalidValueError, RunError


@pytest.fixture(scope="module")
def strokes() -> NDArray[np.uint8]:
    return (draw_strokes(60) * 255).round().astype(np.uint8)


@pytest.mark.parametrize(
    ("kind", "options", "dimension"),
    [
        ("raw", {}, 784),
        ("pca", {"components": 12}, 12),
        ("hog", {"cells": [7, 3], "orientations": 6, "upright": False}, 6 * (49 + 9)),
        ("hog", {"components": 20, "fourier": 30}, 30),
    ],
)
def test_shape_bound_and_determinism(strokes, kind, options, dimension):
    features, again = (build_features(kind, **options).fit(strokes) for _ in range(2))
    vectors = features.transform(strokes)
    assert (features.kind, features.dimension) == (kind, dimension)
    assert vectors.shape == (60, dimension) and vectors.dtype == np.float32
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    assert norms.min() > 0 and norms.max() <= (1 + 1e-5 if kind == "hog" else 28.0)
    assert np.array_equal(vectors, again.transform(strokes))


def test_pca_against_singular_value_decomposition(strokes):
    vectors = build_features("pca", components=5).fit(strokes).transform(strokes)
    flat = strokes.reshape(60, -1) / 255.0
    left, singular, _ = np.linalg.svd(flat - flat.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(vectors), np.abs(left * singular)[:, :5], atol=1e-4)
    np.testing.assert_allclose(vectors.mean(axis=0), 0.0, atol=1e-5)


def test_pca_needs_fit_and_two_images_of_one_shape_and_type(strokes):
    with pytest.raises(RunError, match="fit"):
        build_features("pca").transform(strokes)
    for images, message in (
        (strokes[:1], "at least 2"),
        (strokes[:, :8], "shape"),
        (strokes.astype(np.float32), "dtype"),
    ):
        with pytest.raises(DataError, match=message):
            build_features("pca").fit(images)


def test_hog_record_by_record(strokes):
    """One image's vector does not depend on its neighbours in the batch: the map is per record."""
    features = build_features("hog", components=40)
    together = features.transform(strokes)
    alone = np.concatenate([features.transform(strokes[i : i + 1]) for i in range(8)])
    np.testing.assert_allclose(together[:8], alone, atol=2e-5)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("sift", {}, "data.features"),
        ("hog", {"orientation": 8}, "did you mean 'orientations'"),
        ("raw", {"cells": [7]}, "no option of 'raw'"),
        ("hog", {"orientations": 8.0}, "whole number"),
        ("hog", {"cells": [0]}, "data.feature_options.cells"),
        ("hog", {"components": 393}, "data.feature_options.components"),
        ("hog", {"fourier": 31}, "data.feature_options.fourier.*even"),
        ("hog", {"gamma": 0.7}, "no effect without fourier"),
    ],
)
def test_bad_options(kind, options, message):
    with pytest.raises(InvalidValueError, match=message):
        build_features(kind, **options)


def test_a_pixel_out_of_range_is_an_error_among_public_images_only():
    features, images = build_features("raw", image_side=8), np.full((1, 8, 8), 17, np.uint8)
    full = features.fit(images).transform(np.full((1, 8, 8), 16, np.uint8))
    assert np.array_equal(features.transform(images), full)
    with pytest.raises(DataError, match="at most 16"):
        features.require_range(images)

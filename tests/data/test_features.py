"""Feature maps: shapes, bounds, determinism, invariances, and what bad options answer."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_shuffle.data.features.maps import FEATURE_KINDS, build_features
from fl_shuffle.data.features.strokes import draw_strokes
from fl_shuffle.data.sources.digits import read_all
from fl_shuffle.errors import DataError, InvalidValueError, RunError


@pytest.fixture(scope="module")
def strokes() -> NDArray[np.uint8]:
    return (draw_strokes(60) * 255).round().astype(np.uint8)


@pytest.fixture(scope="module")
def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    return read_all()


OPTIONS = [
    ("raw", {}, 784),
    ("pca", {"components": 12}, 12),
    ("hog", {}, 392),
    ("hog", {"cells": [7, 3], "orientations": 6, "upright": False}, 6 * (49 + 9)),
    ("hog", {"components": 50}, 50),
    ("hog", {"components": 20, "fourier": 30}, 30),
]


@pytest.mark.parametrize(("kind", "options", "dimension"), OPTIONS)
def test_shape_bound_and_determinism(strokes, kind, options, dimension):
    features = build_features(kind, **options).fit(strokes)
    vectors = features.transform(strokes)
    assert features.kind == kind
    assert features.dimension == dimension
    assert vectors.shape == (60, dimension)
    assert vectors.dtype == np.float32
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    assert norms.max() <= (1 + 1e-5 if kind == "hog" else 28.0)
    assert norms.min() > 0
    again = build_features(kind, **options).fit(strokes).transform(strokes)
    assert np.array_equal(vectors, again)


def test_pca_against_singular_value_decomposition(strokes):
    vectors = build_features("pca", components=5).fit(strokes).transform(strokes)
    flat = strokes.reshape(60, -1) / 255.0
    left, singular, _ = np.linalg.svd(flat - flat.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(vectors), np.abs(left * singular)[:, :5], atol=1e-4)
    np.testing.assert_allclose(vectors.mean(axis=0), 0.0, atol=1e-5)


def test_pca_needs_fit_and_two_images(strokes):
    with pytest.raises(RunError, match="fit"):
        build_features("pca").transform(strokes)
    with pytest.raises(DataError, match="at least 2"):
        build_features("pca").fit(strokes[:1])


def test_hog_record_by_record(strokes):
    """One image's vector does not depend on its neighbours in the batch: the map is per record."""
    features = build_features("hog", components=40)
    together = features.transform(strokes)
    alone = np.concatenate([features.transform(strokes[i : i + 1]) for i in range(8)])
    np.testing.assert_allclose(together[:8], alone, atol=2e-5)


def test_hog_pose_is_normalised(strokes):
    """Shifting an image hardly moves its upright descriptor, and much moves the plain one."""
    shifted = np.roll(strokes, (2, -2), axis=(1, 2))
    roomy = np.flatnonzero(
        (strokes[:, -2:].max(axis=(1, 2)) == 0) & (strokes[:, :, :2].max(axis=(1, 2)) == 0)
    )
    assert len(roomy) > 30
    moved = {}
    for upright in (True, False):
        features = build_features("hog", upright=upright)
        change = features.transform(strokes[roomy]) - features.transform(shifted[roomy])
        moved[upright] = np.linalg.norm(change, axis=1).max()
    assert moved[True] < 0.02
    assert moved[False] > 0.3


@pytest.mark.parametrize("kind", ["raw", "hog"])
def test_small_digits(digits, kind):
    """On scikit-learn's 8 x 8 digits the nearest class mean is right far more often than chance."""
    images, labels = digits
    features = build_features(kind, image_side=8).transform(images)
    means = np.stack([features[:1000][labels[:1000] == c].mean(axis=0) for c in range(10)])
    distances = ((features[1000:, None] - means[None]) ** 2).sum(axis=2)
    accuracy = (distances.argmin(axis=1) == labels[1000:]).mean()
    assert accuracy > {"raw": 0.8, "hog": 0.9}[kind]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("sift", {}, "data.features"),
        ("hog", {"orientation": 8}, "did you mean 'orientations'"),
        ("raw", {"cells": [7]}, "no option of 'raw'"),
        ("hog", {"orientations": 8.0}, "whole number"),
        ("hog", {"cells": [0]}, "data.feature_options.cells"),
        ("hog", {"upright": 1}, "data.feature_options.upright"),
        ("hog", {"components": 393}, "data.feature_options.components"),
        ("hog", {"ridge": float("nan")}, "data.feature_options.ridge"),
        ("hog", {"fourier": 31}, "data.feature_options.fourier.*even"),
        ("hog", {"gamma": 0.7}, "no effect without fourier"),
        ("raw", {"shift": float("inf")}, "data.feature_options.shift"),
        ("pca", {"components": 65, "image_side": 8}, "data.feature_options.components"),
        ("raw", {"image_side": 32}, "data.feature_options.image_side"),
    ],
)
def test_bad_options(kind, options, message):
    with pytest.raises(InvalidValueError, match=message):
        build_features(kind, **options)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 8, 8), np.uint8), "shape"),
        (np.zeros((28, 28), np.uint8), "shape"),
        (np.zeros((2, 28, 28), np.float32), "dtype"),
    ],
)
@pytest.mark.parametrize("kind", FEATURE_KINDS)
def test_bad_images(kind, images, message):
    with pytest.raises(DataError, match=message):
        build_features(kind).fit(images)


def test_a_pixel_out_of_range_is_an_error_among_public_images_only():
    features, images = build_features("raw", image_side=8), np.full((1, 8, 8), 17, np.uint8)
    full = features.fit(images).transform(np.full((1, 8, 8), 16, np.uint8))
    assert np.array_equal(features.transform(images), full)
    with pytest.raises(DataError, match="at most 16"):
        features.require_range(images)

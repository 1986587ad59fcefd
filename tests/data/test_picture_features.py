"""Features of pictures: hog in color, scattering, patches, and several of them side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.features import make_features
from fl_shuffle.data.features import patches as patch_filters
from fl_shuffle.data.features import pictures as picture_maps
from fl_shuffle.data.features.base import Described
from fl_shuffle.data.features.cache import CachedFeatures
from fl_shuffle.data.features.kinds import build_features
from fl_shuffle.data.features.leaves import dead_leaves
from fl_shuffle.errors import DataError, FlShuffleError, InvalidValueError

SIDE = 16
SMALL: dict[str, dict[str, Any]] = {
    "hog": {"cells": [4], "orientations": 4, "components": 40},
    "scattering": {"components": 40},
    "patches": {"pairs": 6, "components": 20},
}
KINDS = tuple(SMALL)


@pytest.fixture(scope="module", autouse=True)
def few_leaves() -> Iterator[None]:
    """A reference of fewer pictures: what is tested holds for every one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture_maps, "LEAVES", 250)
        patch.setattr(patch_filters, "_SOURCES", 100)
        patch.setattr(patch_filters, "_PATCHES", 2000)
        yield


@pytest.fixture(scope="module")
def small(few_leaves) -> dict[str, Described]:
    """One map of each kind: their references take a second to compute."""
    found = {}
    for kind, options in SMALL.items():
        found[kind] = build_features(kind, image_side=SIDE, channels=3, **options)
    return found  # type: ignore[return-value]


def pictures(count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Noise, and what breaks bounds if anything does: black, white, one pixel, stripes."""
    drawn = np.random.default_rng(seed).integers(0, 256, (count, 3, SIDE, SIDE), dtype=np.uint8)
    drawn[0], drawn[1], drawn[2] = 0, 255, 0
    drawn[2, 0, 0, 0] = 255
    drawn[3] = 255 * (np.arange(SIDE) % 2)
    return drawn


def joined(**options: Any) -> Described:
    section = DataSection(features=KINDS, feature_options={**SMALL, **options})
    found = make_features(section, (3, SIDE, SIDE))
    assert isinstance(found, Described)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_any_picture_have_norm_one_or_zero(small, kind):
    vectors = small[kind].transform(pictures(30)).astype(np.float64)
    assert vectors.shape == (30, small[kind].dimension)
    norms = np.linalg.norm(vectors, axis=1)
    assert np.isfinite(vectors).all()
    assert np.all((np.abs(norms - 1) < 1e-5) | (norms == 0))
    assert (norms > 0).sum() >= 28


@pytest.mark.parametrize("kind", KINDS)
def test_mirror_image_has_the_same_vector(small, kind):
    given = pictures(20)
    there = small[kind].transform(given)
    back = small[kind].transform(np.ascontiguousarray(given[..., ::-1]))
    np.testing.assert_allclose(there, back, atol=2e-4)
    # Not because everything has it: upside down it is another one.
    assert (
        np.abs(there - small[kind].transform(np.ascontiguousarray(given[:, :, ::-1]))).max() > 0.1
    )


@pytest.mark.parametrize("kind", ["hog", "scattering"])
def test_without_flip_mirror_images_differ(kind):
    features = build_features(kind, image_side=SIDE, channels=3, **SMALL[kind], flip=False)
    given = pictures(6)
    mirrored = features.transform(np.ascontiguousarray(given[..., ::-1]))
    assert np.abs(features.transform(given) - mirrored).max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_record_changes_a_records_vector(small, kind):
    """Neither those that the map was fitted on, nor those beside it."""
    given, others = pictures(8), pictures(8, seed=9)
    alone = small[kind].fit(given[:1]).transform(given[:1])
    for beside in (others, np.zeros_like(others), np.full_like(others, 255)):
        company = np.concatenate([given[:1], beside])
        found = small[kind].fit(company).transform(company)[:1]
        np.testing.assert_allclose(found, alone, atol=2e-4)
    again = build_features(kind, image_side=SIDE, channels=3, **SMALL[kind]).fit(others)
    assert np.array_equal(again.transform(given), small[kind].transform(given))
    assert not again.data_dependent


def test_joined_vectors_are_the_parts_with_norm_one(small):
    given = pictures(10)
    vectors = joined().transform(given)
    parts = np.concatenate([small[kind].transform(given) for kind in KINDS], axis=1)
    np.testing.assert_allclose(vectors, parts / np.sqrt(3), atol=1e-6)
    assert np.linalg.norm(vectors.astype(np.float64), axis=1).max() <= 1 + 1e-5


@pytest.mark.slow
def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    given = pictures(250)
    found = []
    for cores in (1, 2):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        found.append(joined(patches={"pairs": 3, "components": 5}).transform(given))
    assert np.array_equal(found[0], found[1])


def test_joined_features_count_every_record_once():
    told: list[tuple[int, int]] = []
    features = joined()
    features.progress = lambda done, total: told.append((done, total))
    features.transform(pictures(250))
    assert [total for _, total in told] == [250, 250] and told[-1][0] == 250


def test_joined_features_are_cached_by_their_options(tmp_path, monkeypatch):
    monkeypatch.setenv("FL_SHUFFLE_CACHE", str(tmp_path))
    given = pictures(6)
    first = CachedFeatures(joined()).transform(given)
    assert np.array_equal(CachedFeatures(joined()).transform(given), first)
    assert len(list(tmp_path.rglob("*.features"))) == 1
    CachedFeatures(joined(hog={**SMALL["hog"], "color": False})).transform(given)
    assert len(list(tmp_path.rglob("*.features"))) == 2


def test_gray_pictures_of_another_side_are_described():
    gray = np.random.default_rng(1).integers(0, 256, (5, 20, 20), dtype=np.uint8)
    for kind, options in SMALL.items():
        features = build_features(kind, image_side=20, channels=1, **options)
        assert np.linalg.norm(features.transform(gray), axis=1) == pytest.approx(1.0, abs=1e-5)


def test_hog_in_color_sees_what_gray_does_not():
    """Red and green of the same lightness: only color tells the halves apart."""
    picture = np.zeros((1, 3, SIDE, SIDE), np.uint8)
    picture[0, 0, :, :8], picture[0, 1, :, 8:] = 157, 80
    color, gray = (
        build_features("hog", image_side=SIDE, channels=3, cells=[4], components=0, color=color)
        for color in (True, False)
    )
    assert color.dimension == 3 * (8 * 16 + 16) and gray.dimension == 8 * 16
    assert np.abs(color.transform(picture)).max() > 0.05
    flat = gray.transform(np.full_like(picture, 90))
    assert not flat.any()


@pytest.mark.parametrize(
    ("features", "options", "shape", "words"),
    [
        ("hog", {"color": True}, (40, 40), "color.*three channels"),
        ("hog", {"color": "yes"}, (3, 32, 32), "color.*true or false"),
        ("hog", {"cells": [17]}, (3, 32, 32), "cells"),
        ("hog", {"flip": True}, (28, 28), "flip.*no option of 'hog'.*28 x 28"),
        ("hog", {"ridge": float("nan")}, (3, 32, 32), "ridge"),
        ("hog", {"ridge": float("inf")}, (3, 32, 32), "ridge"),
        ("hog", {"ridge": 0.0}, (3, 32, 32), "ridge"),
        ("hog", {"components": 251}, (3, 32, 32), "components"),
        ("patches", {"pairs": 0}, (3, 32, 32), "pairs"),
        ("patches", {"components": True}, (3, 32, 32), "components"),
        ("scattering", {}, (3, 6, 6), "8 to 128 pixels"),
        ("scattering", {}, (3, 33, 33), "even"),
        ("scattering", {}, (3, 200, 200), "8 to 128 pixels.*resize"),
        ("scattering", {}, (4, 32, 32), "square images"),
        ("scattering", {}, (3, 32, 30), "square images"),
        ("scattering", {}, (32,), "square images"),
        ("raw", {}, (3, 32, 32), "gray images alone"),
        ("pca", {}, (3, 32, 32), "gray images alone"),
        (("hog", "patches"), {"components": 5}, (3, 32, 32), "none of the kinds hog, patches"),
        (("hog", "patches"), {"hog": 5}, (3, 32, 32), "table of the options of 'hog'"),
        (("hog", "patches"), {"patches": {"side": 5}}, (3, 32, 32), "no option of 'patches'"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(features, options, shape, words):
    with pytest.raises(InvalidValueError, match=words) as refusal:
        make_features(DataSection(features=features, feature_options=options), shape)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "must not be empty"),
        (["hog", "hog"], r"features\[1\].*twice"),
        (["hog", "raw"], r"features\[1\]"),
        (["sift"], r"features\[0\]"),
        ([1], r"features\[0\]"),
        ("sift", "features"),
        (3, "features"),
    ],
)
def test_lists_that_cannot_be_joined_are_refused(value, words):
    with pytest.raises(FlShuffleError, match=words):
        parse_config({"data": {"features": value}})
    assert parse_config({"data": {"features": ["hog"]}}).data.features == ("hog",)


def test_pictures_of_another_shape_or_type_are_refused(small):
    for wrong, words in (
        (pictures(4)[:, :1], "shape"),
        (pictures(4)[0], "shape"),
        (pictures(4).astype(np.float32) * np.nan, "dtype"),
    ):
        with pytest.raises(DataError, match=words):
            small["hog"].transform(wrong)


def test_leaves_are_the_same_whoever_draws_them():
    one, two = (dead_leaves(3, 20, 3, 32) for _ in range(2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, dead_leaves(4, 20, 3, 32))
    assert one.min() >= 0.0 and one.max() <= 1.0 and one.std() > 0.1
    gray = dead_leaves(3, 20, 1, 32)
    np.testing.assert_allclose(
        gray[:, 0], np.tensordot([0.299, 0.587, 0.114], one, axes=(0, 1)), atol=0.005
    )

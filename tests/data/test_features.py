"""Feature maps: shapes, bounds, determinism, invariances, what bad options answer; and vectors on
disk: the same bits, private to the user, and never an obstacle."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_shuffle._internal import private_cache
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.data import Records, task
from fl_shuffle.data.features.base import FeatureMap
from fl_shuffle.data.features.cache import CachedFeatures
from fl_shuffle.data.features.hog import OrientedGradients
from fl_shuffle.data.features.kinds import build_features
from fl_shuffle.data.features.strokes import draw_strokes
from fl_shuffle.data.run_cache import run_cache
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
    if kind == "hog":
        # Where there is nothing to describe there is no direction either.
        assert norms.min() > 1 - 1e-5
        assert not features.transform(np.zeros_like(strokes[:3])).any()


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
    """One image's vector does not depend on its neighbors in the batch: the map is per record."""
    features = build_features("hog", components=40)
    together = features.transform(strokes)
    alone = np.concatenate([features.transform(strokes[i : i + 1]) for i in range(8)])
    np.testing.assert_allclose(together[:8], alone, atol=2e-5)


def test_bad_options():
    for kind, options, message in (
        ("sift", {}, "data.features"),
        ("hog", {"orientation": 8}, "did you mean 'orientations'"),
        ("raw", {"cells": [7]}, "no option of 'raw'"),
        ("hog", {"orientations": 8.0}, "whole number"),
        ("hog", {"cells": [0]}, "data.feature_options.cells"),
        ("hog", {"components": 393}, "data.feature_options.components"),
        ("hog", {"fourier": 31}, "data.feature_options.fourier.*even"),
        ("hog", {"gamma": 0.7}, "no effect without fourier"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            build_features(kind, **options)


def test_a_pixel_out_of_range_is_an_error_among_public_images_only():
    features, images = build_features("raw", image_side=8), np.full((1, 8, 8), 17, np.uint8)
    full = features.fit(images).transform(np.full((1, 8, 8), 16, np.uint8))
    assert np.array_equal(features.transform(images), full)
    with pytest.raises(DataError, match="at most 16"):
        features.require_range(images)


def above(_section: object) -> Records:
    """A private image with a pixel above the full one, and no other."""
    images = np.full((40, 8, 8), 3, np.uint8)
    images[7, 2, 2] = 17
    return Records(images, np.zeros(40, np.int64), images[:3], np.zeros(3, np.int64), classes=10)


@pytest.mark.parametrize("seed", range(6))
def test_no_private_pixel_ends_a_run_whoever_is_held_out(seed: int) -> None:
    """Held-out records are private: one in two of these draws has that image among them."""
    data = {
        "source": f"{__name__}:above",
        "clients": 4,
        "features": "raw",
        "validation_fraction": 0.5,
    }
    found = task.load_task(parse_config({"data": {**data, "seed": seed}}))
    assert float(found.inputs.max()) <= 1.0 and float(found.test_inputs.max()) <= 1.0


GENERATOR = np.random.default_rng(1)
IMAGES = GENERATOR.integers(0, 17, (40, 8, 8), dtype=np.uint8)
OTHERS = GENERATOR.integers(0, 17, (30, 8, 8), dtype=np.uint8)
PCA = ("pca", {"components": 5})
HOG = ("hog", {"cells": [2], "orientations": 3})
Map = tuple[str, dict]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(private_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    run_cache.forget()
    return tmp_path / "cache" / "features"


def plain(chosen: Map) -> FeatureMap:
    return build_features(chosen[0], image_side=8, **chosen[1])


def cached(chosen: Map, images: NDArray[np.uint8] = IMAGES) -> CachedFeatures:
    features = CachedFeatures(plain(chosen))
    features.fit(images)
    return features


def never(*_: object) -> None:
    raise AssertionError("computed, where it was there to be read")


@pytest.mark.parametrize("chosen", [PCA, HOG], ids=lambda chosen: chosen[0])
def test_what_is_read_is_what_would_be_computed(
    chosen: Map, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain(chosen).fit(IMAGES).transform(OTHERS)
    written = cached(chosen).transform(OTHERS)
    monkeypatch.setattr(type(plain(chosen)), "transform", never)
    read = cached(chosen).transform(OTHERS)
    assert read.dtype == written.dtype == np.float32
    assert np.array_equal(written, expected) and np.array_equal(read, expected)
    read[0] = 0.0  # the caller's own


def test_another_image_option_or_training_set_has_another_file(folder: Path) -> None:
    changed = IMAGES.copy()
    changed[7, 3, 3] ^= 1
    for chosen, fit, images in (
        *((PCA, IMAGES, IMAGES), (PCA, IMAGES, OTHERS), (PCA, changed, OTHERS)),
        *((("pca", {"components": 4}), IMAGES, IMAGES), (HOG, IMAGES, IMAGES)),
        *((HOG, IMAGES, changed), (HOG, changed, IMAGES)),
    ):
        cached(chosen, fit).transform(images)
    # A map that learns nothing does not care what it was shown.
    assert len(list(folder.iterdir())) == 6


def test_a_folder_that_cannot_be_used_is_no_obstacle(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain(PCA).fit(IMAGES).transform(IMAGES)
    folder.parent.write_text("a file")
    assert np.array_equal(cached(PCA).transform(IMAGES), expected)
    assert "not kept" in caplog.text
    folder.parent.unlink()
    monkeypatch.setattr(private_cache.os, "getuid", lambda: os.stat("/").st_uid + 1)
    assert np.array_equal(cached(PCA).transform(IMAGES), expected)
    assert "another user" in caplog.text
    assert not list(folder.iterdir())


def records(_section: object) -> Records:
    return Records(IMAGES, np.zeros(40, np.int64), OTHERS, np.zeros(30, np.int64), classes=10)


def test_a_task_reads_them_and_keeps_none_of_a_users_own_source(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def load(source: str) -> task.Task:
        data = {"source": source, "clients": 4, "records_per_client": 3, "features": "hog"}
        config = parse_config({"data": {**data, "feature_options": {"cells": [2]}}})
        return task.load_task(config, said.append)

    said: list[str] = []
    load(f"{__name__}:records")
    assert not folder.exists()
    said.clear()
    words = ["reading digits", "features hog of 12 records"]
    first = load("digits")
    assert said == words and len(list(folder.iterdir())) == 2
    run_cache.forget()
    monkeypatch.setattr(OrientedGradients, "transform", never)
    again = load("digits")
    assert said == words * 2
    assert first.inputs.equal(again.inputs) and first.test_inputs.equal(again.test_inputs)
    load("digits")
    assert said == words * 2  # this process has them


def test_progress_says_what_is_done_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines = [100.0], list[str]()
    monkeypatch.setattr(task.time, "monotonic", lambda: clock[0])
    progress = task._progress_line("hog", lines.append)
    for seconds, done in ((1.0, 100), (2.5, 250), (3.0, 300), (5.0, 500), (10.0, 1000)):
        clock[0] = 100.0 + seconds
        progress(done, 1000)
    assert lines == [
        "features hog: 250 of 1,000 records, about 8 s left",
        "features hog: 500 of 1,000 records, about 5 s left",
    ]


def test_features_count_every_image() -> None:
    features, told = OrientedGradients(image_side=8), list[tuple[int, int]]()
    images = np.random.default_rng(0).integers(0, 17, (450, 8, 8), dtype=np.uint8)
    plain = features.transform(images)
    features.progress = lambda done, total: told.append((done, total))
    assert np.array_equal(features.transform(images), plain)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len(told) == 3 and told[-1] == (450, 450)

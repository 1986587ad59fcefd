"""Feature vectors on disk: the same bits, private to the user, and never an obstacle."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_shuffle import private_cache
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.data import Records, task
from fl_shuffle.data.features import maps
from fl_shuffle.data.features.cache import CachedFeatures
from fl_shuffle.data.features.maps import FeatureMap, build_features

GENERATOR = np.random.default_rng(1)
IMAGES = GENERATOR.integers(0, 17, (40, 8, 8), dtype=np.uint8)
OTHERS = GENERATOR.integers(0, 17, (30, 8, 8), dtype=np.uint8)
PCA = ("pca", {"components": 5})
HOG = ("hog", {"cells": [2], "orientations": 3})
Map = tuple[str, dict]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(private_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    task.forget_data()
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
        data = {"source": source, "clients": 4, "records": 3, "features": "hog"}
        config = parse_config({"data": {**data, "feature_options": {"cells": [2]}}})
        return task.load_task(config, said.append)

    said: list[str] = []
    load(f"{__name__}:records")
    assert not folder.exists()
    said.clear()
    words = ["reading digits", "features hog of 12 records"]
    first = load("digits")
    assert said == words and len(list(folder.iterdir())) == 2
    task.forget_data()
    monkeypatch.setattr(maps.OrientedGradients, "transform", never)
    again = load("digits")
    assert said == words * 2
    assert first.inputs.equal(again.inputs) and first.test_inputs.equal(again.test_inputs)
    load("digits")
    assert said == words * 2  # this process has them

"""Feature vectors on disk: the same bits, private to the user, and never an obstacle."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_shuffle import private_cache
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.data import task
from fl_shuffle.data.features import maps
from fl_shuffle.data.features.cache import CachedFeatures
from fl_shuffle.data.features.maps import FeatureMap, build_features
from fl_shuffle.private_cache import CACHE_VARIABLE

GENERATOR = np.random.default_rng(1)
IMAGES = GENERATOR.integers(0, 17, (40, 8, 8), dtype=np.uint8)
OTHERS = GENERATOR.integers(0, 17, (30, 8, 8), dtype=np.uint8)
MAPS = [("pca", {"components": 5}), ("hog", {"cells": [2], "orientations": 3})]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def make(kind: str, options: dict) -> FeatureMap:
    return build_features(kind, image_side=8, **options)


def cached(kind: str, options: dict, images: NDArray[np.uint8] = IMAGES) -> CachedFeatures:
    features = CachedFeatures(make(kind, options))
    features.fit(images)
    return features


def never(*_: object) -> None:
    raise AssertionError("computed, where it was there to be read")


@pytest.mark.parametrize(("kind", "options"), MAPS)
def test_what_is_read_is_what_would_be_computed(
    kind: str, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make(kind, options)
    plain.fit(IMAGES)
    first = cached(kind, options)
    written = [first.transform(images) for images in (IMAGES, OTHERS)]
    monkeypatch.setattr(type(plain), "transform", never)
    again = cached(kind, options)
    read = [again.transform(images) for images in (IMAGES, OTHERS)]
    monkeypatch.undo()
    for found, same, images in zip(written, read, (IMAGES, OTHERS), strict=True):
        assert found.dtype == same.dtype == np.float32
        assert np.array_equal(found, plain.transform(images))
        assert np.array_equal(found, same)
        same[0] = 0.0  # the caller's own


def test_another_image_option_or_training_set_has_another_file(folder: Path) -> None:
    changed = IMAGES.copy()
    changed[7, 3, 3] ^= 1
    names = set()
    for kind, options, fit, images in (
        ("pca", {"components": 5}, IMAGES, IMAGES),
        ("pca", {"components": 5}, IMAGES, OTHERS),
        ("pca", {"components": 5}, changed, OTHERS),
        ("pca", {"components": 4}, IMAGES, IMAGES),
        ("hog", {"cells": [2]}, IMAGES, IMAGES),
        ("hog", {"cells": [3]}, IMAGES, changed),
    ):
        cached(kind, options, fit).transform(images)
        names = {path.name for path in folder.iterdir()}
    assert len(names) == 6
    # A map that learns nothing does not care what it was shown.
    cached("hog", {"cells": [2]}, changed).transform(IMAGES)
    assert {path.name for path in folder.iterdir()} == names


@pytest.mark.parametrize("damage", ["cut", "bit", "empty"])
def test_a_damaged_file_is_computed_anew(
    damage: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = cached(*MAPS[0]).transform(IMAGES)
    [file] = folder.iterdir()
    content = bytearray(file.read_bytes())
    if damage == "cut":
        content = content[:-4]
    elif damage == "bit":
        content[-1] ^= 1
    else:
        content.clear()
    file.write_bytes(content)
    assert np.array_equal(cached(*MAPS[0]).transform(IMAGES), expected)
    assert "damaged" in caplog.text
    caplog.clear()
    assert np.array_equal(cached(*MAPS[0]).transform(IMAGES), expected)
    assert caplog.text == ""


def test_a_folder_that_cannot_be_used_is_no_obstacle(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = make(*MAPS[0]).fit(IMAGES).transform(IMAGES)
    folder.parent.write_text("a file")
    assert np.array_equal(cached(*MAPS[0]).transform(IMAGES), expected)
    assert "not kept" in caplog.text
    folder.parent.unlink()
    monkeypatch.setattr(private_cache.os, "getuid", lambda: os.stat("/").st_uid + 1)
    assert np.array_equal(cached(*MAPS[0]).transform(IMAGES), expected)
    assert "another user" in caplog.text
    assert not list(folder.iterdir())


def test_a_task_reads_them(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    base = {
        "data": {
            "source": "digits",
            "clients": 4,
            "records": 3,
            "features": "hog",
            "feature_options": {"cells": [2]},
        },
        "model": {"kind": "linear"},
        "privacy": {"clip_norm": 1.0},
    }
    config = parse_config(base)
    said: list[str] = []
    task.forget_data()
    first = task.load_task(config, said.append)
    assert said == ["reading digits", "features hog of 12 records"]
    assert len(list(folder.iterdir())) == 2
    task.forget_data()
    monkeypatch.setattr(maps.OrientedGradients, "transform", never)
    again = task.load_task(config, said.append)
    assert said[2:] == ["reading digits", "features hog of 12 records"]
    assert first.inputs.equal(again.inputs)
    assert first.test_inputs.equal(again.test_inputs)
    task.load_task(config, said.append)
    assert len(said) == 4  # this process has them
    task.forget_data()


def records(_section: object) -> object:
    from fl_shuffle.data import Records

    return Records(IMAGES, np.zeros(40, np.int64), OTHERS, np.zeros(30, np.int64), classes=10)


def test_records_of_a_users_own_source_are_not_kept(folder: Path) -> None:
    base = {
        "data": {
            "source": f"{__name__}:records",
            "clients": 4,
            "features": "pca",
            "feature_options": {"components": 3},
        },
        "model": {"kind": "linear"},
        "privacy": {"clip_norm": 1.0},
    }
    task.forget_data()
    task.load_task(parse_config(base))
    assert not folder.exists()
    task.forget_data()

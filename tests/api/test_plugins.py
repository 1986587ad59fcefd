"""Names that installed packages offer: found, recorded as paths, and refused when ambiguous."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fl_shuffle import plugins
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.errors import ConfigError, InvalidValueError

OFFERED = {
    "fl_shuffle.models": [("resnet", "their_package.models:resnet")],
    "fl_shuffle.data_sources": [("survey", "their_package.data:survey")],
    "fl_shuffle.features": [("spectra", "their_package.features:spectra")],
    "fl_shuffle.randomizers": [("skellam", "their_package.noise:skellam")],
    "fl_shuffle.losses": [("huber", "their_package.losses:huber")],
    "fl_shuffle.metrics": [("recall", "their_package.scores:recall")],
    "fl_shuffle.analyzers": [("median", "one:median"), ("median", "two:median")],
}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(*, group: str) -> list[EntryPoint]:
        return [EntryPoint(name, value, group) for name, value in OFFERED.get(group, [])]

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)


def test_a_name_stands_for_its_path() -> None:
    names = {
        "model.kind": "resnet", "data.source": "survey", "data.features": "spectra",
        "privacy.randomizer": "skellam", "model.loss": "huber", "model.metrics": "recall",
    }  # fmt: skip
    paths = dict(pair for group in OFFERED.values() for pair in group)
    for key, name in names.items():
        section, field = key.split(".")
        found = getattr(getattr(resolve_config({}, {key: name}), section), field)
        assert found == paths[name]
    with pytest.raises(InvalidValueError, match="resnet"):  # lists what is offered
        resolve_config({"model": {"kind": "resnt"}})


def test_a_name_offered_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="one:median and two:median"):
        resolve_config({"server": {"analyzer": "median"}})


def test_a_folder_here_stands_in_for_nothing_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, here = tmp_path / "installed", tmp_path / "here"
    for place in (installed, here):
        (place / "found_twice").mkdir(parents=True)
        (place / "found_twice" / "__init__.py").write_text(f"where = {place.name!r}\n")
    (here / "found_here.py").write_text("where = 'here'\n")
    (here / "fl_shuffle" / "pages" / "server").mkdir(parents=True)
    for name in ("__init__", "pages/__init__", "pages/server/__init__", "pages/server/app"):
        (here / "fl_shuffle" / f"{name}.py").write_text("app = 'another'\n")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed)])
    for name in ("found_twice", "found_here"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(sys.modules, "fl_shuffle.pages.server.app", raising=False)
    assert plugins.load_attribute("found_twice:where", field="app.server") == "installed"
    assert plugins.load_attribute("found_here:where", field="app.server") == "here"
    own = resolve_config({}).app.server
    assert plugins.load_attribute(own, field="app.server") != "another"

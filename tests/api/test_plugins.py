"""Names that installed packages offer: found, recorded as paths, and refused when ambiguous."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fl_shuffle import plugins
from fl_shuffle.configuration.reading import SETTINGS, resolve_config, value_of
from fl_shuffle.errors import ConfigError, InvalidValueError

GROUPED = {
    key: f"fl_shuffle.{each.own}"
    for key, each in SETTINGS.items()
    if each.own not in ("", "module")
}


def offer(patch: pytest.MonkeyPatch, **paths: str) -> None:
    """Have installed packages offer names, each in every group of parts, as these paths."""

    def entry_points(*, group: str) -> list[EntryPoint]:
        assert group in GROUPED.values()
        return [EntryPoint("own", path, group) for path in paths.values()]

    patch.setattr("importlib.metadata.entry_points", entry_points)


def test_a_name_stands_for_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(GROUPED) == 7
    offer(monkeypatch, one="their_package.parts:own")
    for key in GROUPED:
        assert value_of(resolve_config({}, {key: "own"}), key) == "their_package.parts:own"
        with pytest.raises(InvalidValueError, match="own"):  # lists what is offered
            resolve_config({}, {key: "onw"})


def test_a_name_offered_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, one="one:part", two="two:part")
    with pytest.raises(ConfigError, match="one:part and two:part"):
        resolve_config({"server": {"analyzer": "own"}})


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

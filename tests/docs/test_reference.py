"""The configuration page names every setting, with the default it really has."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from fl_shuffle.configuration.sections import Config
from tests.architecture.test_limits import ROOT

PAGE = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", re.MULTILINE)


def shown(value: Any) -> str:
    """A default as the page writes it: as in TOML, and texts bare."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f"`{value}`" if value != "" else '`""`'


def written() -> dict[str, dict[str, str]]:
    """Section -> key -> default, as the page has them."""
    parts = re.split(r"^## (\w+)$", PAGE, flags=re.MULTILINE)[1:]
    return {
        name: {key: default for key, default, _ in ROW.findall(text)}
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def test_the_page_has_every_setting_and_its_default() -> None:
    config = Config()
    real = {
        section.name: {
            field.name: shown(getattr(getattr(config, section.name), field.name))
            for field in dataclasses.fields(getattr(config, section.name))
        }
        for section in dataclasses.fields(config)
    }
    assert written() == real


def test_every_setting_is_explained() -> None:
    rows = ROW.findall(PAGE)
    assert len(rows) > 60
    assert all(len(what) > 5 for _, _, what in rows)

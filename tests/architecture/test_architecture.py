"""docs/architecture.md: its picture is the code's."""

from __future__ import annotations

import pytest

from tests.architecture.drawing import PAGE, arrows, drawing, needed, page_with, reachable

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_picture_is_the_codes() -> None:
    assert page_with(drawing(), TEXT) == TEXT, "redraw: python -m tests.architecture.drawing"


def test_left_out_arrows_are_implied() -> None:
    graph = arrows()
    drawn = needed(graph)
    assert graph["accounting.bounds"] >= {"accounting.engine", "accounting.laws"}
    assert drawn["accounting.bounds"] == {"accounting.engine"}
    for source in graph:
        assert reachable(source, drawn) == reachable(source, graph)


def test_rooms_that_import_each_other_are_refused() -> None:
    with pytest.raises(AssertionError, match="imports itself"):
        needed({"a": {"b"}, "b": {"a"}})

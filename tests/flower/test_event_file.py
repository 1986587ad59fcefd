"""Events of a run in another process: each is read once, in order, and only when it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fl_shuffle.errors import RunError
from fl_shuffle.flower.event_file import EventReader, append_event, lease


@pytest.fixture(autouse=True)
def held(tmp_path: Path) -> Iterator[None]:
    with lease(tmp_path):
        yield


def test_events_are_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "events"
    reader = EventReader(path)
    assert reader.unread() == []
    append_event(path, {"round": 1})
    append_event(path, {"round": 2})
    assert reader.unread() == [{"round": 1}, {"round": 2}]
    assert reader.unread() == []
    append_event(path, {"round": 3})
    assert reader.unread() == [{"round": 3}]


def test_half_an_event_waits_for_its_other_half(tmp_path: Path) -> None:
    whole, growing = tmp_path / "whole", tmp_path / "growing"
    append_event(whole, "first")
    append_event(whole, "second")
    written = whole.read_bytes()
    seen = []
    reader = EventReader(growing)
    for end in range(len(written) + 1):
        growing.write_bytes(written[:end])
        seen.append(reader.unread())
    assert [events for events in seen if events] == [["first"], ["second"]]
    assert seen[-1] == ["second"]


def test_who_has_no_reader_any_more_stops(tmp_path: Path) -> None:
    """It died, and its folder may be gone with it."""
    folder = tmp_path / "own"
    folder.mkdir()
    with lease(folder):
        append_event(folder / "events", 1)
    for _ in range(2):
        with pytest.raises(RunError, match="the command that started this run has ended"):
            append_event(folder / "events", 2)
        for path in [*folder.iterdir()]:
            path.unlink()
    assert not (folder / "events").exists()

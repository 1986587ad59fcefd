"""Events of a run in another process: each is read once, in order, and only when it is whole."""

from __future__ import annotations

from pathlib import Path

from fl_shuffle.flower.event_file import EVENTS, EventReader, append_event
from fl_shuffle.runs import RunFinished, observer_of, unobserved


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


def test_who_watches_is_the_grids_or_the_files(tmp_path: Path) -> None:
    class Grid:
        observer = print

    assert observer_of(Grid(), {EVENTS: "elsewhere"}) is print
    assert observer_of(object(), {}) is unobserved
    assert observer_of(object(), {EVENTS: ""}) is unobserved
    path = tmp_path / "events"
    event = RunFinished({"rounds": 3})
    observer_of(object(), {EVENTS: str(path)})(event)
    assert EventReader(path).unread() == [event]

"""What a process keeps of its runs: one value of a kind, by content and run."""

from __future__ import annotations

import threading

import pytest

from fl_shuffle.data.run_cache import RunCache


def test_value_is_kept_until_content_or_run_changes() -> None:
    cache, made = RunCache(), list[str]()

    def get(content: str, run: int | None = None) -> int:
        def make() -> int:
            made.append(content)
            return len(made)

        return cache.get("data", content, make, run=run)

    assert [get("a", 1), get("a", 1), get("a"), get("b", 1), get("a", 1), get("a", 2)] == [
        1, 1, 1, 2, 3, 4,
    ]  # fmt: skip
    # A value that was made for no run is no run's.
    assert [get("c"), get("c"), get("c", 1)] == [5, 5, 6]
    cache.forget()
    assert get("c", 1) == 7


def test_old_value_is_dropped_before_the_new_one_is_made() -> None:
    cache = RunCache()
    cache.get("data", "old", object)

    def fail() -> None:
        assert "data" not in cache._kept and "task" in cache._kept
        raise OSError("no such file")

    cache.get("task", "old", object)
    with pytest.raises(OSError):
        cache.get("data", "new", fail)
    assert "data" not in cache._kept


def test_threads_share_one_value() -> None:
    cache, made, found = RunCache(), list[int](), list[object]()
    inside = threading.Event()

    def make() -> object:
        made.append(1)
        inside.wait(timeout=5.0)
        # Values are made of values of other kinds, in the same thread.
        return cache.get("data", "own", object)

    threads = [
        threading.Thread(target=lambda: found.append(cache.get("parts", "own", make)))
        for _ in range(4)
    ]
    for each in threads:
        each.start()
    inside.set()
    for each in threads:
        each.join()
    assert len(made) == 1 and len(set(map(id, found))) == 1 and len(found) == 4

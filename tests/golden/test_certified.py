"""Numbers that users' caches hold are those that the code gives."""

from __future__ import annotations

import json

import pytest

from fl_shuffle.accounting.bounds import VERSION
from tests.golden import certified


def test_certified_numbers_are_those_of_this_version() -> None:
    known = json.loads(certified.FILE.read_text(encoding="utf-8"))
    assert known["version"] == VERSION, "run python -m tests.golden.certified"
    found = certified.epsilons()
    assert found.keys() == known["rounds"].keys()
    assert certified.moved(found, known["rounds"]) == [], "raise VERSION in accounting/bounds"


def test_moved_number_without_a_new_version_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = json.loads(certified.FILE.read_text(encoding="utf-8"))
    name = next(iter(known["rounds"]))
    other = {**known["rounds"], name: [1.000001 * value for value in known["rounds"][name]]}
    monkeypatch.setattr(certified, "epsilons", lambda: other)
    with pytest.raises(SystemExit, match=f"numbers of version {VERSION} have moved"):
        certified.main()
    assert json.loads(certified.FILE.read_text(encoding="utf-8")) == known

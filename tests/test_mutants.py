"""The player of the faults of `mutants.toml` sees what it should."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tests import mutants

ALL = mutants.mutants()


def test_an_edit_that_does_not_fit_is_told() -> None:
    for changed in ({"old": "what nobody wrote"}, {"must_fail": ("tests/a.py::b",)}):
        assert mutants.NO_LONGER_FITS in str(replace(ALL[0], **changed).why_not())  # type: ignore[arg-type]


TWICE = """
class One:
    def step(self):
        return 1 + 1

class Other:
    @property
    def step(self):
        return 1 + 1
"""


def test_edit_is_made_in_its_function_alone() -> None:
    mutant = replace(ALL[0], function="Other.step", old="1 + 1", new="2")
    assert mutant.applied(TWICE).count("1 + 1") == 1
    assert mutant.applied(TWICE).rstrip().endswith("return 2")
    assert replace(mutant, function="Other", old="@property", new="").applied(TWICE)
    for changed in ({"function": ""}, {"function": "step"}, {"old": "1"}, {"function": "One.no"}):
        assert len(replace(mutant, **changed).places(TWICE)) != 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ({"code": 1, "failed": ["tests/a.py::b[1]"]}, "noticed"),
        ({"code": 0, "failed": []}, "NOT NOTICED by tests/a.py::b"),
        ({"code": 1, "failed": ["tests/a.py::other"]}, "NOT NOTICED by tests/a.py::b"),
        ({"code": 2, "failed": []}, "could not be played: pytest ended with 2"),
        (None, "did not come to its end"),
    ],
)
def test_a_fault_is_noticed_only_by_the_tests_that_it_names(
    outcome: dict[str, object] | None, said: str
) -> None:
    assert mutants.verdict(replace(ALL[0], must_fail=("tests/a.py::b",)), outcome) == said


PLAYED = """
from dataclasses import replace
from tests import mutants

right = next(each for each in mutants.mutants() if each.file == "fl_shuffle/budgets.py")
assert mutants.play([right], jobs=1) == []
(found,) = mutants.play([replace(right, new=right.old)], jobs=1)
assert "NOT NOTICED" in found
"""
"""One that is noticed, and one that changes nothing and is not."""


@pytest.mark.slow
def test_a_fault_is_played() -> None:
    # In a process of its own: a play is a fork, and what other tests have started here (gRPC, Ray)
    # has threads, whose locks would never be free in the child.
    subprocess.run([sys.executable, "-c", PLAYED], cwd=mutants.ROOT, check=True, timeout=500)

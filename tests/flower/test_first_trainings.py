"""When the first clients of a simulation fail alike, and when somebody's records may be why."""

from __future__ import annotations

import pytest

from fl_shuffle.errors import ProgramError
from fl_shuffle.flower.first_trainings import FirstTrainings


def raised(error: Exception) -> Exception:
    """An exception that was raised here: always in the same line."""
    try:
        raise error
    except Exception as found:
        return found


@pytest.mark.parametrize(("clients", "few"), [(1, 1), (2, 2), (3, 3), (4, 3), (1000, 3)])
def test_as_many_as_there_are_and_three_at_most_are_a_mistake(clients: int, few: int) -> None:
    first = FirstTrainings(clients)
    for number in range(few - 1):
        first.tell(raised(ValueError(f"record {number}")))
    with pytest.raises(ProgramError, match=f"the first {few} clients all failed alike: .*last"):
        first.tell(raised(ValueError("the last")))
    first.tell(raised(ValueError("told once")))


@pytest.mark.parametrize("other", [None, KeyError("another")])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_who_ends_otherwise_makes_it_no_mistake(place: int, other: Exception | None) -> None:
    """Wherever among the first it comes; nor do all later ones, who fail alike."""
    first = FirstTrainings(10)
    for number in range(10):
        error = other if number == place else ValueError("a record's")
        first.tell(None if error is None else raised(error))

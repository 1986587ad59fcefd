"""Many rounds: what was executed, who took part when, and what it costs together.

Events are data; a client's history is how often it met each type of round; equal rounds are
composed by repetition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_shuffle.lazy import lazy_names

if TYPE_CHECKING:
    from fl_shuffle.accounting.rounds.equal_rounds import compose_equal_rounds
    from fl_shuffle.accounting.rounds.events import ClientClass, Column, RoundEvent, Spend
    from fl_shuffle.accounting.rounds.participation_history import ParticipationHistory
    from fl_shuffle.accounting.rounds.round_library import RoundLibrary, RoundType

__all__ = [
    "ClientClass",
    "Column",
    "ParticipationHistory",
    "RoundEvent",
    "RoundLibrary",
    "RoundType",
    "Spend",
    "compose_equal_rounds",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_shuffle.accounting.rounds.equal_rounds": ("compose_equal_rounds",),
        "fl_shuffle.accounting.rounds.events": ("ClientClass", "Column", "RoundEvent", "Spend"),
        "fl_shuffle.accounting.rounds.participation_history": ("ParticipationHistory",),
        "fl_shuffle.accounting.rounds.round_library": ("RoundLibrary", "RoundType"),
    },
)

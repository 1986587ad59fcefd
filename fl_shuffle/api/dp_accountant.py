"""Shuffled reports as an event of Google's dp-accounting, and an accountant that knows it.

Optional: dp-accounting must be installed, and nothing else of this package imports this module.
"""

from __future__ import annotations

from typing import Any

import attr
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.privacy_accountant import NeighboringRelation, PrivacyAccountant

from fl_shuffle.api.bounds import to_dp_accounting
from fl_shuffle.errors import FlShuffleError, NotApplicableError


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ShuffledReportsDpEvent(dp_event.DpEvent):  # type: ignore[misc]
    """A locally randomized report of each of some clients, in random order.

    `question` is what `fl_shuffle.bound` is asked about one round: `clients`, `randomizer` and its
    parameters, or `epsilon0` and `delta0` alone; neither a target nor `rounds`. The event is about
    replacing all that one client reports on.

        event = ShuffledReportsDpEvent.of(epsilon0=1.0, clients=10_000)
    """

    question: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, **question: Any) -> ShuffledReportsDpEvent:
        """The event of this question. Raises `NotApplicableError` for one that names rounds."""
        if "rounds" in question:
            raise NotApplicableError("rounds: compose the event, or SelfComposedDpEvent(event, n)")
        return cls(tuple(sorted(question.items())))


class ShuffleAccountant(pld_privacy_accountant.PLDAccountant):  # type: ignore[misc]
    """Google's accountant of privacy loss distributions, which knows shuffled reports as well.

    They compose with Gaussian mechanisms and the other events that it supports for REPLACE_ONE, the
    only neighbouring relation there is for them. Equal rounds that are composed at once
    (`compose(event, count)`) cost less to work out, and no more. `discretization` is that of the
    distributions, in nats.
    """

    def __init__(self, discretization: float = 1e-4) -> None:
        super().__init__(NeighboringRelation.REPLACE_ONE, discretization)
        self._pld: Any
        self._step = discretization

    def _maybe_compose(self, event: dp_event.DpEvent, count: int, do_compose: bool) -> Any:
        if not isinstance(event, ShuffledReportsDpEvent):
            return super()._maybe_compose(event, count, do_compose)
        try:
            law = to_dp_accounting(
                discretization=self._step, rounds=max(1, count), **dict(event.question)
            )
        except FlShuffleError as error:
            return PrivacyAccountant.CompositionErrorDetails(
                invalid_event=event, error_message=str(error)
            )
        if do_compose:
            self._pld = self._pld.compose(law)
        return None

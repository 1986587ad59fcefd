"""Who may take part in a round: clients whose limits it keeps when others are left out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fl_shuffle._internal.arrays import Mask, Vector
from fl_shuffle.accounting.accountant import Accountant, Preview


def exceeding(preview: Preview, limits: Vector | None) -> Mask:
    """Return which of the round's clients would exceed their `limits`, shape (n,).

    `limits` is None where nobody has one.
    """
    if limits is None:
        return np.zeros_like(preview.present)
    # `~(... <= ...)` also takes out a client whose epsilon is NaN.
    return np.asarray(preview.present & ~(preview.client_epsilons() <= limits))


def allowed_round(
    accountant: Accountant,
    round_number: int,
    asked: Mask,
    limits: Vector | None,
    absent: Callable[[Mask], int],
) -> Preview:
    """Return the round of those of the `asked` clients that stay within their `limits`.

    `absent` says how many honest reports of a batch of clients are planned not to arrive. They
    count as reports that hide nobody, so that a round is not thrown away because of them.

    Who would exceed among all of them would exceed among fewer, who hide it less. So all who exceed
    leave at once, and the others are asked again until nobody exceeds: nobody is left out who could
    have stayed with the others that stay.
    """

    def with_absent(clients: Mask) -> Preview:
        return accountant.preview(round_number, clients, absent(clients))

    preview = with_absent(asked)
    while (leaving := exceeding(preview, limits)).any():
        preview = with_absent(preview.present & ~leaving)
    # The round itself is counted with what really arrives: planned absences were for the decision
    # only.
    return accountant.preview(round_number, preview.present) if preview.unusable else preview

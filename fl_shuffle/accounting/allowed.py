"""Who may take part in a round: clients whose limits it keeps, whoever else is left out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fl_shuffle._internal.arrays import Mask, Vector
from fl_shuffle.accounting.accountant import Accountant, Preview


def exceeding(preview: Preview, limits: Vector | None) -> Mask:
    """Which of the round's clients would exceed their `limits`, shape (n,); None where nobody has
    one."""
    if limits is None:
        return np.zeros_like(preview.present)
    return np.asarray(preview.present & ~(preview.client_epsilons() <= limits))


def allowed_round(
    accountant: Accountant,
    round_number: int,
    asked: Mask,
    limits: Vector | None,
    absent: Callable[[Mask], int],
) -> Preview:
    """Return the round of those of the `asked` clients that stay within their limits.

    Of a batch of clients, `absent` says how many honest reports are planned not to arrive: within
    the limits are those whom the others hide well enough without them. Nobody is left out for a
    client that leaves later: who leaves hides nobody, and the rest is asked again.
    """

    def with_absent(clients: Mask) -> Preview:
        return accountant.preview(round_number, clients, absent(clients))

    preview = with_absent(asked)
    while (leaving := exceeding(preview, limits)).any():
        preview = with_absent(preview.present & ~leaving)
    return accountant.preview(round_number, preview.present) if preview.unusable else preview

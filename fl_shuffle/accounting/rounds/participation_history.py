"""Who took part in which rounds, kept as the few distinct histories there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fl_shuffle._internal.arrays import Ids, Mask
from fl_shuffle.accounting.client_classes import AnyRound

RoundCounts = dict[AnyRound, int]


@dataclass(frozen=True)
class ParticipationHistory:
    """Client i has history `distinct[group_of[i]]`; immutable, so a preview is a value."""

    group_of: Ids
    distinct: tuple[RoundCounts, ...] = field(default=({},))

    def after(
        self,
        types: Mapping[int, AnyRound],
        class_of: Ids,
        present: Mask,
        times: int = 1,
    ) -> ParticipationHistory:
        """Return one more round: every present client of class c (in `types`) met `types[c]`, this
        number of times."""
        # A round in which no group gets credit: every history stays as it is.
        if not types:
            return self
        if len(self.distinct) == 1 and 0 in types and present.all() and not class_of.any():
            # All clients are of one class and history, as in most runs, and stay so.
            spent, kind = self.distinct[0], types[0]
            return replace(self, distinct=({**spent, kind: spent.get(kind, 0) + times},))
        width = int(class_of.max()) + 1
        taking = present & np.isin(class_of, list(types))
        if not taking.any():
            return self
        # One number for each (history, class): clients with equal numbers have equal histories
        # after the round as well.
        keys = self.group_of * width + class_of
        # Absent clients keep their history: give them keys that no taking client has.
        keys = np.where(taking, keys, -1 - self.group_of)
        distinct_keys, inverse = np.unique(keys, return_inverse=True)
        found: dict[frozenset[tuple[AnyRound, int]], int] = {}
        spents: list[RoundCounts] = []
        new_group = np.empty(len(distinct_keys), dtype=np.int64)
        for position, key in enumerate(distinct_keys.tolist()):
            spent = dict(self.distinct[key // width if key >= 0 else -1 - key])
            if key >= 0:
                kind = types[key % width]
                spent[kind] = spent.get(kind, 0) + times
            # Different pasts may lead to one history: these are joined, or their number could
            # double with every round that some clients miss.
            name = frozenset(spent.items())
            if name not in found:
                found[name] = len(spents)
                spents.append(spent)
            new_group[position] = found[name]
        return ParticipationHistory(new_group[inverse.reshape(-1)], tuple(spents))

    def of(self, members: Ids) -> list[RoundCounts]:
        """Return the distinct histories of these clients that hold a round."""
        groups = [0] if len(self.distinct) == 1 else np.unique(self.group_of[members]).tolist()
        return [self.distinct[group] for group in groups if self.distinct[group]]

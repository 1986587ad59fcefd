"""How the labels lie among the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fl_shuffle._internal.arrays import Counts
from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.partitions import client_names, make_partition
from fl_shuffle.data.sources import load_records
from fl_shuffle.errors import ConfigError


@dataclass(frozen=True)
class LabelCounts:
    """The number of records of each label that each client holds.

    Attributes
    ----------
    counts : int64 [clients, classes]
        Records of the class.
    outside : int64 [clients]
        Records whose label is no class.
    names : list of str
        The clients' names, or their numbers.
    """

    counts: Counts
    outside: Counts
    names: list[str]

    @classmethod
    def of(cls, section: DataSection) -> LabelCounts:
        """Read the section's training records, and deal them to the clients.

        Raises
        ------
        ConfigError
            For a regression source, which has no classes.
        DataError
            As `load_records` and `make_partition` do.
        """
        records = load_records(section)
        if records.regression:
            raise ConfigError(
                f"data.source = {section.source!r} is for regression: it has no labels to count"
            )
        partition = make_partition(
            section, records.train_labels, records.classes, records.train_clients
        )
        labels = records.targets(records.train_labels[partition.order])
        sizes = np.diff(partition.offsets)
        client = np.repeat(np.arange(len(sizes)), sizes)
        inside = (labels >= 0) & (labels < records.classes)
        cells = client[inside] * records.classes + labels[inside]
        counts = np.bincount(cells, minlength=len(sizes) * records.classes)
        return cls(
            counts.reshape(len(sizes), records.classes),
            np.bincount(client[~inside], minlength=len(sizes)),
            client_names(section, records.train_clients) or [str(k) for k in range(len(sizes))],
        )

    @property
    def sizes(self) -> Counts:
        """Records of each client, int64 [clients]."""
        found: Counts = self.counts.sum(axis=1) + self.outside
        return found

    def summary(self) -> dict[str, Any]:
        """Return what the command prints, as JSON has it.

        `largest_share` is the share of a client's most frequent class among its records, as the
        mean over clients; it is 1 / classes at the least, and 1 if each client has one class only.
        """
        sizes = self.sizes
        shares = self.counts.max(axis=1) / np.maximum(sizes, 1)
        classes = (self.counts > 0).sum(axis=1)
        return {
            "clients": len(sizes),
            "classes": self.counts.shape[1],
            "records": int(sizes.sum()),
            "records_of_a_client": [int(sizes.min()), float(np.median(sizes)), int(sizes.max())],
            "classes_of_a_client": [int(classes.min()), float(np.median(classes)),
                                    int(classes.max())],
            "largest_share": float(shares.mean()),
            "records_of_no_class": int(self.outside.sum()),
        }  # fmt: skip

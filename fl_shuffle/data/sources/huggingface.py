"""Data sets of the Hugging Face hub, dealt to clients by flwr-datasets' partitioners.

    [data]
    source = "huggingface"
    partition = "natural"
    clients = 100
    [data.source_options]
    dataset = "ylecun/mnist"
    inputs = ["image"]
    label = "label"
    classes = 10
    partitioner = "DirichletPartitioner"
    partitioner_options = { num_partitions = 100, partition_by = "label", alpha = 0.3 }

Needs the extra `[huggingface]`. Partition i of the training split is client i's; without
`partitioner` the split is dealt by `data.partition`. The test split is taken for public. Partition
by label is no part of the guarantee, as in `data.partition = "dirichlet"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.plugins import require_extra
from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.records import Records
from fl_shuffle.data.sources.options import (
    FIELD,
    Target,
    require_known,
    text_option,
    texts_option,
)
from fl_shuffle.data.sources.tables import NO_CLASS, label_values, numbers
from fl_shuffle.errors import ConfigError, DataError, InvalidValueError, suggestion

OPTIONS = (
    "dataset", "subset", "train_split", "test_split", "inputs", "label", "partitioner",
    "partitioner_options", "classes", "class_names", "outputs",
)  # fmt: skip


class Split(Protocol):
    """As a `datasets.Dataset`: columns by name."""

    def __len__(self) -> int: ...

    def __getitem__(self, column: str, /) -> Any: ...


class Dealer(Protocol):
    """As a partitioner of flwr-datasets."""

    @property
    def num_partitions(self) -> int: ...

    def load_partition(self, partition_id: int) -> Split: ...


def read(section: DataSection) -> Records:
    """Raise `ConfigError` for options that do not fit, `DataError` where data cannot be had."""
    options = section.source_options
    require_known(options, "huggingface", OPTIONS)
    target = Target.of(options, "huggingface")
    require_extra("flwr_datasets", "huggingface", "data.source = 'huggingface'")
    from flwr_datasets import FederatedDataset

    name = text_option(options, "dataset", "")
    if not name:
        raise ConfigError(
            f"{FIELD}.dataset is missing: give its name on the hub, for example ylecun/mnist"
        )
    train, test = (text_option(options, f"{part}_split", part) for part in ("train", "test"))
    dealer = partitioner_of(options)
    try:
        federated = FederatedDataset(
            dataset=name,
            subset=text_option(options, "subset", "") or None,
            partitioners={train: dealer or 1},
        )
        federated.load_partition(0, train)  # reads the split, and hands it to the partitioner
        return records_of(
            dealer or federated.partitioners[train], federated.load_split(test), options, target,
            dealt=dealer is not None,
        )  # fmt: skip
    except (DataError, ConfigError):
        raise
    except Exception as error:  # the hub, the disk, the split's name: the remedy is one
        raise DataError(
            f"{name} cannot be loaded from the Hugging Face hub or its cache "
            f"({type(error).__name__}: {error}); check {FIELD} and the network"
        ) from None


def partitioner_of(options: Mapping[str, Any]) -> Any:
    """Return the partitioner of flwr-datasets that the options name; None without one."""
    from flwr_datasets import partitioner as partitioners

    name = text_option(options, "partitioner", "")
    known = [each for each in dir(partitioners) if each.endswith("Partitioner")]
    if not name:
        return None
    if name not in known:
        hint = suggestion(name, known) or f"one of {', '.join(known)}"
        raise InvalidValueError(
            f"{FIELD}.partitioner", name, "is not a partitioner of flwr-datasets", hint
        )
    chosen = options.get("partitioner_options", {})
    try:
        return getattr(partitioners, name)(**chosen)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"{FIELD}.partitioner_options", chosen, f"{name} refuses it: {error}"
        ) from None


def records_of(
    dealer: Dealer, test: Split, options: Mapping[str, Any], target: Target, *, dealt: bool
) -> Records:
    """Return every partition of the dealer's training split and the test split, as records;
    partition i is client i's if it was `dealt`."""
    label = text_option(options, "label", "label")
    names = texts_option(options, "inputs")
    if not names:
        raise ConfigError(
            f'{FIELD}.inputs is missing: name the input columns, for example ["image"]'
        )
    parts = [dealer.load_partition(number) for number in range(dealer.num_partitions)]
    sizes = [len(part) for part in parts]
    if not len(test):
        raise DataError(f"the test split of {FIELD}.dataset holds no record")
    test_inputs, whole = _inputs(test, names, None)
    if not whole.all():
        raise DataError(
            f"{FIELD}.inputs = {list(names)!r}: test records differ in shape; the model needs one"
        )
    inputs, fits = zip(*(_inputs(part, names, test) for part in parts), strict=True)
    labels = np.concatenate([label_values(list(part[label]), target) for part in parts])
    # A record of another shape is its holder's mistake, as a label that is no class is.
    labels[~np.concatenate(fits)] = NO_CLASS if target.classes else np.nan
    return Records(
        np.concatenate(inputs),
        labels,
        test_inputs,
        label_values(list(test[label]), target),
        classes=target.classes,
        outputs=target.outputs,
        train_clients=np.repeat(np.arange(len(parts)), sizes) if dealt else None,
    )


def _inputs(
    part: Split, names: Sequence[str], model: Split | None
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return inputs [N, ...], and which [N] records have them: one column of images or arrays as
    they are, or several of numbers [N, k].

    Shape and type are those of the first record of `model` (None: of `part` itself), which is
    public; a record that has others is zeros.
    """
    if len(names) > 1:
        columns = np.stack([numbers(list(part[name])) for name in names], axis=1)
        return columns.astype(np.float32), np.ones(len(part), dtype=bool)
    cells = [_array(cell) for cell in part[names[0]]]
    first = _array((part if model is None else model)[names[0]][0])
    if first is None:
        raise DataError(f"{FIELD}.inputs = {list(names)!r}: the first test record has no numbers")
    images = np.zeros((len(cells), *first.shape), first.dtype)
    fits = np.zeros(len(cells), dtype=bool)
    for row, cell in enumerate(cells):
        if cell is not None and (cell.shape, cell.dtype) == (first.shape, first.dtype):
            images[row], fits[row] = cell, True
    if images.ndim == 4 and images.shape[-1] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    return (images if images.ndim > 1 else images[:, None].astype(np.float32)), fits


def _array(cell: Any) -> NDArray[Any] | None:
    """Return a cell's numbers; None if it has none."""
    try:
        found = np.asarray(cell)
    except Exception:  # Whatever a library raises of one picture: it must not end the others' run.
        return None
    return found if found.dtype.kind in "fiub" else None

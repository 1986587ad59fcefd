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

A column of texts becomes sequences of tokens for `model.kind = "lstm"`, and the label is the next
character:

    dataset = "flwrlabs/shakespeare"
    inputs = ["x"]
    label = "y"
    characters = "abc ..."       # character number k is token k and class k
    length = 80                  # characters of every text
    test_split = ""              # there is none: set data.validation_fraction

Needs the extra `[huggingface]`. Partition i of the training split is client i's; without
`partitioner` the split is dealt by `data.partition`. The test split is taken for public. Partition
by label is no part of the guarantee, as in `data.partition = "dirichlet"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from fl_shuffle.errors import ConfigError, DataError, InvalidValueError, require_integer, suggestion

OPTIONS = (
    "dataset", "subset", "train_split", "test_split", "inputs", "label", "partitioner",
    "partitioner_options", "classes", "class_names", "outputs", "characters", "length",
)  # fmt: skip
MOST_CHARACTERS = 256
MOST_LENGTH = 10_000


class Split(Protocol):
    """As a `datasets.Dataset`: columns by name."""

    def __len__(self) -> int: ...

    def __getitem__(self, column: str, /) -> Any: ...


class Dealer(Protocol):
    """As a partitioner of flwr-datasets."""

    @property
    def num_partitions(self) -> int: ...

    def load_partition(self, partition_id: int) -> Split: ...


@dataclass(frozen=True)
class Texts:
    """Texts of `length` characters, as tokens: the places of these `characters`."""

    characters: str
    length: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Texts | None:
        """Return what the options `characters` and `length` say; None without.

        Both are declared and never read from the texts, because they shape the published model.
        Raises `InvalidValueError` for characters that occur twice, and `ConfigError` for a length
        without characters and for a target beside them.
        """
        if "characters" not in options:
            if "length" in options:
                raise ConfigError(f"{FIELD}.length has no effect without {FIELD}.characters")
            return None
        characters = text_option(options, "characters", "")
        if not 2 <= len(characters) <= MOST_CHARACTERS or len(set(characters)) < len(characters):
            allowed = f"must be a text of 2 to {MOST_CHARACTERS} different characters"
            raise InvalidValueError(f"{FIELD}.characters", characters, allowed)
        for name in ("classes", "class_names", "outputs"):
            if name in options:
                raise ConfigError(
                    f"{FIELD}.{name}: with {FIELD}.characters, each character is a class; leave "
                    f"{name} out"
                )
        length = require_integer(
            f"{FIELD}.length", options.get("length"), minimum=1, maximum=MOST_LENGTH
        )
        return cls(characters, length)

    @property
    def target(self) -> Target:
        """What is predicted: a character."""
        return Target(len(self.characters), 0, tuple(self.characters))

    def tokens(self, cells: Sequence[Any]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return tokens, shape (records, length), and which records are texts of known characters
        and of this length; the others are zeros."""
        place = {character: number for number, character in enumerate(self.characters)}
        found = np.zeros((len(cells), self.length), dtype=np.uint8)
        fits = np.zeros(len(cells), dtype=bool)
        for row, cell in enumerate(cells):
            if not isinstance(cell, str) or len(cell) != self.length:
                continue
            numbers_of = [place.get(character, -1) for character in cell]
            if min(numbers_of) >= 0:
                found[row], fits[row] = numbers_of, True
        return found, fits

    def labels(self, cells: Sequence[Any]) -> NDArray[np.int64]:
        """Return the class of each character; `NO_CLASS` for any other cell."""
        place = {character: number for number, character in enumerate(self.characters)}
        known = (place.get(cell, NO_CLASS) if isinstance(cell, str) else NO_CLASS for cell in cells)
        return np.fromiter(known, dtype=np.int64, count=len(cells))


def read(section: DataSection) -> Records:
    """Raise `ConfigError` for options that do not fit, `DataError` where data cannot be had."""
    options = section.source_options
    require_known(options, "huggingface", OPTIONS)
    texts = Texts.of(options)
    target = Target.of(options, "huggingface") if texts is None else texts.target
    require_extra("flwr_datasets", "huggingface", "data.source = 'huggingface'")
    from flwr_datasets import FederatedDataset

    name = text_option(options, "dataset", "")
    if not name:
        raise ConfigError(
            f"{FIELD}.dataset is missing: give its name on the hub, for example ylecun/mnist"
        )
    train = text_option(options, "train_split", "train")
    test = _test_split(section, texts)
    dealer = partitioner_of(options)
    try:
        federated = FederatedDataset(
            dataset=name,
            subset=text_option(options, "subset", "") or None,
            partitioners={train: dealer or 1},
        )
        federated.load_partition(0, train)  # reads the split, and hands it to the partitioner
        return records_of(
            dealer or federated.partitioners[train],
            federated.load_split(test) if test else None, options, target,
            dealt=dealer is not None,
        )  # fmt: skip
    except (DataError, ConfigError):
        raise
    except Exception as error:  # the hub, the disk, the split's name: the remedy is one
        raise DataError(
            f"{name} cannot be loaded from the Hugging Face hub or its cache "
            f"({type(error).__name__}: {error}); check {FIELD} and the network"
        ) from None


def _test_split(section: DataSection, texts: Texts | None) -> str:
    """Return the name of the public test split; empty where the options say that there is none."""
    options = section.source_options
    if options.get("test_split") != "":
        return text_option(options, "test_split", "test")
    if texts is None:
        raise ConfigError(
            f'{FIELD}.test_split = "": the shape of a record is that of a public test record, so '
            f"name a split; only texts ({FIELD}.characters) have a declared shape"
        )
    if not section.validation_fraction:
        raise ConfigError(
            f'{FIELD}.test_split = "": there are no test records then; set '
            "data.validation_fraction = 0.1 to hold private ones out"
        )
    return ""


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
    dealer: Dealer, test: Split | None, options: Mapping[str, Any], target: Target, *, dealt: bool
) -> Records:
    """Return every partition of the dealer's training split and the test split, as records;
    partition i is client i's if it was `dealt`. Texts need no test split."""
    texts = Texts.of(options)
    label = text_option(options, "label", "label")
    names = texts_option(options, "inputs")
    if not names:
        raise ConfigError(
            f'{FIELD}.inputs is missing: name the input columns, for example ["image"]'
        )
    if texts is not None and len(names) > 1:
        raise ConfigError(f"{FIELD}.inputs = {list(names)!r}: texts are in one column; name it")
    parts = [dealer.load_partition(number) for number in range(dealer.num_partitions)]
    sizes = [len(part) for part in parts]
    if test is not None and not len(test):
        raise DataError(f"the test split of {FIELD}.dataset holds no record")

    def read_part(part: Split) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return a part's inputs and labels; a record that does not fit has no class."""
        cells = list(part[label])
        if texts is None:
            labels = label_values(cells, target)
            inputs, fits = _inputs(part, names, None if part is test else test)
        else:
            labels = texts.labels(cells)
            inputs, fits = texts.tokens(list(part[names[0]]))
        if part is test and not fits.all():
            what = "test records differ in shape; the model needs one"
            if texts is not None:
                what = (
                    f"test record {int(np.argmin(fits))} is no text of {texts.length} of the "
                    f"characters in {FIELD}.characters; correct it, or the options"
                )
            raise DataError(f"{FIELD}.inputs = {list(names)!r}: {what}")
        # A record of another shape is its holder's mistake, as a label that is no class is.
        labels[~fits] = NO_CLASS if target.classes else np.nan
        return inputs, labels

    public = None if test is None else read_part(test)
    inputs, labels = zip(*(read_part(part) for part in parts), strict=True)
    train_inputs, train_labels = np.concatenate(inputs), np.concatenate(labels)
    test_inputs, test_labels = public or (train_inputs[:0], train_labels[:0])
    return Records(
        train_inputs,
        train_labels,
        test_inputs,
        test_labels,
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

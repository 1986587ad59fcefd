"""Records in files of your own: `.npz`, `.csv` and `.parquet`, one file or a folder of them.

    [data]
    source = "files"
    root = "hospital"                  # a file, or a folder as below
    partition = "natural"
    source_options = { label = "cost", outputs = 1, client = "ward" }

A folder holds `train.EXT` and `test.EXT`, or `train/NAME.EXT` for every client NAME. Whose a record
is says the column `client` (`clients` in an .npz), or the file's name. Without test records hold
some out: `data.validation_fraction`.

.npz: `x` [N, ...], `y` [N] or [N, outputs], perhaps `clients` [N]; or both parts in one file, as
`x_train`, `y_train`, `x_test`, `y_test`, perhaps `clients_train`. Tables: see `tables`.

What is published (names, shapes, classes) is what the options and the files' headers declare. A
line of a .csv is a record, whatever is in it (`tables`). A cell that is no number is its holder's
mistake: the record counts as zero, and only the holder's own log (`fl_shuffle.client`) says how
many there are.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.owners import owner_names
from fl_shuffle.data.records import Records
from fl_shuffle.data.sources.options import Target, require_known
from fl_shuffle.data.sources.tables import COLUMN_OPTIONS, ColumnOptions, read_table
from fl_shuffle.errors import DataError, suggestion

SUFFIXES = (".npz", ".csv", ".parquet")


@dataclass(frozen=True)
class Part:
    """Inputs [N, ...], labels [N] or [N, outputs], and owners [N] where the file names them."""

    inputs: NDArray[Any]
    labels: NDArray[Any]
    clients: NDArray[Any] | None = None


def read(section: DataSection) -> Records:
    """Return the records below `root`. Raises `DataError` for files that are missing or do not
    fit."""
    options = section.source_options
    require_known(options, "files", ("classes", "class_names", "outputs", *COLUMN_OPTIONS))
    target = Target.of(options, "files")
    if not section.root:
        raise DataError(
            "data.source = 'files' needs data.root (or --data): a .npz, .csv or .parquet file, or "
            "a folder with train and test"
        )
    root = Path(section.root)
    columns = ColumnOptions.of(options, target)
    if root.is_dir():
        train = _in_folder(root, "train", columns, target)
        test = _in_folder(root, "test", columns, target)
        if train is None:
            raise DataError(
                f"{root} holds neither train{{{','.join(SUFFIXES)}}} nor a folder train with such "
                "files"
            )
    else:
        train, test = _whole_file(root, columns, target)
    test = test or Part(train.inputs[:0], train.labels[:0])
    return Records(
        train.inputs,
        train.labels,
        test.inputs,
        test.labels,
        classes=target.classes,
        outputs=target.outputs,
        train_clients=train.clients,
    )


def _files(root: Path, name: str) -> tuple[list[Path], bool]:
    """Return the files of a part below `root`, and whether each is a client's own."""
    single = [
        root / f"{name}{suffix}" for suffix in SUFFIXES if (root / f"{name}{suffix}").exists()
    ]
    folder = root / name
    if len(single) + folder.is_dir() > 1:
        raise DataError(f"{root} holds {name} more than once; keep one file, or the folder")
    if single or not folder.is_dir():
        return single, False
    paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    if not paths:
        raise DataError(f"{folder} holds no {' or '.join(SUFFIXES)} file")
    return paths, True


def _in_folder(root: Path, name: str, columns: ColumnOptions, target: Target) -> Part | None:
    paths, by_client = _files(root, name)
    public = name == "test"
    if not by_client:
        return _part(paths[0], columns, target, public=public) if paths else None
    parts = [_part(path, columns, target, public=public) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        if part.clients is not None:
            raise DataError(
                f"{path} has a client column, but its file name is also a client; remove "
                "one of the two"
            )
        if part.inputs.shape[1:] != parts[0].inputs.shape[1:]:
            raise DataError(
                f"{path} holds records of shape {part.inputs.shape[1:]}, {paths[0]} of "
                f"{parts[0].inputs.shape[1:]}"
            )
    sizes = [len(part.labels) for part in parts]
    return Part(
        np.concatenate([part.inputs for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.repeat(np.array([path.stem for path in paths]), sizes),
    )


def _whole_file(path: Path, columns: ColumnOptions, target: Target) -> tuple[Part, Part | None]:
    """Return a file that is the training part, or an .npz with both."""
    if path.suffix == ".npz":
        arrays = _arrays(path)
        if "x_train" in arrays:
            suffixes = ("_train", "_test") if "x_test" in arrays else ("_train",)
            _require_read(path, arrays, suffixes)
            parts = [_of_arrays(path, arrays, target, suffix) for suffix in suffixes]
            return parts[0], parts[1] if len(parts) == 2 else None
    return _part(path, columns, target), None


def _part(path: Path, columns: ColumnOptions, target: Target, *, public: bool = False) -> Part:
    if path.suffix == ".npz":
        arrays = _arrays(path)
        _require_read(path, arrays, ("",))
        return _of_arrays(path, arrays, target, "")
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: data.source = 'files' reads {', '.join(SUFFIXES)}")
    table = read_table(path, columns.client, columns.separator)
    return Part(*columns.arrays(path, table, public=public))


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _require_read(
    path: Path, arrays: Mapping[str, NDArray[Any]], suffixes: tuple[str, ...]
) -> None:
    """Refuse arrays that nothing reads, because their author expects an effect."""
    known = [f"{name}{suffix}" for suffix in suffixes for name in ("x", "y", "clients")]
    for name in arrays:
        if name not in known:
            hint = suggestion(name, known) or f"read are {', '.join(known)}"
            if name == "clients":
                hint = f"whose the training records are is called clients{suffixes[0]} here"
            raise DataError(f"{path} has the unknown array {name}; {hint}; remove it")


def _of_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], target: Target, suffix: str) -> Part:
    found = {name: arrays.get(f"{name}{suffix}") for name in ("x", "y", "clients")}
    inputs, labels = found["x"], found["y"]
    if inputs is None or labels is None:
        raise DataError(
            f"{path} holds {', '.join(arrays) or 'nothing'}; it must hold x{suffix} and y{suffix} "
            f"(and perhaps clients{suffix})"
        )
    if inputs.dtype.kind not in "fiub" or inputs.ndim < 2:
        raise DataError(
            f"{path}: x{suffix} is {inputs.dtype} {list(inputs.shape)}; it must be numbers, "
            "[records, ...]"
        )
    if labels.dtype.kind not in ("fiu" if target.outputs else "iu"):
        raise DataError(
            f"{path}: y{suffix} is {labels.dtype}; it must be "
            f"{'numbers' if target.outputs else 'whole numbers, 0 .. classes - 1'}"
        )
    kind = np.float32 if target.outputs else np.int64
    owners = found["clients"]
    if owners is not None:
        owners = owner_names(owners, lambda number: f"{path}: clients{suffix}[{number}]")
    return Part(inputs, labels.astype(kind), owners)

"""What several runs on the same clients have cost them together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import Vector
from fl_shuffle._internal.plugins import data_frame
from fl_shuffle._internal.threads import with_one_blas_thread
from fl_shuffle.accounting import several_runs
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.accounting.rounds.threat_model import ThreatModel
from fl_shuffle.budgets import names_of_lines
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import (
    ConfigError,
    InvalidValueError,
    RunError,
    require_open_unit,
    suggestion,
)
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.report.record import RunRecord, read_run

if TYPE_CHECKING:
    from pandas import DataFrame

DEALT_BY = (
    *("source", "source_options", "clients", "records_per_client", "partition"),
    *("dirichlet_alpha", "shards_per_client", "classes_per_client", "sizes", "sizes_alpha"),
    *("validation_fraction", "seed"),
)
"""Settings of `data` that decide which records are a client's."""
STATUS = dict.fromkeys(several_runs.COLUMNS, "proven") | {"gspa": "as published"}
INDEPENDENT = "the runs draw their noise independently"
NOT_CHOSEN = (
    "noise, clipping, participation, and the number of rounds of a run are not chosen from what "
    "earlier runs released"
)


@dataclass(frozen=True)
class ComposedRuns:
    """What several runs on the same clients have cost them together.

    `compose_runs` returns it.

    Attributes
    ----------
    directories : tuple of Path
        The runs' directories.
    unit, relation : str
        Unit of privacy, and what neighbors differ in.
    delta : float
        Delta of the composed epsilons.
    epsilon : dict of str to ndarray, shape (clients,)
        Composed epsilon of every client, in nats at `delta`, by column: `shuffled`, `sum`, `local`,
        `gspa` (as published: no guarantee), and `headline`, which composes of each run the column
        that matches its release. NaN where a column says nothing.
    added : dict of str to ndarray, shape (clients,)
        Sums of the runs' own epsilons, which hold at `added_delta`.
    added_delta : float
        Sum of the runs' own deltas.
    rounds : ndarray of int64, shape (clients,)
        Number of rounds of all runs in which a report of the client was released.
    headline : str
        The column of the headline where all runs have the same, else "released".
    reasons : dict of str to str
        Why a column says nothing.
    assumptions : tuple of str
        What the guarantees take for granted: that of every run, and that the runs are independent.

    Notes
    -----
    Clients have the numbers of the first run.
    """

    directories: tuple[Path, ...]
    unit: str
    relation: str
    delta: float
    epsilon: dict[str, Vector]
    added: dict[str, Vector]
    added_delta: float
    rounds: NDArray[np.int64]
    headline: str
    reasons: dict[str, str]
    assumptions: tuple[str, ...]
    declared: bool = False

    def __repr__(self) -> str:
        worst = self.worst("headline")
        shown = "-" if worst is None else f"{worst:.4g}"
        return (
            f"<{len(self.directories)} runs together: epsilon <= {shown} at delta = "
            f"{self.delta:g} for the most exposed of {len(self):,} clients>"
        )

    def __len__(self) -> int:
        return len(self.rounds)

    def worst(self, column: str = "headline") -> float | None:
        """Return the composed epsilon of the most exposed client.

        Parameters
        ----------
        column : {"headline", "shuffled", "sum", "local", "gspa"}, default "headline"
            Name of the column.

        Returns
        -------
        float or None
            In nats, at `delta`; None where the column says nothing.
        """
        values = self.epsilon[column]
        return None if np.isnan(values).any() else float(values.max())

    def to_dict(self) -> dict[str, NDArray[Any]]:
        """Return one row for each client: columns of equal length.

        Returns
        -------
        dict of str to ndarray, shape (clients,)
            Client number in the first run, rounds, composed epsilon of each column (nats, at
            `delta`), and the sum of the runs' epsilons beside it (`..._added`, at `added_delta`).
        """
        found: dict[str, NDArray[Any]] = {"client": np.arange(len(self)), "rounds": self.rounds}
        for name, values in self.epsilon.items():
            head = "epsilon" if name == "headline" else f"{name}_epsilon"
            found |= {head: values, f"{head}_added": self.added[name]}
        return {
            **found,
            "delta": np.full(len(self), self.delta),
            "delta_added": np.full(len(self), self.added_delta),
        }

    def to_frame(self) -> DataFrame:
        """Return `to_dict()` as a pandas data frame.

        Returns
        -------
        pandas.DataFrame
            One row for each client.

        Raises
        ------
        ConfigError
            If pandas is not installed.
        """
        return data_frame(self.to_dict())

    def summary(self) -> dict[str, NDArray[Any] | list[Any]]:
        """Return one row for each column, about its most exposed client.

        Returns
        -------
        dict of str to sequence
            Column, composed epsilon, its delta, the sum of the runs' epsilons (of the client where
            that is largest), its delta, the most exposed client, and the status.
        """
        names = list(self.epsilon)
        said = [self.worst(name) is not None for name in names]
        return {
            "column": names,
            "epsilon": [self.worst(name) for name in names],
            "delta": [self.delta] * len(names),
            "added_epsilons": [
                float(self.added[name].max()) if known else None
                for name, known in zip(names, said, strict=True)
            ],
            "added_delta": [self.added_delta] * len(names),
            "client": [
                int(np.argmax(self.epsilon[name])) if known else None
                for name, known in zip(names, said, strict=True)
            ],
            "status": [self._status(name) if known else None
                       for name, known in zip(names, said, strict=True)],
        }  # fmt: skip

    def _status(self, column: str) -> str:
        if self.declared and column in ("local", "headline"):
            return "as declared"
        return "none" if self.worst(column) == math.inf else STATUS[column]

    def lines(self) -> list[str]:
        """Return in words what was composed."""
        released = {"released": "what each run released", "none": "everything"}
        shown = released.get(self.headline, f"column {self.headline}")
        return [
            f"{len(self.directories)} runs on the same {len(self):,} clients, unit {self.unit}, "
            f"{self.relation}; headline: {shown}",
        ]


@with_one_blas_thread
def compose_runs(
    runs: Sequence[str | Path],
    *,
    delta: float | None = None,
    clients_as: Mapping[str, str] | None = None,
) -> ComposedRuns:
    """Return what several runs on the same clients have cost every client together.

    The runs' dominating pairs are composed, which costs less than the sum of the runs' epsilons.
    The ledgers are read, and every round is counted again.

    Parameters
    ----------
    runs : sequence of str or Path
        Run directories, at least two. A run that is not finished counts as far as its ledger goes.
    delta : float, optional
        Delta of the composed epsilons, in (0, 1). By default, the delta of all runs.
    clients_as : mapping of str to str, optional
        For clients with names (`data.partition = "natural"`, or a budgets file): a client called by
        the key in one run is the client called by the value in another.

    Returns
    -------
    ComposedRuns
        Epsilons of every client, by column.

    Raises
    ------
    RunError
        If a directory holds no run or is named twice, or if the runs' units, neighbors, or clients
        differ.
    ConfigError
        If `delta` is missing and the runs have different deltas, or a name in `clients_as` is no
        client's.
    InvalidValueError
        If `delta` is out of range, or fewer than two runs are named.

    Notes
    -----
    Statement: products of dominating pairs dominate adaptive compositions (Zhu, Dong, Wang 2022,
    Theorem 10); for Gaussian sums that is mu = sqrt(sum of mu_i^2) (Dong, Roth, Su 2022). Source:
    docs/research/proofs, sections 6, 14, and 15. Neighbors: replace-one, the same unit of the same
    client in all runs. Direction of error: rounded up. The assumptions of every run are needed.

    See Also
    --------
    resume : Add rounds to a run, which its own ledger counts.

    Examples
    --------
    >>> import tempfile
    >>> import fl_shuffle as fs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [f"{folder}/{seed}" for seed in (1, 2)]
    ...     for seed, path in enumerate(paths):
    ...         _ = fs.simulate(overrides={"run.rounds": 2, "run.seed": seed}, out=path)
    ...     together = fs.compose_runs(paths)
    >>> print(round(together.worst(), 3), round(together.added["headline"].max(), 3))
    0.352 0.492
    """
    if isinstance(runs, str | Path) or len(runs) < 2:
        raise InvalidValueError("runs", runs, "must name at least two run directories")
    records = [read_run(Path(each)) for each in runs]
    _require_composable(records)
    places = _places(records, clients_as or {})
    deltas = {record.delta for record in records}
    if delta is None and len(deltas) > 1:
        shown = ", ".join(f"{each:g}" for each in sorted(deltas))
        raise ConfigError(
            f"delta is missing: the runs' own are {shown}; name the one of the composed epsilons"
        )
    at = require_open_unit("delta", deltas.pop() if delta is None else delta)
    library = RoundLibrary()
    for record in records:
        record.library = library  # rounds that are alike in several runs are certified once
    found = several_runs.compose_runs([each.accountant for each in records], places, at, library)
    config = records[0].config
    return ComposedRuns(
        tuple(each.directory for each in records), config["privacy"]["unit"],
        str(records[0].meta["relation"]), at, found.epsilon,
        _added(records, places, found.epsilon), math.fsum(each.delta for each in records),
        np.sum([each.totals.rounds[at] for each, at in zip(records, places, strict=True)], axis=0),
        found.headline, found.reasons, _assumptions(records),
        any(each.headline == "local" for each in records),
    )  # fmt: skip


def _added(
    records: Sequence[RunRecord], places: Sequence[NDArray[np.int64]], names: Iterable[str]
) -> dict[str, Vector]:
    """Return the sums of the runs' own epsilons [clients], by column."""
    found = {name: np.zeros(len(places[0])) for name in names}
    for record, place in zip(records, places, strict=True):
        totals = record.totals
        spent = record.spend
        gspa = None if spent is None else spent.columns["gspa"].worst
        published = np.full(len(totals.rounds), math.nan if gspa is None else gspa)
        own = {**totals._asdict(), "gspa": np.where(totals.rounds > 0, published, 0.0)}
        for name in names:
            found[name] = found[name] + own[name][place]
    return found


def _require_composable(records: Sequence[RunRecord]) -> None:
    """Raise `RunError` where the runs' epsilons are not about the same change of the data."""
    first, seen = records[0], dict[str, Path]()
    for record in records:
        other = seen.setdefault(str(record.meta["run"]), record.directory)
        if other is not record.directory:
            raise RunError(
                f"{record.directory} is the same run as {other}: name each run once, or its rounds "
                "count twice"
            )
        units = [each.config["privacy"]["unit"] for each in (first, record)]
        if units[0] != units[1]:
            raise RunError(
                f"{first.directory} protects a {units[0]}, {record.directory} a {units[1]} "
                "(privacy.unit): their epsilons are about different changes of the data and do not "
                "compose; name runs of one unit"
            )
        relations = [each.meta["relation"] for each in (first, record)]
        if relations[0] != relations[1]:
            raise RunError(
                f"neighbors of {first.directory} are {relations[0]}, those of {record.directory} "
                f"{relations[1]}: their epsilons do not compose; name runs of one relation"
            )


def names_in(run: LedgerRecord) -> Sequence[str]:
    """Return the names of a run's clients, by number; empty where they have none.

    Names are not in the ledger: they are read from the run's data, or from its budgets file.
    """
    config = parse_config(run.config)
    if config.data.partition == "natural":
        from fl_shuffle.data.partitions import client_names
        from fl_shuffle.data.sources import load_records

        return client_names(config.data, load_records(config.data).train_clients) or ()
    if config.budgets.distribution == "file":
        return names_of_lines(config.budgets.file)
    return ()


def _places(records: Sequence[RunRecord], renamed: Mapping[str, str]) -> list[NDArray[np.int64]]:
    """Return for each run the number in it of every client of the first; raises `RunError` where
    the clients are not the same."""
    first = records[0]
    differing = [_differing(first, record) for record in records]
    if not any(differing) and not renamed:
        return [np.arange(len(first.class_of))] * len(records)
    named = [record.config["data"]["partition"] == "natural" for record in records]
    if not all(named) and not renamed:
        record, why = next(pair for pair in zip(records, differing, strict=True) if pair[1])
        raise RunError(
            f"{record.directory} has other clients than {first.directory}: {why}; name runs on the "
            "same clients"
        )
    return _places_by_name(records, renamed)


def _differing(first: RunRecord, other: RunRecord) -> str:
    """Return what tells that client numbers mean other clients in two runs, in words."""
    for name in DEALT_BY:
        mine, theirs = (each.config["data"].get(name) for each in (first, other))
        if json.dumps(mine, sort_keys=True) != json.dumps(theirs, sort_keys=True):
            return f"data.{name} = {theirs!r} instead of {mine!r}"
    mine, theirs = (each.meta["data"]["records"] for each in (first, other))
    return "" if mine == theirs else f"its data have {theirs:,} records instead of {mine:,}"


def _places_by_name(
    records: Sequence[RunRecord], renamed: Mapping[str, str]
) -> list[NDArray[np.int64]]:
    """As `_places`, for clients that are told apart by their names."""
    lists = [list(names_in(record)) for record in records]
    everyone = sorted({name for names in lists for name in names})
    for name in renamed:
        if name not in everyone:
            hint = suggestion(name, everyone) or "the clients of these runs have no such name"
            raise ConfigError(
                f"--clients-as {name}=...: no client of any run has this name; {hint}"
            )
    places: list[NDArray[np.int64]] = []
    wanted: list[str] = []
    for record, names in zip(records, lists, strict=True):
        if not names:
            raise RunError(f"{record.directory}: its clients have no names; they cannot be matched")
        own = {renamed.get(name, name): number for number, name in enumerate(names)}
        if len(own) < len(names):
            raise RunError(
                f"{record.directory}: with --clients-as two of its clients have one name; leave "
                "out one of them"
            )
        wanted = wanted or list(own)
        odd = sorted(set(wanted) ^ set(own))
        if odd:
            where = record if odd[0] in own else records[0]
            raise RunError(
                f"{records[0].directory} and {record.directory} have different clients: "
                f"{odd[0]!r} is in {where.directory} alone ({len(odd)} such names); say with "
                "--clients-as NAME=NAME which client it is, or name runs on the same clients"
            )
        places.append(np.array([own[name] for name in wanted], dtype=np.int64))
    return places


def _assumptions(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return what the runs take for granted; all of it is needed, so the weakest holds."""
    found: dict[str, list[str]] = {}
    for record in records:
        sums = record.accountant.sums_are_bounded
        for text in ThreatModel.of(record.config).sentences(sums=sums):
            found.setdefault(text, []).append(record.name)
        if record.config["run"]["entropy"] == "seeded":
            text = "simulation: seeded noise protects nobody; counted as if it were drawn"
            found.setdefault(text, []).append(record.name)
        if record.meta["records_not_covered"]:
            text = "private records of which something exact was published are not covered"
            found.setdefault(text, []).append(record.name)
    each = [
        text if len(names) == len(records) else f"{', '.join(names)}: {text}"
        for text, names in found.items()
    ]
    return (*each, INDEPENDENT, NOT_CHOSEN)

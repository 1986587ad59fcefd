"""The runs below a folder, as one table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import RunError
from fl_shuffle.runs.directory import CONFIG, SUMMARY
from fl_shuffle.runs.finished import Summary, read_summary

DEPTH = 3
"""A sweep's runs lie two folders below it, and sweeps lie in a folder of runs."""


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Every run directory at or below these folders, by name. Raises `RunError` if there is none,
    or a folder does not exist."""
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"{folder} is no folder; name one that holds runs")
        for path in _below(folder, DEPTH):
            found.setdefault(path)
    if not found:
        raise RunError(f"there is no run in {', '.join(map(str, folders))}")
    return list(found)


def _below(folder: Path, depth: int) -> list[Path]:
    if (folder / CONFIG).is_file():
        return [folder]
    if depth == 0:
        return []
    try:
        inside = sorted(each for each in folder.iterdir() if each.is_dir())
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror}") from None
    return [run for each in inside for run in _below(each, depth - 1)]


def runs_table(paths: Sequence[Path], *, differences: bool = False) -> Mapping[str, NDArray[Any]]:
    """One row a run: folder, state, clients, rounds, accuracy, the headline's epsilon (nats, worst
    client) and the local one, delta, unit; with `differences` also the settings that are not the
    same in all of them. Raises `RunError` for a run whose files make no sense."""
    configs = [_config(path) for path in paths]
    summaries = [read_summary(path) if (path / SUMMARY).exists() else None for path in paths]

    def number(name: str) -> NDArray[np.float64]:
        values = [getattr(each, name) if each else None for each in summaries]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    table: dict[str, NDArray[Any]] = {
        "run": np.array([str(path) for path in paths]),
        "state": np.array(["finished" if each else "unfinished" for each in summaries]),
        "clients": np.array([config["data"]["clients"] for config in configs]),
        "rounds": np.array([_rounds(*each) for each in zip(configs, summaries, strict=True)]),
        "accuracy": number("accuracy"),
        "epsilon": number("epsilon"),
        "local": np.array([_local(each) for each in summaries]),
        "delta": np.array([config["privacy"]["target_delta"] for config in configs]),
        "unit": np.array([config["privacy"]["unit"] for config in configs]),
    }
    if differences:
        table |= _differing(configs)
    return table


def _config(path: Path) -> Mapping[str, Mapping[str, Any]]:
    try:
        found = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        _ = found["data"]["clients"], found["privacy"]["target_delta"], found["run"]["rounds"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path / CONFIG} cannot be read: {type(error).__name__} {error}") from None
    return dict(found)


def _rounds(config: Mapping[str, Mapping[str, Any]], summary: Summary | None) -> str:
    return f"{summary.rounds if summary else '?'}/{config['run']['rounds']}"


def _local(summary: Summary | None) -> float:
    value = summary.columns.get("local") if summary else None
    return np.nan if value is None else value


def _differing(configs: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, NDArray[Any]]:
    keys = dict.fromkeys(
        f"{section}.{key}" for config in configs for section, keys in config.items() for key in keys
    )
    found = {}
    for name in keys:
        section, _, key = name.partition(".")
        values = [json.dumps(config.get(section, {}).get(key)) for config in configs]
        if len(set(values)) > 1:
            found[name] = np.array(values)
    return found

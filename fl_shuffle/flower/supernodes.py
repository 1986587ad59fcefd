"""Which SuperNode plays which part of the clients: the operator's file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fl_shuffle.csv_files import read_table, whole_number
from fl_shuffle.errors import ConfigError

COLUMNS = ("supernode", "partition-id", "num-partitions")
LARGEST_NODE_ID = 2**64 - 1
"""Flower draws them from so many."""
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_NODE_ID = re.compile(r"[1-9][0-9]{0,19}")


@dataclass(frozen=True)
class SuperNodeFile:
    """Name of a SuperNode -> its part, of `count` consecutive parts of the clients.

    A name is the fingerprint of a SuperNode's public key, as `ssh-keygen -lf KEY.pub` shows it, or
    its node id in decimal digits, as `flwr supernode register` does.
    """

    path: Path
    count: int
    parts: Mapping[str, int]

    def part_of(self, names: Iterable[str]) -> int | None:
        """The part of the node that has these names; None if the file gives it none, or two."""
        parts = {self.parts[name] for name in names if name in self.parts}
        return parts.pop() if len(parts) == 1 else None


def read_supernodes(path: str | Path, clients: int) -> SuperNodeFile:
    """Read `supernode,partition-id,num-partitions`, one line a SuperNode, in any order.

    Raises `ConfigError`, naming file and line, for a file that cannot be read, wrong columns, a
    name that is neither fingerprint nor node id, more parts than clients, and a SuperNode or part
    that stands there twice.
    """
    source = Path(path)
    parts: dict[str, int] = {}
    count = 0
    for where, row in read_table(source, "SuperNode file", COLUMNS)[1]:
        name, part, total = _row(where, row, clients)
        if count and total != count:
            raise ConfigError(
                f"{where}: num-partitions = {total}, and {count} above; it must be the same in all"
            )
        count = total
        if name in parts:
            raise ConfigError(f"{where}: {name} appears twice; a SuperNode plays one part")
        if part in parts.values():
            raise ConfigError(f"{where}: part {part} is given to two SuperNodes; keep one of them")
        parts[name] = part
    return SuperNodeFile(source, count, parts)


def _row(where: str, row: list[str], clients: int) -> tuple[str, int, int]:
    name = row[0].strip()
    is_id = _NODE_ID.fullmatch(name) is not None and int(name) <= LARGEST_NODE_ID
    if not is_id and not _FINGERPRINT.fullmatch(name):
        raise ConfigError(
            f"{where}: supernode = {name!r} must be a key's fingerprint (SHA256:..., as "
            "`ssh-keygen -lf KEY.pub` shows it) or a node id (as `flwr supernode register` does)"
        )
    part, total = whole_number(row[1]), whole_number(row[2])
    if total is None or not 1 <= total <= clients:
        raise ConfigError(
            f"{where}: num-partitions = {row[2].strip()!r} must be a whole number in [1, {clients}]"
            " (data.clients)"
        )
    if part is None or part >= total:
        raise ConfigError(
            f"{where}: partition-id = {row[1].strip()!r} must be a whole number in [0, {total - 1}]"
        )
    return name, part, total

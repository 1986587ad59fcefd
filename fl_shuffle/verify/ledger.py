"""The public facts about one client's rounds, read from a run's ledger (SQLite, schema 6).

Every released attempt at a round counts as a round of its own. Whoever was present without being
counted honest is a colluder; others whose noise is not Gaussian hide nobody and are left out.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

from flint import fmpq

from .reading import Refused, decimal, require

SCHEMA = 6
MOST_CLIENTS, MOST_CLASSES, MOST_ATTEMPTS = 10**7, 4000, 10**5

LENGTHS = ("scale", "radius", "sensitivity")

Classes = dict[int, dict[str, str]]


def ledger_facts(path: Path, kind: str, client: int) -> dict[str, Any]:
    """What a certificate of this kind states about `client`'s rounds; `Refused` where it cannot."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return _facts(database, kind, client)
    except (sqlite3.Error, OSError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise Refused(f"{path} cannot be read as a ledger: {error!r}") from None


def _facts(database: sqlite3.Connection, kind: str, client: int) -> dict[str, Any]:
    rows = database.execute("SELECT key, value FROM meta").fetchall()
    meta = {key: json.loads(value, parse_float=str) for key, value in rows}
    require(meta.get("schema") == SCHEMA, f"the ledger's schema is not {SCHEMA}")
    require_kind(kind, meta["config"])
    class_of = dict(database.execute("SELECT client_id, class_id FROM clients"))
    clients = len(class_of)
    require(0 < clients <= MOST_CLIENTS, f"clients: none, or more than {MOST_CLIENTS}")
    require(sorted(class_of) == list(range(clients)), "clients: not numbered from 0")
    require(client in class_of, f"client {client} is not in the ledger")
    classes = classes_of(database)
    own = classes[class_of[client]]
    require(own["noise"] == "gaussian", f"client {client}: its noise is not Gaussian")
    members = members_of(class_of)
    size, seen = -(-clients // 8), Counter[tuple[int, ...]]()
    each = meta.get("reports_per_round", 1)
    require(type(each) is int and each >= 1, "reports_per_round: not a whole number above 0")
    attempts = database.execute("SELECT released, present FROM reservations").fetchall()
    require(len(attempts) <= MOST_ATTEMPTS, f"reservations: more than {MOST_ATTEMPTS}")
    for released, held in attempts:
        present = b"\xff" * size if held is None else held
        require(len(present) == size, "present: not a bit per client")
        if (released or kind == "local") and present[client // 8] << client % 8 & 128:
            mask = int.from_bytes(present, "big")
            seen[tuple((mask & own_kind).bit_count() for own_kind in members.values())] += each
    rounds = []
    for counts, times in seen.items():
        others = dict(zip(members, counts, strict=True))
        others[class_of[client]] -= 1
        rounds.append(round_of(own, classes, others, times, meta["assumed_honest"]))
    last = database.execute("SELECT link FROM reservations ORDER BY attempt DESC LIMIT 1")
    link = str((last.fetchone() or ("",))[0])
    return {
        "run": {"link": link, "unit": str(meta["unit"]), "relation": str(meta["relation"])},
        "dimension": str(int(meta["dimension"])),
        "rounds": rounds,
    }


def require_kind(kind: str, config: Any) -> None:
    """The run is one that a claim of this kind can be about."""
    whole = config["training"]["schedule"] == "aggregate"
    mean = config["server"]["analyzer"] == "mean"
    require(kind in ("local", "sum", "shuffled"), f"no run makes a claim of kind {kind!r}")
    require(kind == "local" or whole, "the run's server sees single reports: only 'local' holds")
    require(kind != "sum" or mean, "the run's analyzer sees single reports: no 'sum'")
    gaussian = config["privacy"]["randomizer"] == "gaussian"
    require(gaussian, "the run's reports are not Gaussian")


def classes_of(database: sqlite3.Connection) -> Classes:
    """Each class's noise and lengths as certificates write them, with its report grid."""
    asked = f"SELECT class_id, noise, {', '.join(LENGTHS)} FROM classes"
    rows = database.execute(asked).fetchall()
    require(len(rows) <= MOST_CLASSES, f"more than {MOST_CLASSES} kinds of reports")
    lengths = [length for row in rows for length in row[2:]]
    require(all(isinstance(x, float) for x in lengths), "classes: a length is not a number")
    reach: dict[float, float] = {}
    for _, _, scale, radius, _ in rows:
        reach[scale] = max(radius, reach.get(scale, 0.0))
    found = {}
    for index, noise, *own in rows:
        written = dict(zip(LENGTHS, map(exact, own), strict=True))
        grid = exact(grid_step(own[0], reach[own[0]])) if own[0] else "0"
        found[index] = {"noise": noise, **written, "grid": grid}
    return found


def grid_step(scale: float, radius: float) -> fmpq:
    """The least power of two >= scale 2^-16 and (radius + 12 scale) 2^-21 (section 14).

    `radius`: the largest of all that have this scale.
    """
    s, r = fmpq(*scale.as_integer_ratio()), fmpq(*radius.as_integer_ratio())
    finest, step = max(s / 2**16, (r + 12 * s) / 2**21), fmpq(1)
    while step < finest:
        step *= 2
    while step / 2 >= finest:
        step /= 2
    return step


def members_of(class_of: dict[int, int]) -> dict[int, int]:
    """The clients of each class as bits: as in `present`, client 0 in the highest one."""
    bits: dict[int, bytearray] = {}
    for client, index in class_of.items():
        held = bits.setdefault(index, bytearray(-(-len(class_of) // 8)))
        held[client // 8] |= 128 >> client % 8
    return {index: int.from_bytes(held, "big") for index, held in bits.items()}


def round_of(
    own: dict[str, str], classes: Classes, counts: dict[int, int], times: int, honest: Any
) -> dict[str, Any]:
    """One type of round as certificates state it; `counts`: others of each class.

    `honest`: `assumed_honest` of the run: None (all), a count, or a share as it was written.
    """
    arrived = 1 + sum(counts.values())
    kept = arrived if honest is None else honest
    if isinstance(honest, str):
        share = decimal(honest, "assumed_honest", fmpq(0), fmpq(1))
        kept = int((share * arrived).floor())
    others = [
        {"count": str(count), **{name: classes[i][name] for name in ("scale", "radius", "grid")}}
        for i, count in sorted(counts.items())
        if count and classes[i]["noise"] == "gaussian"
    ]
    return {
        "times": str(times),
        **own,
        "others": others,
        "colluders": str(arrived - min(arrived, max(1, kept))),
    }


def exact(value: float | fmpq) -> str:
    """The exact decimal expansion of a float, or of a power of two."""
    number = value if isinstance(value, (int, float)) else int(value.p) / int(value.q)
    return format(Decimal(number), "f")

"""The public facts about one client's rounds, read from a run's ledger (SQLite, schema 6 or 7).

Every released attempt at a round counts as its own round. A client that was present without being
counted honest is a colluder; others whose noise is not Gaussian hide nobody and are left out.
`released` is 1 and the number of an attempt's unusable reports, which hide nobody, no matter who
sent them.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections import Counter
from contextlib import closing
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from flint import fmpq

from .reading import Refused, decimal, require

SCHEMAS = (6, 7)
MOST_CLIENTS, MOST_CLASSES, MOST_ATTEMPTS = 10**7, 4000, 10**5
STEP, MOST_STEPS = 10**6, 10**4
"""SQLite's instructions between two looks, and the number of looks: a minute or more."""
NOISE = ("gaussian", "laplace", "user", "declared", "discrete-gaussian", "none")
PLAN = ("schema", "seed", "data", "relation", "dimension")
MAY_CHANGE = {"run.rounds", "run.out", "run.jobs", "run.timeout", "run.supernodes"}
MAY_CHANGE |= {"run.ray_address", "run.checkpoint_every", "data.root", "budgets.file"}
NOBODY = "warning: this run protects nobody: "
Rows = list[tuple[Any, ...]]


class LedgerFacts(NamedTuple):
    """A run's facts about one client, as a certificate states them."""

    facts: dict[str, Any]
    caveats: tuple[str, ...] = ()
    """What the ledger says against relying on the claim, in lines."""


def ledger_facts(path: Path, kind: str, client: int) -> LedgerFacts:
    """Return what a certificate of this kind states about `client`'s rounds; `Refused` where it
    cannot."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            # A stranger's file may hold views that compute for ever.
            steps = iter(range(MOST_STEPS))
            database.set_progress_handler(lambda: next(steps, None) is None, STEP)
            return _facts(database, kind, client)
    except Refused:
        raise
    except Exception as error:  # it may hold anything
        raise Refused(f"{path} cannot be read as a ledger: {error!r}") from None


def _facts(database: sqlite3.Connection, kind: str, client: int) -> LedgerFacts:
    def table(name: str, most: int) -> Rows:
        found = database.execute(f"SELECT * FROM {name} ORDER BY 1").fetchmany(most + 1)
        require(0 < len(found) <= most, f"{name}: none, or more than {most}")
        return found

    meta = {key: json.loads(value) for key, value in table("meta", 1000)}
    require(meta.get("schema") in SCHEMAS, "the ledger's schema is not 6 or 7")
    privacy, clients = meta["config"]["privacy"], table("clients", MOST_CLIENTS)
    require_kind(kind, meta["config"])
    class_of, size = [index for _, index in clients], -(-len(clients) // 8)
    numbered = [number for number, _ in clients] == list(range(len(clients)))
    # The chain holds no counts of rows: it binds them with the configuration's own.
    complete = len(clients) == meta["config"]["data"]["clients"]
    require(numbered and complete, "clients: not all, numbered from 0")
    require(client < len(clients), f"client {client} is not in the ledger")
    kinds, attempts = table("classes", MOST_CLASSES), table("reservations", MOST_ATTEMPTS)
    numbered = [row[0] for row in kinds] == list(range(len(kinds)))
    require(numbered and set(class_of) <= set(range(len(kinds))), "classes: not numbered from 0")
    classes = classes_of(kinds)
    own = classes[class_of[client]]
    require(own["noise"] == "gaussian", f"client {client}: its noise is not Gaussian")
    bits = [bytearray(size) for _ in classes]
    for number, index in clients:
        bits[index][number // 8] |= 128 >> number % 8  # as in `present`: client 0 in the highest
    members = [int.from_bytes(held, "big") for held in bits]
    seen = Counter[tuple[tuple[int, ...], int]]()
    for *_, released, held, _ in attempts:
        present = b"\xff" * size if held is None else held
        require(len(present) == size, "present: not a bit per client")
        if (released or kind == "local") and present[client // 8] << client % 8 & 128:
            mask = int.from_bytes(present, "big")
            counts = tuple((mask & some).bit_count() for some in members)
            unusable = max(0, int(released) - 1)
            require(unusable <= sum(counts), "released: more unusable reports than there are")
            seen[counts, unusable] += privacy["reports_per_round"]
    rounds = [
        round_of(classes, class_of[client], counts, times, privacy.get("assumed_honest"), unusable)
        for (counts, unusable), times in seen.items()
    ]
    link = last_link(meta, kinds, class_of, attempts)
    run = {"link": link, "unit": privacy["unit"], "relation": meta["relation"]}
    if privacy["reports_per_round"] > 1:
        run["reports_per_round"] = str(privacy["reports_per_round"])
    facts = {"run": run, "dimension": str(int(meta["dimension"])), "rounds": rounds}
    return LedgerFacts(facts, caveats_of(meta))


def caveats_of(meta: dict[str, Any]) -> tuple[str, ...]:
    """Return what this run's claims leave out although the ledger tells it, worst first."""
    run, not_covered, found = meta["config"]["run"], meta["records_not_covered"], []
    require(isinstance(not_covered, int), "records_not_covered: not a whole number")
    if run["entropy"] != "system":
        found.append(
            f"{NOBODY}its noise comes from a seed (run.entropy = {run['entropy']!r}). The ledger "
            "holds the seed, so its readers can subtract the noise. The claim is about the ideal "
            "noise that this run simulates"
        )
    if run["noise"] != "per-report":
        found.append(
            f"{NOBODY}no client added noise (run.noise = {run['noise']!r}). The simulation added "
            "noise to each round's sum"
        )
    if not_covered:
        found.append(
            f"warning: not covered are {not_covered} private records. The run published something "
            "exact about them (data.features, data.validation_fraction), which no claim counts"
        )
    return tuple(found)


def last_link(meta: dict[str, Any], kinds: Rows, class_of: list[int], attempts: Rows) -> str:
    """Return the newest attempt's link: a digest of its row, of all rows before it and of the plan.

    docs/reference/ledger-schema.md, The chain. Everything that the facts are made of is in it.
    """
    config = {
        f"{part}.{name}": value
        for part, values in meta["config"].items()
        for name, value in values.items()
        if f"{part}.{name}" not in MAY_CHANGE
    }
    plan = {"config": config, **{name: meta.get(name) for name in PLAN}}
    # A run that another version has continued keeps the chain that it began.
    plan["schema"] = meta.get("chain_schema", plan["schema"])
    digest = sha256(json.dumps(plan, sort_keys=True).encode())
    _, noise, *numbers, _ = zip(*kinds, strict=True)
    for code, values in zip("bdddddq", ([NOISE.index(x) for x in noise], *numbers), strict=True):
        digest.update(struct.pack(f"<{len(values)}{code}", *values))
    digest.update(struct.pack(f"<{len(class_of)}q", *class_of))
    link = digest.hexdigest()
    for *row, written in attempts:
        link = sha256(f"{link} {tuple(row)!r}".encode()).hexdigest()
        require(link == written, f"the ledger was changed: attempt {row[0]} does not fit its link")
    return link


def require_kind(kind: str, config: Any) -> None:
    """Require that the run is one that a claim of this kind can be about."""
    whole = config["training"]["schedule"] == "aggregate"
    mean = config["server"]["analyzer"] == "mean"
    require(kind in ("local", "sum", "shuffled"), f"no run makes a claim of kind {kind!r}")
    require(kind == "local" or whole, "the run's server sees single reports: only 'local' holds")
    require(kind != "sum" or mean, "the run's analyzer sees single reports: no 'sum'")
    few = config["privacy"].get("report_bits", 0)
    require(kind != "sum" or not few, "the run's reports are rounded to few bits: no 'sum'")
    noise = config["privacy"]["randomizer"]
    require(noise != "none", "the run protects nobody: its reports have no noise")
    require(noise != "discrete-gaussian", "claims are about continuous noise, not discrete")
    require(noise == "gaussian", "the run's reports are not Gaussian")


def classes_of(kinds: Rows) -> list[dict[str, str]]:
    """Return each class's noise and lengths as certificates write them, with its report grid."""
    lengths = [row[2:5] for row in kinds]
    require(all(isinstance(x, float) for own in lengths for x in own), "classes: not a number")
    reach: dict[float, float] = {}
    for scale, radius, _ in lengths:
        reach[scale] = max(radius, reach.get(scale, 0.0))
    return [
        {
            "noise": row[1],
            "scale": exact(scale),
            "radius": exact(radius),
            "sensitivity": exact(sensitivity),
            "grid": exact(grid_step(scale, reach[scale])) if scale else "0",
        }
        for row, (scale, radius, sensitivity) in zip(kinds, lengths, strict=True)
    ]


def grid_step(scale: float, radius: float) -> Fraction:
    """Return the least power of two >= scale 2^-16 and (radius + 12 scale) 2^-21 (section 14).

    `radius`: the largest of all that have this scale.
    """
    s, step = Fraction(scale), Fraction(1)
    finest = max(s / 2**16, (Fraction(radius) + 12 * s) / 2**21)
    while step < finest:
        step *= 2
    while step / 2 >= finest:
        step /= 2
    return step


def round_of(
    classes: list[dict[str, str]],
    own: int,
    counts: tuple[int, ...],
    times: int,
    honest: Any,
    unusable: int = 0,
) -> dict[str, Any]:
    """Return one type of round as certificates state it; `counts`: reports of each class, with the
    own.

    `honest`: `assumed_honest` of the run: None (all), a count, or a share of the reports. All of
    the `unusable` ones may be honest, and hide nobody.
    """
    arrived = sum(counts)
    kept = arrived if honest is None else honest
    if isinstance(honest, float):
        share = decimal(repr(honest), "assumed_honest", fmpq(0), fmpq(1))
        kept = int((share * arrived).floor())
    others = [
        {"count": str(count), **{name: each[name] for name in ("scale", "radius", "grid")}}
        for index, (each, here) in enumerate(zip(classes, counts, strict=True))
        if (count := here - (index == own)) and each["noise"] == "gaussian"
    ]
    colluders = arrived - max(1, min(arrived, max(1, kept)) - unusable)
    return {"times": str(times), **classes[own], "others": others, "colluders": str(colluders)}


def exact(value: float | Fraction) -> str:
    """Return the exact decimal expansion of a float, or of a power of two."""
    return format(Decimal(float(value)), "f")

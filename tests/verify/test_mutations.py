"""Mutations of accepted certificates: what makes the claim false is refused, and nothing crashes.

Whether a mutated claim is still true is told by the facts alone, without the verifier: the cost of
its facts must be no larger than before, and no smaller epsilon or delta claimed.
"""

from __future__ import annotations

import json
import math
import random
import time
from copy import deepcopy
from typing import Any

import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from fl_shuffle.certificates.writing import exact
from fl_shuffle.verify.claims import check
from fl_shuffle.verify.reading import Refused
from tests.verify.made import built, strings

SHARES = {"local": 400, "sum": 500, "finite": 400, "krr": 250, "convex": 200, "gram": 250}
"""Of 2,000 mutations."""
STRANGE = ["", "-1", "0", "1e-300", "1e300", "9" * 40, "NaN", "1_000", "any", 3, None, True, [], {}]
FACTORS = [0.25, 0.5, 0.9, 0.99, 0.999, 1.001, 1.01, 1.1, 2.0, 8.0, -1.0]
LONGEST = 60.0
"""Seconds of CPU: the work that a certificate may ask for is bounded."""


def holder_of(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path[:-1]:
        value = value[step]
    return value


def number(text: Any) -> float | None:
    try:
        return float(text) if isinstance(text, str) else None
    except ValueError:
        return None


def mutated(written: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """One change, or two, at random places: claim and facts oftener than the witness."""
    changed = deepcopy(written)
    for _ in range(draw.choice((1, 1, 1, 2))):
        paths = [p for p in strings(changed) if p[0] in ("claim", "facts")]
        if draw.random() < 0.4:
            paths = list(strings(changed))
        path = draw.choice(paths)
        holder = holder_of(changed, path)
        held = holder[path[-1]]
        value = number(held)
        how = draw.random()
        if value is not None and how < 0.6:
            new = value * draw.choice(FACTORS)
            if "." not in held:
                new = value + draw.choice((-1, 1)) if draw.random() < 0.5 else round(new)
            holder[path[-1]] = str(int(new)) if "." not in held else exact(new)
        elif how < 0.75:
            del holder[path[-1]]
        elif isinstance(holder, list) and how < 0.9:
            holder.append(deepcopy(holder[draw.randrange(len(holder))]))
        elif how < 0.95:
            other = draw.choice(paths)
            try:
                holder[path[-1]] = deepcopy(holder_of(changed, other)[other[-1]])
            except (KeyError, IndexError, TypeError):
                continue
        else:
            holder[path[-1]] = draw.choice(STRANGE)
    return changed


def costs(kind: str, written: dict[str, Any]) -> list[tuple[float, ...]]:
    """What grows with the claim's cost; componentwise smaller facts are cheaper."""
    held = written["facts"]
    if kind in ("finite", "krr"):
        r = held["randomizer"]
        clients, k = float(held["clients"]), float(r["k"])
        return [(-clients, float(held["times"]), float(r["epsilon0"]), -k)]
    rounds = held["rounds"]
    moves = [min(float(r["sensitivity"]), 2 * float(r["radius"])) for r in rounds]
    if kind in ("local", "sum"):
        hiding = [variance(r) if kind == "sum" else float(r["scale"]) ** 2 for r in rounds]
        each = zip(rounds, moves, hiding, strict=True)
        return [(sum(float(r["times"]) * m**2 / v for r, m, v in each),)]
    found = []
    for r, m in zip(rounds, moves, strict=True):
        scale, left = float(r["scale"]), int(float(r["colluders"]))
        near = sorted(
            (float(o["radius"]), int(float(o["count"])))
            for o in r["others"]
            if float(o["scale"]) == scale
        )
        hidden = []
        for radius, count in near:
            lost = min(left, count)
            left -= lost
            hidden += [radius / scale] * (count - lost)
        # Of 60 or 300 others each has its place: the nearest are the 1st, the 2nd, ...
        hidden += [math.inf] * (1000 - len(hidden))
        found.append((float(r["times"]), m / scale, float(r["radius"]) / scale, *hidden))
    return sorted(found)


def variance(r: dict[str, Any]) -> float:
    """V of section 14 where all steps are one: the colluders are those that count most."""
    alone, grid = float(r["scale"]) ** 2, float(r["grid"])
    counted = []
    for o in r["others"]:
        s, g = float(o["scale"]), float(o["grid"])
        apart = (
            g != grid
            and min(s if g < grid else math.sqrt(alone), math.inf) ** 2 < 32 * max(g, grid) ** 2
        )
        if min(s / g, math.sqrt(alone) / grid) >= 8 and not apart:
            counted += [s * s - 64 * g * g] * int(float(o["count"]))
    left = int(float(r["colluders"]))
    return max(alone, alone - 64 * grid**2 + sum(sorted(counted)[: max(0, len(counted) - left)]))


def no_stronger(kind: str, before: dict[str, Any], after: dict[str, Any]) -> bool | None:
    """Whether the mutated claim follows from the accepted one; None where it may or may not."""
    claims = before["claim"], after["claim"]
    if any(
        float(claims[1][name]) < float(claims[0][name]) * (1 - 1e-5)
        for name in ("epsilon", "delta")
    ):
        return None  # less is claimed to be spent: only cheaper facts could bear that
    if any(claims[0][name] != claims[1][name] for name in ("kind", "relation", "adversary")):
        return False
    was, now = costs(kind, before), costs(kind, after)
    if len(now) > len(was):
        return False
    slack = 1 + 2e-5
    return all(
        any(
            all(y <= max(x * slack, x / slack) for x, y in zip(one, other, strict=True))
            for one in was
        )
        for other in now
    )


def tried(kind: str, count: int, seed: int) -> tuple[int, int]:
    """How many of `count` mutations were accepted, and how many were refused."""
    written, draw = built(kind), random.Random(seed)
    check(json.dumps(written))
    accepted = refused = 0
    for _ in range(count):
        changed = mutated(written, draw)
        start = time.process_time()
        try:
            found = check(json.dumps(changed))
        except Refused:
            refused += 1
            continue
        finally:
            assert time.process_time() - start < LONGEST
        accepted += 1
        same = all(changed.get(name) == written[name] for name in ("claim", "facts", "assumptions"))
        if same:
            continue
        assert changed["assumptions"] == written["assumptions"]
        assert changed["claim"].keys() == written["claim"].keys()
        if kind in ("local", "sum"):
            # Exact: the Gaussian profile at mu.
            claim, ((square,),) = changed["claim"], costs(kind, changed)
            delta = float(gaussian_profile(float(claim["epsilon"]), math.sqrt(square or 1e-30)))
            assert delta <= float(claim["delta"]) * (1 + 1e-9)
        follows = no_stronger(kind, written, changed)
        if follows is None:
            was, now = costs(kind, written), costs(kind, changed)
            assert now != was, changed["claim"]
            continue
        if kind == "finite" and not follows:
            # The claim's single point leaves it some room: the accountant says what is true.
            r, claim = changed["facts"]["randomizer"], changed["claim"]
            delta = fs.bound(
                method="blanket",
                randomizer="krr",
                k=int(r["k"]),
                epsilon0=float(r["epsilon0"]),
                clients=int(changed["facts"]["clients"]),
                epsilon=float(claim["epsilon"]),
            ).delta
            follows = changed["facts"]["times"] == "1" and delta <= float(claim["delta"]) * 1.001
        assert follows, (kind, changed["claim"], changed["facts"])
        assert float(found.verified) <= float(found.delta.p) / float(found.delta.q)
    return accepted, refused


@pytest.mark.parametrize("kind", ["local", "sum", "finite"])
def test_a_sample_of_mutations(kind: str) -> None:
    accepted, refused = tried(kind, 60, 1)
    assert accepted > 1
    assert refused > 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SHARES))
def test_two_thousand_mutations(kind: str) -> None:
    accepted, refused = tried(kind, SHARES[kind], 2)
    assert accepted > SHARES[kind] // 50
    assert refused > SHARES[kind] // 4

"""Mutations of accepted certificates: what makes the claim false is refused, and nothing crashes.

Whether a mutated claim may be true is told without the verifier: by closed forms, by the accountant
of finite reports, or by what its facts cost beside those of the accepted claim.
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
from tests.oracles import divergence_among_equals
from tests.verify.made import built, held, move_of, mu_of, strings

SHARES = {"local": 400, "sum": 500, "finite": 400, "krr": 250, "convex": 200, "gram": 250}
"""Of 2,000 mutations."""
STRANGE = ["", "-1", "0", "1e-300", "1e300", "9" * 40, "NaN", "1_000", "any", 3, None, True, [], {}]
FACTORS = [0.25, 0.5, 0.9, 0.99, 0.999, 1.001, 1.01, 1.1, 2.0, 8.0, -1.0]
LONGEST = 60.0
"""Seconds of CPU: the work that a certificate may ask for is bounded."""


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
        holder = held(changed, path[:-1])
        before = holder[path[-1]]
        value = number(before)
        how = draw.random()
        if value is not None and how < 0.6:
            new = value * draw.choice(FACTORS)
            if "." not in before:
                new = value + draw.choice((-1, 1)) if draw.random() < 0.5 else round(new)
            holder[path[-1]] = str(int(new)) if "." not in before else exact(new)
        elif how < 0.75:
            del holder[path[-1]]
        elif isinstance(holder, list) and how < 0.9:
            holder.append(deepcopy(holder[draw.randrange(len(holder))]))
        elif how < 0.95:
            other = draw.choice(paths)
            try:
                holder[path[-1]] = deepcopy(held(changed, other))
            except (KeyError, IndexError, TypeError):
                continue
        else:
            holder[path[-1]] = draw.choice(STRANGE)
    return changed


def true_by_itself(kind: str, written: dict[str, Any]) -> bool:
    """Whether the claim holds by a closed form, or by the accountant of finite reports."""
    claim, facts = written["claim"], written["facts"]
    epsilon, delta = float(claim["epsilon"]), float(claim["delta"])
    if kind in ("local", "sum"):
        mu = max(mu_of(kind, facts), 1e-15)
        return bool(gaussian_profile(epsilon, mu) <= delta * (1 + 1e-9))
    r = facts["randomizer"]
    found = fs.bound(
        method="blanket", randomizer="krr", k=int(r["k"]), epsilon0=float(r["epsilon0"]),
        clients=int(facts["clients"]), rounds=int(facts["times"]), epsilon=epsilon,
    )  # fmt: skip
    return bool(found.delta is not None and found.delta <= delta * 1.001)


def below_a_data_set(written: dict[str, Any]) -> bool:
    """Whether the first round alone spends more than the claim, where all others hold one mean."""
    claim, r = written["claim"], written["facts"]["rounds"][0]
    near = [o for o in r["others"] if o["scale"] == r["scale"]]
    count = sum(int(float(o["count"])) for o in near) - int(float(r["colluders"]))
    scale = float(r["scale"])
    reach = min([float(o["radius"]) for o in near], default=0.0) / scale
    mu = move_of(r) / scale
    spent = (
        divergence_among_equals(mu, at, max(count, 0), float(claim["epsilon"]))
        for at in (-min(reach, mu / 2), 0.0, min(reach, mu / 2))
    )
    return max(spent) > float(claim["delta"]) * (1 + 1e-6)


def costs(written: dict[str, Any]) -> list[tuple[float, ...]]:
    """What grows with the cost of rounds of reports; componentwise smaller facts are cheaper."""
    found = []
    for r in written["facts"]["rounds"]:
        scale = float(r["scale"])
        near: list[float] = []
        for o in r["others"]:
            if float(o["scale"]) == scale:
                near += [float(o["radius"]) / scale] * int(float(o["count"]))
        # Of 60 or 300 others each has its place: the nearest are the 1st, the 2nd, ...
        hidden = sorted(near)[int(float(r["colluders"])) :]
        hidden += [math.inf] * (1000 - len(hidden))
        found.append((float(r["times"]), move_of(r) / scale, float(r["radius"]) / scale, *hidden))
    return sorted(found)


def no_dearer(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether every round's facts are those of an accepted one, or cheaper."""
    was, now, slack = costs(before), costs(after), 1 + 2e-5
    return len(now) <= len(was) and all(
        any(
            all(y <= max(x * slack, x / slack) for x, y in zip(one, other, strict=True))
            for one in was
        )
        for other in now
    )


def may_be_true(kind: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether a mutated claim that was accepted may hold, given that the one before does.

    By itself, where that can be said. Otherwise a claim of no smaller epsilon and delta follows
    from facts that are no dearer; one that is smaller in both, or in one of them alone, needs
    other facts; one with a smaller epsilon and a larger delta, or the reverse, is neither
    stronger nor weaker, and only a data set that spends more can say that it is false.
    """
    claims = before["claim"], after["claim"]
    if any(claims[0][name] != claims[1][name] for name in ("kind", "relation", "adversary")):
        return False
    if kind in ("local", "sum", "finite", "krr"):
        return true_by_itself(kind, after)
    if below_a_data_set(after):
        return False
    less, more = (
        any(
            sign * (float(claims[1][name]) / float(claims[0][name]) - 1) > 1e-5
            for name in ("epsilon", "delta")
        )
        for sign in (-1, 1)
    )
    if less:
        return more or costs(before) != costs(after)
    return no_dearer(before, after)


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
        assert changed["assumptions"] == written["assumptions"]
        assert changed["claim"].keys() == written["claim"].keys()
        if any(changed[name] != written[name] for name in ("claim", "facts")):
            assert may_be_true(kind, written, changed), (kind, changed["claim"], changed["facts"])
        assert float(found.verified) <= float(found.delta.p) / float(found.delta.q)
    return accepted, refused


def test_a_mutated_claim_is_judged_by_epsilon_and_delta_together() -> None:
    """Of the same facts; the last one is smaller than what a data set spends."""
    written = built("convex")
    for epsilon, delta, judged in ((1, 1, 1), (2, 2, 1), (0.9, 1, 0), (1, 0.5, 0), (0.9, 8, 1),
                                   (1e-3, 1.2, 0)):  # fmt: skip
        changed = deepcopy(written)
        for name, factor in (("epsilon", epsilon), ("delta", delta)):
            changed["claim"][name] = exact(factor * float(written["claim"][name]))
        assert may_be_true("convex", written, changed) is bool(judged)


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

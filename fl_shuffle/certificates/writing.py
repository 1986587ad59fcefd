"""From public facts to a certificate that is accepted, with the epsilon it vouches for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from flint import arb

from fl_shuffle.certificates import finite
from fl_shuffle.certificates.gaussian_rounds import shuffled_witness
from fl_shuffle.certificates.lines import one_point, single_curve
from fl_shuffle.errors import NotApplicableError
from fl_shuffle.verify.balls import Profile
from fl_shuffle.verify.claims import (
    FORMAT,
    KINDS,
    RELATIONS,
    VERSION,
    WORK,
)
from fl_shuffle.verify.reading import MOST_BYTES, Fields, Refused, Work

DIGITS = 6
"""Of the claimed epsilon, rounded up."""


def exact(value: float | int) -> str:
    """Return the exact decimal expansion of a float."""
    return format(Decimal(value), "f")


def rounded_up(value: float, digits: int = DIGITS) -> str:
    """Return at least `value`, with this number of significant digits."""
    if value <= 0:
        return "0"
    unit = Decimal(10) ** (math.floor(math.log10(value)) - digits + 1)
    return format((Decimal(value) / unit).to_integral_value("ROUND_CEILING") * unit, "f")


def smallest_epsilon(holds: Callable[[float], bool], start: float, within: float = 1e-6) -> float:
    """Return the smallest epsilon, to `within` of it, that holds; looked for upwards from
    `start`."""
    low, high = 0.0, max(start, 1e-9)
    while not holds(high):
        low, high = high, 2 * high
        if high > 600:
            raise NotApplicableError("no certificate was found: no epsilon below 600 holds")
    if holds(low):
        return low
    while high - low > within * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def proven(
    kind: str,
    facts: Mapping[str, Any],
    witness: Mapping[str, Any],
    work: float = WORK,
    told: Callable[[int], None] | None = None,
) -> Profile:
    """Return the curve that the verifier finds with this much work; `NotApplicableError` where it
    would refuse the witness. `told` gets the number of points begun."""
    stated, chosen = Fields(dict(facts), "facts"), Fields(dict(witness), "witness")
    try:
        return KINDS[kind].bound(stated, chosen, Work(work, told))
    except (Refused, ArithmeticError, ValueError) as why:
        raise NotApplicableError(f"no certificate was found: {why}") from None


def certificate(
    kind: str,
    facts: Mapping[str, Any],
    witness: Mapping[str, Any],
    *,
    unit: str,
    client: int | None,
    delta: float,
    start: float,
    relation: str = RELATIONS[0],
    page: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the claim of the smallest epsilon that facts and witness bear, at `delta`.

    `start`: an epsilon near which it is looked for, such as the printed one. `page`: a witness by
    convex order alone, whose epsilon is stated beside it, or which takes its place where it proves
    as much. `tell` receives progress lines. Raises `NotApplicableError` where
    the witness proves nothing, or the file would be too large.
    """
    # What a verifier may spend is for both witnesses together.
    work, allowed = WORK if page is None else WORK / 2, arb(exact(delta))

    def smallest(chosen: Mapping[str, Any]) -> str:
        profile = proven(
            kind, facts, chosen, work, lambda number: tell(f"what it proves, point {number}")
        )
        try:
            found = smallest_epsilon(lambda x: bool(profile(arb(x)) <= allowed), start)
        except Refused as why:
            raise NotApplicableError(f"no certificate was found: {why}") from None
        return rounded_up(found)

    epsilon = smallest(witness)
    beside: dict[str, Any] = {}
    if page is not None:
        beside = {"by a page": {"epsilon": smallest(page), "witness": dict(page)}}
        if float(beside["by a page"]["epsilon"]) <= float(epsilon):
            epsilon, witness, beside = beside["by a page"]["epsilon"], page, {}
    run = facts.get("run", {})
    written = {
        "format": FORMAT,
        "version": VERSION,
        "claim": {
            "kind": kind,
            "unit": unit,
            "relation": relation,
            "adversary": KINDS[kind].adversary,
            "client": "any" if client is None else str(client),
            "epsilon": epsilon,
            "delta": exact(delta),
        },
        "assumptions": KINDS[kind].assumptions(int(run.get("reports_per_round", "1"))),
        "facts": dict(facts),
        "witness": dict(witness),
        **beside,
    }
    if len(text_of(written)) > MOST_BYTES:
        raise NotApplicableError("no certificate was found: it would be larger than 1 MiB")
    return written


def randomized_response(
    k: int, epsilon0: float, clients: int, times: int, delta: float, start: float
) -> dict[str, Any]:
    """Return a certificate for `times` rounds of `clients` reports of k-ary randomized response."""
    facts = {
        "randomizer": {"name": "krr", "k": str(k), "epsilon0": exact(epsilon0)},
        "clients": str(clients),
        "times": str(times),
    }
    witness: dict[str, Any]
    if times == 1:

        def only(step: str) -> tuple[dict[str, Any], float]:
            held = finite.point(k, epsilon0, clients, float(step), single=True)
            points, window = single_curve(step, dict(held))
            profile = proven("finite", facts, {**window, "points": points})
            return dict(held), float(profile(arb(step).mid()))

        points, window = one_point(only, start, delta)
        witness = {**window, "points": points}
    else:
        witness = dict(finite.curve(k, epsilon0, clients, times, delta))
    return certificate(
        "finite", facts, witness, unit="client", client=None, delta=delta, start=start
    )


def text_of(written: Mapping[str, Any]) -> str:
    """Return the file's text."""
    return json.dumps(written, separators=(",", ":")) + "\n"


__all__ = ["certificate", "exact", "randomized_response", "shuffled_witness", "text_of"]

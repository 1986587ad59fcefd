"""Reading a certificate from a stranger: JSON with limits, fields by type, exact numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from flint import arb, fmpq

MOST_BYTES = 1 << 20
DEEPEST = 8
LARGEST_EPSILON = 600
SMALL, LARGE = fmpq(1, 10**30), fmpq(10**30)
NUMBER = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,120})?([eE][+-]?[0-9]{1,3})?")


class Refused(Exception):
    """The first thing that does not hold."""


class Work:
    """Steps that are left, of about 50 ns each: no certificate may keep a reader busy for long."""

    def __init__(self, allowed: float, told: Callable[[int], None] | None = None) -> None:
        self.left, self.points, self._told = allowed, 0, told

    def begin_point(self) -> None:
        """Write progress: how many points of curves have been begun."""
        self.points += 1
        if self._told is not None:
            self._told(self.points)

    def spend(self, steps: float) -> None:
        """Take `steps` away; refuses where none are left."""
        self.left -= steps
        require(self.left > 0, "the certificate asks for too much work")


def require(holds: object, why: str) -> None:
    """Refuse with `why` unless `holds`."""
    if not holds:
        raise Refused(why)


def decimal(text: Any, name: str, low: Any = SMALL, high: Any = LARGE) -> fmpq:
    """Return the exact rational that a decimal string writes, within [low, high]."""
    readable = isinstance(text, str) and NUMBER.fullmatch(text)
    require(readable, f"{name}: not a decimal number as a string")
    value = fmpq(*Fraction(text).as_integer_ratio())
    require(low <= value <= high, f"{name}: not from {low} to {high}")
    return value


def whole(text: Any, name: str, low: int, high: Any) -> int:
    """Return the integer that a decimal string writes, within [low, high]."""
    value = decimal(text, name, low, high)
    require(value.q == 1, f"{name}: not a whole number")
    return int(value.p)


class Fields:
    """An object of the file, whose fields are read by type; what is not of its type is refused."""

    def __init__(self, held: Any, name: str) -> None:
        require(isinstance(held, dict), f"{name}: not an object")
        self.held: dict[str, Any] = held
        self.name, self.unread = name, set(held)
        self.parts: list[Fields] = []

    def get(self, name: str) -> Any:
        """Return whatever stands there, or None."""
        self.unread.discard(name)
        return self.held.get(name)

    def require_all_read(self) -> None:
        """Refuse a field that nothing has asked for: nobody can say what it would mean."""
        require(not self.unread, f"{self.name}: unknown field {min(self.unread, default='')!r}")
        for part in self.parts:
            part.require_all_read()

    def number(self, name: str, low: Any = SMALL, high: Any = LARGE) -> fmpq:
        """Return an exact rational within [low, high]."""
        return decimal(self.get(name), name, low, high)

    def free(self, name: str, low: Any = SMALL, high: Any = 10**9) -> arb:
        """Return a parameter that may be anything within [low, high]: rounded to an exact
        number."""
        return arb(self.number(name, low, high)).mid()

    def integer(self, name: str, low: int, high: int) -> int:
        """Return a whole number within [low, high]."""
        return whole(self.get(name), name, low, high)

    def word(self, name: str, *allowed: str) -> str:
        """Return one of the words `allowed`."""
        value = self.get(name)
        require(value in allowed, f"{name}: not {' or '.join(allowed)}")
        return str(value)

    def items(self, name: str, most: int, least: int = 0) -> list[Any]:
        """Return a list of `least` to `most` items."""
        value = self.get(name)
        listed = isinstance(value, list) and least <= len(value) <= most
        require(listed, f"{name}: not a list of {least} to {most} items")
        return list(value)

    def objects(self, name: str, most: int, least: int = 0) -> list[Fields]:
        """Return a list of objects."""
        found = [Fields(value, name) for value in self.items(name, most, least)]
        self.parts += found
        return found

    def object(self, name: str) -> Fields:
        """Return an object."""
        self.parts.append(Fields(self.get(name), name))
        return self.parts[-1]


def parse(text: str) -> Fields:
    """Return a JSON object of bounded size and depth, without repeated names; every number a
    string."""
    require(len(text.encode(errors="replace")) <= MOST_BYTES, "larger than 1 MiB")
    depth = 0
    for mark in re.findall(r"[\[{}\]]", re.sub(r'"(\\.|[^"\\])*"', "", text)):
        depth += 1 if mark in "[{" else -1
        require(depth <= DEEPEST, f"nested more than {DEEPEST} deep")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        require(len(found) == len(pairs), "a name occurs twice in one object")
        return found

    # Where a number stands there is nothing: numbers are strings.
    numbers: Any = dict.fromkeys(("parse_float", "parse_int", "parse_constant"), lambda text: None)
    try:
        return Fields(json.loads(text, object_pairs_hook=unique, **numbers), "the certificate")
    except (ValueError, RecursionError) as error:
        raise Refused(f"not JSON: {error}") from None

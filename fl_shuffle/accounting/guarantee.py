"""A bound is not a float: what is claimed, how it was obtained, and how sure that is.

Units are nats. The neighboring relation is replace-one (same number of units, one changed).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import ROUND_CEILING, Decimal
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.settings_schema import json_ready


class Status(StrEnum):
    """How much a number may claim. Only `PROVEN` upper bounds are guarantees.

    `NONE` stands where there is no number, because nothing protects anybody.
    """

    PROVEN = "proven"
    AS_PUBLISHED = "as published"
    LOWER_BOUND = "lower bound"
    DECLARED = "as declared by the clients"
    NONE = "none"


@dataclass(frozen=True)
class Guarantee:
    """One (epsilon, delta) statement about a shuffled release, with its status.

    Parameters
    ----------
    epsilon : float
        In nats, at least 0. It may be infinite: nothing is promised.
    delta : float
        In [0, 1].
    method : str
        Name of the bound.
    status : Status
        How much the number may claim.
    source : str
        Paper and theorem, or section of docs/research/proofs.
    assumptions : tuple of str, optional
        What must hold for the statement.
    relation : str, default "replace-one"
        The neighboring relation.
    unit : str, default "record"
        What neighbors replace.
    numerical_error : float, default 0.0
        Part of the reported delta that was added for discretization, truncation, and round-off. It
        is already inside the number.
    details : mapping, optional
        Further values, ready for JSON.

    Raises
    ------
    InvalidValueError
        For NaN or a negative epsilon, and for delta outside [0, 1].

    Examples
    --------
    >>> import fl_shuffle as fs
    >>> answer = fs.bound(randomizer="krr", k=10, epsilon0=1.0, clients=10_000, delta=1e-6)
    >>> answer.is_guarantee, answer.relation, answer.numerical_error < answer.delta
    (True, 'replace-one', True)
    """

    epsilon: float
    delta: float
    method: str
    status: Status
    source: str
    assumptions: tuple[str, ...] = ()
    relation: str = "replace-one"
    unit: str = "record"
    numerical_error: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Written so that NaN is refused, too.
        if not (self.epsilon >= 0.0):
            raise InvalidValueError("epsilon", self.epsilon, "must be >= 0 (it may be infinite)")
        if not (0.0 <= self.delta <= 1.0):
            raise InvalidValueError("delta", self.delta, "must be in [0, 1]")
        object.__setattr__(self, "details", MappingProxyType(dict(self.details)))

    def __reduce__(self) -> tuple[object, ...]:
        # A read-only view of a mapping can be neither pickled nor copied.
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return partial(Guarantee, **{**values, "details": dict(self.details)}), ()

    @property
    def is_guarantee(self) -> bool:
        """Whether this may be printed as a privacy guarantee: a proven upper bound."""
        return self.status is Status.PROVEN

    def __str__(self) -> str:
        word = "not below" if self.status is Status.LOWER_BOUND else "<="
        return (
            f"epsilon {word} {self.epsilon:.6g} at delta = {self.delta:.6g} "
            f"[{self.status}; {self.method}; {self.relation}, unit = {self.unit}; {self.source}]"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping.

        Infinite numbers become the string "inf", because JSON has no infinity.
        """
        found: dict[str, Any] = json_ready(self)
        return found


def proof_over_attack(proven: float | None, lower: float | None) -> float | None:
    """Return how many times a proven number exceeds a lower bound; None without one of the two.

    Never below one, unless one of the two is wrong. A better proof or attack can gain this factor.
    """
    if proven is None or lower is None or not (lower > 0.0 and math.isfinite(proven)):
        return None
    return proven / lower


def gain_at_most(ratio: float) -> str:
    """Return `proof_over_attack` for a line that says "at most".

    Three significant digits, rounded up.
    """
    # The exact binary value: of a rounded one, the ceiling could end below it.
    exact = Decimal(ratio)
    # One unit of the third significant digit.
    unit = Decimal(10) ** (exact.adjusted() - 2)
    return f"{float((exact / unit).to_integral_value(ROUND_CEILING) * unit):.5g}"


def ratio_line(ratio: float) -> str:
    """Return how every output words `proof_over_attack`."""
    most = gain_at_most(ratio)
    return f"proven / lower = {most}: a better proof can lower epsilon by this factor at most"

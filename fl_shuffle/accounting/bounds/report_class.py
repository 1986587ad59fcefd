"""Clients whose vector reports look alike: the same noise on means in the same ball."""

from __future__ import annotations

from dataclasses import dataclass

from fl_shuffle.accounting.limits import MAX_CLIENTS
from fl_shuffle.errors import InvalidValueError, require_choice, require_integer, require_real

NOISES = ("gaussian", "laplace")


@dataclass(frozen=True)
class ReportClass:
    """`count` clients whose reports carry the same noise and lie in the same ball.

    `noise` is "gaussian" (`scale` = sigma per coordinate, l2 norms) or "laplace" (`scale` = b, l1
    norms). `radius` bounds the norm of the mean report; `sensitivity` bounds how far that mean
    moves when one unit of privacy is replaced (never more than twice the radius: larger is cut).
    """

    noise: str
    scale: float
    radius: float
    sensitivity: float
    count: int = 1

    def __post_init__(self) -> None:
        require_choice("noise", self.noise, NOISES)
        require_real("scale", self.scale, minimum=0.0, exclusive_minimum=True)
        require_real("radius", self.radius, minimum=0.0)
        require_real("sensitivity", self.sensitivity, minimum=0.0)
        require_integer("count", self.count, minimum=0, maximum=MAX_CLIENTS)
        for name in ("radius", "sensitivity"):
            ratio = getattr(self, name) / self.scale
            if not ratio <= 1e12:
                raise InvalidValueError("scale", self.scale, f"is negligible beside the {name}")

    @property
    def ratio(self) -> float:
        """How far replacing one unit moves the mean, in noise widths."""
        return min(self.sensitivity, 2.0 * self.radius) / self.scale

"""Fields of a section: what each allows, said where the field is declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from fl_shuffle.errors import (
    InvalidValueError,
    require_choice,
    require_integer,
    require_real,
)
from fl_shuffle.plugins import registered

Check = Callable[[str, Any], Any]


def real_field(default: float, **limits: Any) -> Any:
    return field(
        default=default,
        metadata={"check": lambda name, value: require_real(name, value, **limits)},
    )


def optional_real_field(**limits: Any) -> Any:
    def check(name: str, value: Any) -> float | None:
        return None if value is None else require_real(name, value, **limits)

    return field(default=None, metadata={"check": check})


def count_or_share_field() -> Any:
    """A whole number >= 1 is a count, another number in (0, 1) a share; None if it is not given."""

    def check(name: str, value: Any) -> int | float | None:
        if value is None:
            return None
        if isinstance(value, float) and 0.0 < value < 1.0:
            return value
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        raise InvalidValueError(
            name,
            value,
            "must be a whole number >= 1 (a count) or a number in (0, 1) (a share)",
            "leave it out where all clients are taken to be honest",
        )

    return field(default=None, metadata={"check": check})


def integer_field(default: int, **limits: Any) -> Any:
    return field(
        default=default,
        metadata={"check": lambda name, value: require_integer(name, value, **limits)},
    )


def flag_field(default: bool) -> Any:
    def check(name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise InvalidValueError(name, value, "must be true or false")
        return value

    return field(default=default, metadata={"check": check})


def text_field(default: str, *, allow_empty: bool = True) -> Any:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidValueError(name, value, "must be a text")
        if not allow_empty and not value:
            raise InvalidValueError(name, value, "must not be empty")
        return value

    return field(default=default, metadata={"check": check})


def choice_field(default: str, *options: str) -> Any:
    return field(
        default=default,
        metadata={"check": lambda name, value: require_choice(name, value, options)},
    )


def choice_or_path_field(default: str, *options: str, group: str = "") -> Any:
    """One of the named options, a user's own `module:attribute`, or a name that an installed
    package gives its own in the entry-point group `fl_shuffle.GROUP` (kept as the path it stands
    for)."""

    def check(name: str, value: Any) -> str:
        if isinstance(value, str) and value.count(":") == 1 and all(value.split(":")):
            return value
        if group and isinstance(value, str) and value not in options:
            named = registered(group)
            if value in named:
                return named[value]
            return require_choice(name, value, [*options, *named, "module:function"])
        return require_choice(name, value, [*options, "module:function"])

    return field(default=default, metadata={"check": check})


def integers_field(default: tuple[int, ...], *, minimum: int) -> Any:
    def check(name: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise InvalidValueError(name, value, f"must be a list of whole numbers >= {minimum}")
        return tuple(
            require_integer(f"{name}[{index}]", item, minimum=minimum)
            for index, item in enumerate(value)
        )

    return field(default=default, metadata={"check": check})


def table_field() -> Any:
    def check(name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise InvalidValueError(name, value, "must be a table of options")
        return dict(value)

    return field(default_factory=dict, metadata={"check": check})

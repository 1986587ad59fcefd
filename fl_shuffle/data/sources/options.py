"""Reading `data.source_options`: each source says what it takes, and everything else is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl_shuffle.errors import ConfigError, InvalidValueError, require_integer, suggestion

FIELD = "data.source_options"


def require_known(options: Mapping[str, Any], source: str, known: tuple[str, ...]) -> None:
    """Raise `ConfigError` for an option that the source does not take."""
    for name in options:
        if name not in known:
            hint = suggestion(name, known) or f"it takes {', '.join(known)}"
            raise ConfigError(f"{FIELD}.{name}: source {source!r} takes no such option; {hint}")


def text_option(options: Mapping[str, Any], name: str, default: str) -> str:
    """Return a text, not empty unless the default is."""
    value = options.get(name, default)
    if not isinstance(value, str) or (not value and default):
        raise InvalidValueError(f"{FIELD}.{name}", value, "must be a text")
    return value


def texts_option(options: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a list of different texts; empty where it is not given."""
    value = options.get(name, ())
    fits = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
    if not fits or len(set(value)) != len(value):
        raise InvalidValueError(f"{FIELD}.{name}", value, "must be a list of different texts")
    return tuple(value)


@dataclass(frozen=True)
class Target:
    """What is predicted, as declared: one of `classes` (perhaps by `names`), or `outputs`."""

    classes: int
    outputs: int
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any], source: str) -> Target:
        """Return the target from the options `classes`, `class_names` and `outputs`; one of them
        must be given."""
        names = texts_option(options, "class_names")
        if ("classes" in options) + bool(names) + ("outputs" in options) != 1:
            raise ConfigError(
                f'{FIELD}: source {source!r} needs one of classes = 10, class_names = ["cat", '
                '"dog"] or, for regression, outputs = 1; it is published with the model\'s shape '
                "and never read from the labels"
            )
        counts = {
            name: require_integer(f"{FIELD}.{name}", options[name], minimum=1)
            for name in ("classes", "outputs")
            if name in options
        }
        return cls(counts.get("classes", len(names)), counts.get("outputs", 0), names)

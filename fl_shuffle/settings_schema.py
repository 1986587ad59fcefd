"""One declaration per setting: type, default, range, help, flag, and what it needs to count.

A section of the configuration, or a question to the accountant, is a frozen dataclass whose fields
are made by `setting`, each with what it is in a text below it. Checks and their messages, reading
of TOML and JSON, options of the command line, Python signatures and the reference page come from
it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, partial, wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fl_shuffle.errors import (
    ConfigError,
    InvalidValueError,
    require_choice,
    require_integer,
    require_real,
    suggestion,
)

if TYPE_CHECKING:
    from argparse import ArgumentParser, _ArgumentGroup

Q = TypeVar("Q")
R = TypeVar("R")
P = ParamSpec("P")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one field allows and means. `kind` is its annotation, as written.

    `low` and `high` are allowed, `above` and `below` are not. `own` names the entry-point group of
    `module:function` choices (`own="module"`: no group). `read` checks what has a form of its own.
    `listed` are the choices that may stand together in a list.
    `flag` is its short option, in `setting` with its metavar ("--rounds N"). The field counts only
    where another one of its section has one of some values (`needs="kind = linear or mlp"`), or
    none of them (`unless`). `told` says in words what `needs` means.
    """

    name: str = ""
    kind: str = ""
    default: Any = None
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    own: str = ""
    empty: bool = True
    read: Callable[[Any], Any] | None = None
    flag: str = ""
    metavar: str = ""
    needs: str = ""
    unless: str = ""
    told: str = ""

    @property
    def least(self) -> float | None:
        """The lower end, allowed or not; 0 for a whole number without a stated end."""
        found = self.low if self.above is None else self.above
        return 0 if found is None and self.kind == "int" else found

    @property
    def most(self) -> float | None:
        """The upper end, allowed or not."""
        return self.high if self.below is None else self.below

    def check(self, name: str, value: Any) -> Any:
        """Return the value as the field holds it. Raises `InvalidValueError` naming it `name`."""
        if value is None and self.default is None:
            return None
        if self.read is not None:
            return self.read(value)
        return _CHECKS[self.kind](self, name, value)

    def typed(self, text: str) -> Any:
        """Return a word of the command line as the field's type; `ValueError` where it is none."""
        if self.read is not None or self.kind not in ("int", "float", "int | float"):
            return text
        whole = self.kind == "int" or (self.kind != "float" and text.strip("+-").isdecimal())
        return int(text) if whole else float(text)

    @property
    def range(self) -> str:
        """What is allowed, in words: for the reference page."""
        if self.choices:
            allowed = ", ".join(self.choices) + (", or module:function" if self.own else "")
            return allowed + (f"; or a list of {', '.join(self.listed)}" if self.listed else "")
        if self.least is None and self.most is None:
            words = {"bool": "true or false", "int | float": "a count or a share in (0, 1)"}
            return words.get(self.kind, "")
        least, most = (
            "" if end is None else f"{int(end):,}" if self.kind == "int" else f"{end:g}"
            for end in (self.least, self.most)
        )
        if not most:
            return f"{'at least' if self.above is None else 'above'} {least}"
        left, right = "[" if self.above is None else "(", "]" if self.below is None else ")"
        return f"{left}{least}, {most}{right}"

    @property
    def condition(self) -> str:
        """With which other setting it counts, in words."""
        if self.told:
            return f"with {self.told}"
        return f"with {self.needs}" if self.needs else f"not with {self.unless}" * bool(self.unless)


def setting(default: Any, *, flag: str = "", **allowed: Any) -> Any:
    """Return a field: its default, and what it allows (see `Setting`)."""
    flag, _, metavar = flag.partition(" ")
    metadata = {"setting": Setting(flag=flag, **{"metavar": metavar, **allowed})}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def one_of(choices: Sequence[str], **allowed: Any) -> Any:
    """Return a field that holds one of these words, by default the first."""
    return setting(choices[0], choices=tuple(choices), **allowed)


@cache
def texts_of(section: Any) -> dict[str, str]:
    """Return what each field of a section is: the text that stands below it in the source, which is
    read when somebody wants to know."""
    try:
        source = inspect.getsource(sys.modules[section.__module__])
    except OSError:  # compiled alone
        return dict.fromkeys(settings_of(section), "")
    classes = [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)]
    (body,) = (each.body for each in classes if each.name == section.__name__)
    return {
        name.id: " ".join(text.split())
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr)
        if isinstance(name := field.target, ast.Name) and isinstance(below.value, ast.Constant)
        if isinstance(text := below.value.value, str)
    }


def settings_of(section: Any) -> dict[str, Setting]:
    """Return the fields of a section, by name."""
    found: dict[str, Setting] | None = section.__dict__.get("_settings")
    if found is None:
        found = {
            each.name: replace(
                each.metadata["setting"],
                name=each.name,
                kind=str(each.type).removesuffix(" | None"),
                default={} if each.default is dataclasses.MISSING else each.default,
            )
            for each in dataclasses.fields(section)
        }
        section._settings = found
    return found


def read(section: Callable[..., Q], values: Mapping[str, Any], prefix: str, what: str) -> Q:
    """Return the section with these values. Raises `ConfigError` for a key that it does not
    have."""
    known = settings_of(section)
    for key in values:
        require_known(what, key, known)
    return section(**{key: known[key].check(prefix + key, each) for key, each in values.items()})


def require_known(what: str, key: str, options: Iterable[str]) -> None:
    """Raise `ConfigError`, with the nearest one, for a key that is not among the options."""
    if key not in options:
        hint = suggestion(key, options) or f"valid ones: {', '.join(options)}"
        raise ConfigError(f"unknown {what}: {key!r}; {hint}")


def add_options(
    parser: ArgumentParser | _ArgumentGroup,
    section: Any,
    *,
    names: Iterable[str] = (),
    short: bool = False,
) -> None:
    """Add an option for each field (`names`: of these alone), with `short` for those that have a
    short one; what is not given is not in the namespace. The parser knows the action `once`."""
    texts = texts_of(section)
    for each in settings_of(section).values():
        if (names and each.name not in names) or (short and not each.flag):
            continue
        default = "" if each.default in (None, "", ()) or short else f" (default: {each.default})"
        choices = f": {', '.join(each.choices)}" if each.choices and not short else ""
        parser.add_argument(
            each.flag or "--" + each.name.replace("_", "-"),
            type=_word(each),
            metavar=each.metavar or None,
            default=None,
            action="store" if short else "once",
            help=_capitalized(texts[each.name]) + choices + default,
        )


def _word(each: Setting) -> Callable[[str], Any]:
    word = partial(each.typed)
    # `argparse` calls what it expected by this name.
    word.__name__ = each.kind  # type: ignore[attr-defined]
    return word


def given(arguments: Any, section: Any) -> dict[str, Any]:
    """Return the fields that were given as options, with their values."""
    found = {name: getattr(arguments, name, None) for name in settings_of(section)}
    return {name: value for name, value in found.items() if value is not None}


def asks(question: Callable[P, Q]) -> Callable[[Callable[[Q], R]], Callable[P, R]]:
    """Have a function of a question take the question's own fields, each with type and default."""

    def decorate(answer: Callable[[Q], R]) -> Callable[P, R]:
        @wraps(answer)
        def ask(*args: P.args, **kwargs: P.kwargs) -> R:
            return answer(question(*args, **kwargs))

        own = inspect.signature(answer).return_annotation
        ask.__signature__ = inspect.signature(question).replace(return_annotation=own)  # type: ignore[attr-defined]
        return ask

    return decorate


def words_of(section: Any, name: str) -> list[str]:
    """Return what a field is, what it allows, and with which other one it counts."""
    each = settings_of(section)[name]
    meaning = _capitalized(texts_of(section)[name])
    return [text for text in (meaning, each.range, each.condition) if text]


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def as_toml(value: Any) -> str:
    """Return a default as TOML has it, texts bare; what is not set has no value there."""
    if value is None:
        return "(not set)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return str(value) if value != "" else '""'


def json_ready(value: Any) -> Any:
    """Return a value as JSON has it: of a dataclass its fields, and the properties that its `JSON`
    names; infinity, which JSON does not have, is the text "inf"."""
    if dataclasses.is_dataclass(value):
        names = [*(each.name for each in dataclasses.fields(value)), *getattr(value, "JSON", ())]
        value = {name: getattr(value, name) for name in names}
    if isinstance(value, Mapping):
        return {name: json_ready(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [json_ready(each) for each in value]
    infinite = isinstance(value, float) and not math.isfinite(value)
    return str(value) if infinite or isinstance(value, StrEnum) else value


def _number(spec: Setting, name: str, value: Any) -> float:
    limits = {"minimum": spec.least, "maximum": spec.most}
    return require_real(
        name,
        value,
        exclusive_minimum=spec.above is not None,
        exclusive_maximum=spec.below is not None,
        **{end: limit for end, limit in limits.items() if limit is not None},
    )


def _whole(spec: Setting, name: str, value: Any) -> int:
    low, high = int(spec.low or 0), spec.high
    return require_integer(name, value, minimum=low, maximum=None if high is None else int(high))


def _count_or_share(spec: Setting, name: str, value: Any) -> int | float:
    if isinstance(value, float) and 0.0 < value < 1.0:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise InvalidValueError(
        name,
        value,
        "must be a whole number >= 1 (a count) or a number in (0, 1) (a share)",
        "leave it out to assume that all clients are honest",
    )


def _flag(spec: Setting, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValueError(name, value, "must be true or false")
    return value


def _text(spec: Setting, name: str, value: Any) -> str:
    if spec.own and isinstance(value, str) and value.count(":") == 1 and all(value.split(":")):
        return value
    if spec.choices or spec.own:
        options = [*spec.choices, *(["module:function"] if spec.own else [])]
        if spec.own not in ("", "module") and isinstance(value, str) and value not in options:
            from fl_shuffle._internal.plugins import registered  # slow to load, and seldom needed

            named = registered(spec.own)
            if value in named:
                return named[value]
            options[-1:-1] = named
        return require_choice(name, value, options)
    if not isinstance(value, str):
        raise InvalidValueError(name, value, "must be a text")
    if "\0" in value:
        raise InvalidValueError(name, value, "must not hold the NUL character, which no name has")
    if not spec.empty and not value:
        raise InvalidValueError(name, value, "must not be empty")
    return value


def _text_or_list(spec: Setting, name: str, value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return _text(spec, name, value)
    if not value:
        raise InvalidValueError(name, [], f"must not be empty; name {', '.join(spec.listed)}")
    for index, each in enumerate(value):
        require_choice(f"{name}[{index}]", each, spec.listed)
        if each in value[:index]:
            raise InvalidValueError(f"{name}[{index}]", each, "is named twice; name it once")
    return tuple(value)


def _table(spec: Setting, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidValueError(name, value, "must be a table of options")
    return dict(value)


def _list(each: Callable[[Setting, str, Any], Q]) -> Callable[[Setting, str, Any], tuple[Q, ...]]:
    def check(spec: Setting, name: str, value: Any) -> tuple[Q, ...]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            what = "whole numbers" if each is _whole else "numbers"
            over = f"{'>=' if spec.above is None else '>'} {spec.least:g}"
            raise InvalidValueError(name, value, f"must be a list of {what} {over}")
        return tuple(each(spec, f"{name}[{index}]", item) for index, item in enumerate(value))

    return check


_CHECKS: dict[str, Callable[[Setting, str, Any], Any]] = {
    "float": _number,
    "int": _whole,
    "int | float": _count_or_share,
    "bool": _flag,
    "str": _text,
    "str | tuple[str, ...]": _text_or_list,
    "dict[str, Any]": _table,
    "tuple[int, ...]": _list(_whole),
    "tuple[float, ...]": _list(_number),
}

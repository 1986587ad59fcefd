"""Exceptions a user can catch. A message names the field, the value, what is allowed, the remedy.

`FlShuffleError` is the root: the command line prints its message on one line, exit code 2.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path


class FlShuffleError(Exception):
    """Root of every error that this package raises on purpose.

    Attributes
    ----------
    exit_code : int
        Exit code of the command.

    Examples
    --------
    >>> import fl_shuffle as fs
    >>> try:
    ...     fs.bound(epsilon0=-1.0, clients=100, delta=1e-6)
    ... except fs.FlShuffleError as error:
    ...     print(error)
    epsilon0 = -1.0: must be a finite number in [0, 200]
    """

    exit_code = 2

    def __reduce__(self) -> tuple[object, ...]:
        # Subclasses are made from more than their message: `pickle` and `copy` need to be told.
        return _as_it_was, (type(self), self.args, self.__dict__)


def _as_it_was(
    kind: type[FlShuffleError], told: tuple[object, ...], fields: dict[str, object]
) -> FlShuffleError:
    error = kind.__new__(kind, *told)
    error.__dict__.update(fields)
    return error


class InvalidValueError(FlShuffleError, ValueError):
    """A field holds a value that is not allowed.

    Parameters
    ----------
    field : str
        Name of the field.
    value : object
        The value.
    allowed : str
        What must hold for it.
    remedy : str, optional
        What to do.
    """

    def __init__(self, field: str, value: object, allowed: str, remedy: str = "") -> None:
        self.field = field
        self.value = value
        shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
        message = f"{field} = {shown}: {allowed}"
        super().__init__(f"{message}; {remedy}" if remedy else message)


class ConfigError(FlShuffleError, ValueError):
    """A configuration, budgets file or command line cannot be used as it stands."""


class DataError(FlShuffleError):
    """Data that is missing, truncated, unreadable, or does not fit the run."""


class NotApplicableError(FlShuffleError, ValueError):
    """A bound was asked outside its validity; the message says which condition failed."""


class PrecisionError(FlShuffleError, ArithmeticError):
    """The requested accuracy cannot be had; the message names the limiting term and the remedy."""


class PrivacyBudgetError(FlShuffleError):
    """Going on would exceed a privacy budget, or a batch is too small to be shuffled."""

    exit_code = 1


class RunError(FlShuffleError):
    """A run cannot start, resume or finish."""


class ProgramError(RunError):
    """A user's own app fails on every client that is asked first, at the same line.

    `place` is the exception's class and that line, without what the exception says.
    """

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(text)
        self.place = place


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C during a run or a sweep.

    What was released is on record, and the `command` of the same name can go on from `directory`.
    """

    def __init__(self, directory: Path, command: str = "simulate", note: str = "") -> None:
        self.directory = directory
        note = f" ({note})" if note else ""
        super().__init__(
            f"interrupted; continue with: fl-shuffle {command} --resume "
            f"{shlex.quote(str(directory))}{note}"
        )


def require_real(
    field: str,
    value: object,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    exclusive_minimum: bool = False,
    exclusive_maximum: bool = False,
) -> float:
    """Return `value` as a float, or raise `InvalidValueError`.

    Finiteness is checked first: NaN passes every inverted comparison.
    """
    if type(value) is float and minimum < value < maximum:
        return value  # Nearly always: nobody needs to be told what is allowed.
    low = "-inf" if minimum == -math.inf else f"{minimum:g}"
    high = "inf" if maximum == math.inf else f"{maximum:g}"
    left = "(" if exclusive_minimum or minimum == -math.inf else "["
    right = ")" if exclusive_maximum or maximum == math.inf else "]"
    allowed = f"must be a finite number in {left}{low}, {high}{right}"
    try:
        number = (
            math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
        )
    except OverflowError:
        number = math.inf
    too_low = number < minimum or (exclusive_minimum and number == minimum)
    too_high = number > maximum or (exclusive_maximum and number == maximum)
    if too_low or too_high or not math.isfinite(number):
        raise InvalidValueError(field, value, allowed)
    return number


def require_open_unit(field: str, value: object) -> float:
    """Return `value` as a float inside (0, 1), as a delta or a level has to be, or raise."""
    return require_real(
        field, value, minimum=0.0, maximum=1.0, exclusive_minimum=True, exclusive_maximum=True
    )


def text_of(told: object) -> str:
    """Return what a user's exception or error says: asking it may fail in its turn."""
    try:
        return str(told)
    except Exception:
        return "no text"


def first_line(told: object) -> str:
    """Return the first line of that: libraries' errors may have many."""
    return (text_of(told).strip().splitlines() or [""])[0]


def require_integer(field: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    """Return `value` as an int (integral floats are refused, they hide mistakes), or raise."""
    if type(value) is int and minimum <= value and (maximum is None or value <= maximum):
        return value
    limits = f">= {minimum}" if maximum is None else f"in [{minimum}, {maximum}]"
    number = None if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
    if number is None or number < minimum or (maximum is not None and number > maximum):
        raise InvalidValueError(field, value, f"must be a whole number {limits}")
    return number


def require_choice(field: str, value: object, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`; otherwise raise, suggesting the nearest one."""
    options = list(choices)
    if isinstance(value, str) and value in options:
        return value
    raise InvalidValueError(
        field, value, f"must be one of {', '.join(options)}", suggestion(value, options)
    )


def suggestion(value: object, options: Iterable[str]) -> str:
    """Return a "did you mean" phrase for the nearest option, or an empty string.

    Case, hyphens, and underscores do not count: `FashionMNIST` is near `fashion-mnist`.
    """
    plain = {re.sub(r"[-_ ]", "", each).lower(): each for each in reversed(list(options))}
    near = get_close_matches(re.sub(r"[-_ ]", "", str(value)).lower(), plain, n=1, cutoff=0.5)
    return f"did you mean {plain[near[0]]!r}?" if near else ""

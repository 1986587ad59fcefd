"""A configuration's text by the names of today, with everything else left as it was written."""

from __future__ import annotations

import re
import tomllib
from typing import Any, NamedTuple

from fl_shuffle.configuration.renamed import SETTINGS, VALUES, with_todays_names
from fl_shuffle.errors import ConfigError

BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
SPACE = re.compile(r"[ \t]*")
KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'", re.DOTALL
)
BARE = re.compile(r"[^,\]}\n#]*")


class _Key(NamedTuple):
    """A part of a dotted key, and where in the text it stands."""

    name: str
    start: int
    end: int


class _Scanner:
    """Finds the keys and texts of a valid TOML document, and what to write in their places."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.edits: list[tuple[int, int, str]] = []
        """(start, end, new text), in order."""

    def skip(self, pattern: re.Pattern[str]) -> str:
        """Move behind what matches here; returns it."""
        found = pattern.match(self.text, self.at)
        if found is None:
            raise ValueError(f"invalid TOML at character {self.at}")
        self.at = found.end()
        return found.group()

    def meets(self, mark: str) -> bool:
        """Move behind a mark, if it stands here."""
        found = self.text.startswith(mark, self.at)
        self.at += len(mark) * found
        return found

    def document(self) -> None:
        """Walk the whole text."""
        table: tuple[str, ...] = ()
        self.skip(BLANK)
        while self.at < len(self.text):
            if self.meets("["):
                several = self.meets("[")
                table = tuple(part.name for part in self.key())
                self.meets("]]" if several else "]")
            else:
                self.pair(table)
            self.skip(BLANK)

    def key(self) -> list[_Key]:
        """Return a dotted key."""
        parts: list[_Key] = []
        while not parts or self.meets("."):
            self.skip(SPACE)
            start = self.at
            raw = self.skip(KEY)
            # The one key of a table reads its own escapes.
            (name,) = tomllib.loads(f"{raw} = 0")
            parts.append(_Key(name, start, self.at))
            self.skip(SPACE)
        return parts

    def pair(self, table: tuple[str, ...]) -> None:
        """Read a key, and its value."""
        parts = self.key()
        path = (*table, *(part.name for part in parts))
        if len(path) == 2:
            setting, (_, start, end) = ".".join(path), parts[-1]
            if setting in SETTINGS:
                self.edits.append((start, end, SETTINGS[setting]))
        self.meets("=")
        self.skip(SPACE)
        self.value(path)

    def value(self, path: tuple[str, ...]) -> None:
        """Read a value, whose setting is called `path`."""
        if self.meets("["):
            self.skip(BLANK)
            while not self.meets("]"):
                self.value((*path, ""))
                self.skip(BLANK)
                self.meets(",")
                self.skip(BLANK)
        elif self.meets("{"):
            self.skip(BLANK)
            while not self.meets("}"):
                self.pair(path)
                self.skip(BLANK)
                self.meets(",")
                self.skip(BLANK)
        elif self.text[self.at : self.at + 1] in ("'", '"'):
            start = self.at
            raw = self.skip(TEXT)
            value = tomllib.loads(f"x = {raw}")["x"]
            if new := VALUES.get(".".join(path), {}).get(value):
                self.edits.append((start, self.at, f"{raw[0]}{new}{raw[0]}"))
        else:
            self.skip(BARE)


def migrated(text: str) -> str:
    """Return the text of a configuration by the names of today.

    Keys and values that have other names are replaced where they stand; comments, order and layout
    stay.

    Parameters
    ----------
    text : str
        TOML.

    Returns
    -------
    str
        TOML that says the same.

    Raises
    ------
    ConfigError
        If the text is not TOML, if a setting stands there under both names, and if the text is
        written in a way that this function cannot change.
    """
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"this is not valid TOML: {error}") from None
    wanted, renamed = with_todays_names(tables)
    if not renamed:
        return text
    scanner = _Scanner(text)
    try:
        scanner.document()
        found = text
        for start, end, new in reversed(scanner.edits):
            found = found[:start] + new + found[end:]
        same = tomllib.loads(found) == wanted
    except (ValueError, RecursionError):
        same = False
    if not same:
        listed = ", ".join(f"{each.old} is now {each.new}" for each in renamed)
        raise ConfigError(f"its names cannot be changed in place; change them by hand: {listed}")
    return found

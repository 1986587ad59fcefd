"""`fl-shuffle migrate`: configurations of earlier versions by the names of today."""

from __future__ import annotations

import difflib
from argparse import Namespace
from pathlib import Path

from fl_shuffle._internal.durable_files import replace_file, said_in_one_line
from fl_shuffle.configuration.migrate import migrated
from fl_shuffle.configuration.reading import read_tables
from fl_shuffle.errors import ConfigError
from fl_shuffle.runs.console_messages import say


def run(arguments: Namespace) -> int:
    files = [Path(name) for name in arguments.config]
    # All of them are read before one is changed: a wrong name changes nothing.
    texts = [_read(path) for path in files]
    changed = False
    for path, (old, new) in zip(files, texts, strict=True):
        if old == new:
            say(f"{path}: all names are those of today")
            continue
        changed = True
        before, after, name = old.splitlines(), new.splitlines(), str(path)
        print(*difflib.unified_diff(before, after, name, name, lineterm=""), sep="\n")
        if arguments.write:
            _write(path.resolve(), new)
            say(f"{path}: written")
    if changed and not arguments.write:
        say("nothing was written: add --write")
    return 0


def _read(path: Path) -> tuple[str, str]:
    """Return a file's text, as it is and by the names of today."""
    if path.is_dir():
        raise ConfigError(
            f"{path} is a directory: the configuration of a run is never changed; name a TOML file"
        )
    if not path.is_file():
        raise ConfigError(f"configuration file {path} does not exist")
    read_tables(path)
    old = path.read_bytes().decode("utf-8")
    try:
        return old, migrated(old)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _write(path: Path, text: str) -> None:
    """Put the text in the file's place, whole, readable for whom it was before."""
    mode = path.stat().st_mode

    def write(unfinished: Path) -> None:
        unfinished.write_text(text, encoding="utf-8", newline="")

    with said_in_one_line(path, kind=ConfigError):
        replace_file(path, write)
        path.chmod(mode)

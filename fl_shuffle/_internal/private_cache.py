"""Files that a user's later runs read instead of computing them again: theirs alone, whole or gone.

They lie in a folder of mode 700 that belongs to the user, with mode 600. Each begins with a digest
of its name and of what it holds, so one that was damaged, not written to its end, or that had
another name is not read; nor is one that is no regular file or that somebody else could have
written. Files are put in place in one step, so processes may share the folder.

`$FL_SHUFFLE_CACHE` names the folder in which all of this lies, or is "off".
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Final

from fl_shuffle._internal.durable_files import PRIVATE_FOLDER

log = logging.getLogger(__name__)

CACHE_VARIABLE: Final = "FL_SHUFFLE_CACHE"
OFF: Final = "off"
DIGEST: Final = 32
"""Bytes of the digest before a file's content."""

_UNFINISHED: Final = ".new-"
_ABANDONED: Final = 24 * 3600.0
"""Seconds after which a file that was not finished is nobody's."""
_OTHERS_WRITE: Final = 0o022


def cache_folder() -> Path | None:
    """Return `$FL_SHUFFLE_CACHE`, else `$XDG_CACHE_HOME`/fl-shuffle or ~/.cache/fl-shuffle; None
    where it is turned off. Raises `RuntimeError` without a home folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return None if named == OFF else Path(named)
    # A relative one counts as unset (XDG Base Directory Specification).
    base = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "fl-shuffle"


class PrivateCache:
    """The files of one kind: `what` they are, in messages, and what their names end with.

    Where all together take more than `most_bytes`, those that were not used for longest go.
    """

    def __init__(self, what: str, suffix: str, most_bytes: int) -> None:
        self.what, self.suffix, self.most_bytes = what, suffix, most_bytes

    def made(self, folder: Path) -> bool:
        """Make the folder if need be; False, with a warning, where it is not the user's alone."""
        try:
            folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            found = folder.stat()
            if found.st_uid != os.getuid():
                log.warning("%s are not kept: %s belongs to another user", self.what, folder)
                return False
            if stat.S_IMODE(found.st_mode) & 0o077:
                folder.chmod(PRIVATE_FOLDER)
        except (OSError, RuntimeError) as error:
            log.warning("%s are not kept: %s", self.what, error)
            return False
        return True

    def read(self, path: Path) -> bytearray | None:
        """Return what `write` put there; None if it is missing or cannot be trusted."""
        try:
            # A link or a pipe that somebody put there is not followed, nor waited for.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(path, flags), "rb") as file:
                found = os.fstat(file.fileno())
                own = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
                if not own or found.st_mode & _OTHERS_WRITE:
                    log.warning("%s are computed anew: others may write %s", self.what, path)
                    return None
                content = bytearray(file.read())
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s are computed anew: %s", self.what, error)
            return None
        body = content[DIGEST:]
        if _digest(path, body) != content[:DIGEST]:
            log.warning("%s are computed anew: %s is damaged", self.what, path)
            return None
        return body

    def write(self, path: Path, body: bytes | memoryview) -> None:
        """Write all of it or nothing, also where several processes write the same file."""
        try:
            # Made with mode 600.
            number, name = tempfile.mkstemp(dir=path.parent, prefix=_UNFINISHED)
            try:
                with open(number, "wb") as file:
                    file.write(_digest(path, body))
                    file.write(body)
                os.replace(name, path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            self._make_room(path)
        except OSError as error:
            log.warning("%s are not kept: %s", self.what, error)

    def _make_room(self, kept: Path) -> None:
        """Remove what was not used for longest until the rest fits; `kept` stays."""
        for path in kept.parent.glob(_UNFINISHED + "*"):
            if _last_used(path) < time.time() - _ABANDONED:
                path.unlink(missing_ok=True)
        files = sorted(kept.parent.glob("*" + self.suffix), key=_last_used, reverse=True)
        total = 0
        for path in files:
            try:
                total += path.stat().st_size
                if total > self.most_bytes and path != kept:
                    path.unlink()
            except FileNotFoundError:
                continue  # another process was faster


def _digest(path: Path, body: bytes | bytearray | memoryview) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST)
    digest.update(path.name.encode() + b"\0")
    digest.update(body)
    return digest.digest()


def _last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0

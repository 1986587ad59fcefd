"""Commands as somebody types them, in a process of their own."""

from __future__ import annotations

import shlex
import subprocess
import sys


def typed(line: str, *, folder: str = ".", code: int = 0) -> str:
    """What `fl-shuffle ...` prints on stdout; it must end with this exit code."""
    words = shlex.split(line)
    assert words[0] == "fl-shuffle", line
    command = [sys.executable, "-m", "fl_shuffle", *words[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"$ {line}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, f"$ {line}\n{done.stderr}"
    return done.stdout

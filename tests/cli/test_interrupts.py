"""Ctrl-C from the first moment on: one line, exit code 130, whatever is being imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import ROOT

INTERRUPTED_AT = """
import importlib.abc, os, signal, sys
{before}
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

from fl_shuffle.starting import main
sys.meta_path.insert(0, Interrupt())
sys.exit(main())
"""
"""The signal arrives where the module of that name is about to be imported."""


def interrupted_at(
    name: str, folder: Path, *arguments: str, before: str = ""
) -> subprocess.CompletedProcess[str]:
    code = INTERRUPTED_AT.format(name=name, before=before)
    command = [sys.executable, "-c", code, *arguments]
    environment = {"PYTHONPATH": str(ROOT), "HOME": str(folder)}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment
    )


@pytest.mark.parametrize(
    "name",
    ["fl_shuffle.cli", "fl_shuffle.cli.simulate", "torch"],
)
def test_ctrl_c_while_something_is_imported(name: str, tmp_path: Path) -> None:
    done = interrupted_at(name, tmp_path, "simulate", "--out", "run")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "fl-shuffle: error: interrupted\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "lambda *_: None"])
def test_a_signal_that_is_not_pythons_own_is_left_alone(handler: str, tmp_path: Path) -> None:
    before = f"signal.signal(signal.SIGINT, {handler})"
    done = interrupted_at("fl_shuffle.cli", tmp_path, "--version", before=before)
    assert (done.returncode, done.stderr) == (0, "")

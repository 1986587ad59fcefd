"""Values worked out by processes beside this one: the same as here, whatever becomes of these."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.accounting import other_processes
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.other_processes import values_of
from fl_shuffle.accounting.rounds import round_library
from fl_shuffle.accounting.rounds.events import ClientClass


def square(value: int) -> int:
    return value * value


def place(value: int) -> int:
    """Which process works it out."""
    return os.getpid()


def killed_at_three(value: int) -> int:
    if value == 3 and os.getpid() != int(os.environ["FL_SHUFFLE_TEST_PARENT"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return -value


def refused_at_three(value: int) -> int:
    if value == 3:
        raise ValueError("three")
    return value


def told_and_slow(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(60)


def long_answer(task: tuple[int, str, int]) -> bytes:
    """Here: once the other process has worked out its last value."""
    value, folder, parent = task
    if os.getpid() != parent:
        Path(folder, str(value)).touch()
    deadline = time.monotonic() + 60.0
    while os.getpid() == parent and not Path(folder, "7").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return bytes([value]) * 100_000


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_values_come_in_the_order_of_their_items(processes: int) -> None:
    assert values_of(square, range(7), processes) == [0, 1, 4, 9, 16, 25, 36]


def test_this_process_and_as_many_others_as_asked_share_the_work() -> None:
    before = os.listdir("/dev/fd")
    found = values_of(place, range(9), 3)
    assert len(set(found)) == 3
    assert os.listdir("/dev/fd") == before
    for other in found[1:3]:
        with pytest.raises(ProcessLookupError):
            os.kill(other, 0)
    assert found == [os.getpid(), *found[1:3]] * 3


def test_a_process_does_not_wait_until_it_is_listened_to(tmp_path: Path) -> None:
    tasks = [(value, str(tmp_path), os.getpid()) for value in range(8)]
    assert values_of(long_answer, tasks, 2) == [bytes([value]) * 100_000 for value in range(8)]


def test_what_a_process_leaves_undone_is_worked_out_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FL_SHUFFLE_TEST_PARENT", str(os.getpid()))
    assert values_of(killed_at_three, range(8), 2) == [-value for value in range(8)]


def test_what_a_function_raises_is_raised_here() -> None:
    with pytest.raises(ValueError, match="three"):
        values_of(refused_at_three, range(8), 2)


@pytest.mark.parametrize("program", ["/no/such/python", "/bin/true", "", None])
def test_without_another_python_everything_is_worked_out_here(
    program: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    assert values_of(place, range(4), 2) == [os.getpid()] * 4


def test_modules_of_the_working_directory_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pickle.py").write_text("raise SystemExit('another pickle')")
    monkeypatch.chdir(tmp_path)
    here, there = values_of(place, range(2), 2)
    assert here == os.getpid() != there


def test_what_is_printed_at_a_start_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('N.')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    here, there = values_of(place, range(2), 2)
    assert here == os.getpid() != there and isinstance(there, int)


def test_an_interrupt_leaves_no_process_behind(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path[:] = {sys.path!r}
from fl_shuffle.accounting.other_processes import values_of
from tests.accounting.test_other_processes import told_and_slow
values_of(told_and_slow, [{str(tmp_path)!r}] * 3, 3)
"""
    caller = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60.0
    while len(list(tmp_path.iterdir())) < 3:
        assert time.monotonic() < deadline and caller.poll() is None
        time.sleep(0.05)
    caller.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in caller.communicate(timeout=30)[1]
    for name in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(name.name), 0)


def test_pairs_of_many_kinds_are_certified_beside_with_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def counted(*arguments: object) -> list[object]:
        asked.append(len(arguments[1]))  # type: ignore[arg-type]
        return values_of(*arguments)  # type: ignore[arg-type]

    def spent(cores: int) -> list[dict[int, float]]:
        monkeypatch.setattr(round_library, "usable_processes", lambda: cores)
        scales = [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
        classes = [ClientClass("gaussian", scale, 1.0, 2.0, 1.0, 1e-5, 1) for scale in scales]
        of = np.arange(1200) % len(classes)
        accountant = Accountant(
            classes, of, unit="record", schedule="aggregate", delta=1e-5, rounds=3
        )
        everybody, found = np.ones(len(of), dtype=bool), []
        for number in (1, 2):
            found.append(dict(accountant.preview(number, everybody).columns["proven"].epsilon))
            accountant.commit(number, everybody)
        return found

    monkeypatch.setattr(round_library, "values_of", counted)
    alone = spent(1)
    assert asked == []
    assert spent(2) == alone
    # A single round needs no pairs; two need all of them.
    assert asked == [6]


def test_processes_are_at_least_one_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert other_processes.usable_processes() >= 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(256)), raising=False)
    assert other_processes.usable_processes() == 8

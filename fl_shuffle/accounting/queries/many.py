"""Many questions at once: equal ones are answered once, what they share is computed once, and
further processes help where the work is long enough to pay for their start.

An answer is that of `methods.bound`, in any process and in any order.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from subprocess import Popen
from types import TracebackType
from typing import IO, Any, cast

from fl_shuffle.accounting.guarantee import Guarantee
from fl_shuffle.accounting.queries.guarantees import curve_key
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.errors import ConfigError, FlShuffleError

PATIENCE_SECONDS = 1.0
"""So long this process works alone, in seconds of CPU: a helper's start costs half a second of
another core."""
WORTH_SECONDS = 2.0
"""With less work left than this (CPU), as far as the answers so far tell, no helper is started."""
HELPER = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from fl_shuffle.accounting.queries import many
many.help_out()
"""
"""What a helper runs: it finds what its parent finds, and nothing of the folder it stands in."""

Asked = BoundQuery | Mapping[str, Any]
BoundOutcome = Guarantee | FlShuffleError
Unit = list[BoundQuery]
"""Questions that one process answers one after another."""


def bound_many(questions: Iterable[Asked]) -> list[BoundOutcome]:
    """Return the answer to each question, in order; in the place of one that has none, its
    error."""
    with Answers() as answers:
        return answers.ask(questions)


class Answers:
    """Answers lists of questions; its helpers live until it is closed.

    `helpers` is the largest number of further processes, by default one for each further core;
    they start once this process has worked for `patience` seconds of CPU.
    """

    def __init__(self, helpers: int | None = None, patience: float = PATIENCE_SECONDS) -> None:
        self._allowed = _cores() - 1 if helpers is None else helpers
        self._patience = patience
        self._helpers: list[Popen[bytes]] = []

    def __enter__(self) -> Answers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the helpers; each keeps nothing that its end could lose."""
        for helper in self._helpers:
            helper.kill()
            with contextlib.suppress(OSError):
                cast(IO[bytes], helper.stdin).close()
            cast(IO[bytes], helper.stdout).close()
            helper.wait()
        self._helpers.clear()

    def ask(self, questions: Iterable[Asked]) -> list[BoundOutcome]:
        """Return each question's answer, or the error in its place."""
        read = [_question(asked) for asked in questions]
        # In the order of the questions, each once.
        distinct = dict.fromkeys(each for each in read if isinstance(each, BoundQuery))
        found = self._answered(_units(distinct))
        return [found[each] if isinstance(each, BoundQuery) else each for each in read]

    def _answered(self, units: Sequence[Unit]) -> dict[BoundQuery, BoundOutcome]:
        found: dict[BoundQuery, BoundOutcome] = {}
        waiting, left, spent = _Shared(units), len(units), 0.0
        serving: list[threading.Thread] = []
        for unit in waiting:
            left -= 1
            done = len(units) - left - 1
            # The mean of the units so far predicts the rest: about equal questions are the usual
            # case.
            worth = not done or left * spent / done > WORTH_SECONDS
            if not serving and left and (self._helpers or (self._patience <= 0.0 and worth)):
                serving = self._served(waiting, found, left)
            start = time.thread_time()
            found.update(zip(unit, map(_answer, unit), strict=True))
            took = time.thread_time() - start
            spent += took
            self._patience -= took
        for each in serving:
            each.join()
        # What a helper died over is answered here: a defect shows itself.
        for unit in waiting.returned:
            found.update(zip(unit, map(_answer, unit), strict=True))
        return found

    def _served(
        self, waiting: _Shared, found: dict[BoundQuery, BoundOutcome], most: int
    ) -> list[threading.Thread]:
        """Return a thread for each helper, which hands it one unit after another."""
        with contextlib.suppress(OSError):  # a machine that starts none: this process goes on alone
            while len(self._helpers) < min(self._allowed, most):
                self._helpers.append(_started())
        threads = [
            threading.Thread(target=_serve, args=(helper, waiting, found), daemon=True)
            for helper in self._helpers
            if helper.poll() is None
        ]
        for each in threads:
            each.start()
        return threads


class _Shared:
    """Units that several threads take one after another; `returned` are those left unanswered."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._units, self._lock = iter(units), threading.Lock()
        self.returned: list[Unit] = []

    def __iter__(self) -> Iterator[Unit]:
        while True:
            with self._lock:
                unit = next(self._units, None)
            if unit is None:
                return
            yield unit


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _question(asked: object) -> BoundQuery | FlShuffleError:
    try:
        return asked if isinstance(asked, BoundQuery) else BoundQuery.from_mapping(cast(Any, asked))
    except FlShuffleError as error:
        return error
    except OSError as error:  # a file that a question names
        return ConfigError(str(error))


def _units(questions: Iterable[BoundQuery]) -> list[Unit]:
    """Group the questions: those about one composition of rounds stay together; each other one
    stands alone."""
    units: dict[object, Unit] = {}
    for question in questions:
        # A composition costs far more than reading a point of it: two processes would both
        # compute it.
        key = curve_key(question) if question.rounds > 1 else question
        units.setdefault(key, []).append(question)
    return list(units.values())


def _answer(question: BoundQuery) -> BoundOutcome:
    try:
        return bound(question)
    except FlShuffleError as error:
        # Its traceback would keep the arrays of the computation alive.
        return error.with_traceback(None)
    except MemoryError as error:
        return ConfigError(f"not enough memory: {error}")


def _started() -> Popen[bytes]:
    # One helper a core: threads of a library inside each would compete for the same cores.
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return Popen(
        [sys.executable, "-c", HELPER, json.dumps(sys.path)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env={**os.environ, **threads},
        start_new_session=True,  # what the terminal sends is for who started it
    )  # fmt: skip


def _serve(helper: Popen[bytes], waiting: _Shared, found: dict[BoundQuery, BoundOutcome]) -> None:
    """Hand the helper units until none is left; one that it dies over is returned."""
    asks, answers = cast(IO[bytes], helper.stdin), cast(IO[bytes], helper.stdout)
    for unit in waiting:
        try:
            pickle.dump(unit, asks)
            asks.flush()
            found.update(zip(unit, pickle.load(answers), strict=True))
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            waiting.returned.append(unit)
            return


def help_out() -> None:
    """Answer units from the standard input until it ends: the work of a helper."""
    told = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    while True:
        try:
            unit = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump([_answer(question) for question in unit], told)
        told.flush()

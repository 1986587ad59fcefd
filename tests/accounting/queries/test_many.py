"""Many questions at once: the same answers as one by one, in any process; errors in their
places; shared work is done once."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.guarantee import Guarantee
from fl_shuffle.accounting.queries import guarantees, many
from fl_shuffle.accounting.queries.many import Answers
from fl_shuffle.errors import FlShuffleError, InvalidValueError, NotApplicableError

KRR: dict[str, Any] = {"randomizer": "krr", "k": 10, "epsilon0": 1.0, "delta": 1e-6}
MIXED: list[Any] = [
    {**KRR, "clients": 1000, "method": "clone"},
    {**KRR, "clients": -5},
    {**KRR, "clients": 1, "method": "clone", "rounds": 3},
    {**KRR, "clients": 1, "method": "clone", "rounds": 3, "delta": 1e-5},
    {**KRR, "clients": 100, "method": "vector"},
    {**KRR, "clients": 50, "delta": float("nan")},
    "krr",
    {},
    {**KRR, "clients": 1000, "method": "clone"},
]


def alone(asked: Any) -> Guarantee | FlShuffleError:
    """What `bound` says of it alone."""
    try:
        guarantees._KNOWN.clear()
        return many.bound(fs.BoundQuery.from_mapping(asked))
    except FlShuffleError as error:
        return error


def same(one: object, other: object) -> bool:
    """Whether two answers, or two errors, say the same."""
    return type(one) is type(other) and (
        one == other or (isinstance(one, FlShuffleError) and str(one) == str(other))
    )


@pytest.mark.parametrize("helpers", [0, 1])
def test_bound_many_mixed_gives_each_answer_alone(helpers: int) -> None:
    expected = [alone(asked) for asked in MIXED]
    assert [isinstance(each, Guarantee) for each in expected] == [
        True, False, True, True, False, False, False, False, True
    ]  # fmt: skip
    with Answers(helpers, patience=0.0) as answers:
        for _ in range(2):  # the helpers stay for the next list
            found = answers.ask(iter(MIXED))
            assert all(map(same, found, expected))
        assert len(answers._helpers) == helpers
    assert fs.bound_many([]) == []


@pytest.mark.slow
def test_bound_many_without_its_helper_answers_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that is killed, or was never a helper, leaves its questions to this process."""
    asked = [{**KRR, "clients": clients, "method": "clone"} for clients in range(1000, 1012)]
    expected = fs.bound_many(asked)
    with Answers(1, patience=0.0) as answers:
        answers.ask(asked[:3])
        (helper,) = answers._helpers
        os.kill(helper.pid, signal.SIGKILL)
        assert answers.ask(asked) == expected
    monkeypatch.setattr(many, "HELPER", "print('no answer', flush=True)")
    with Answers(1, patience=0.0) as answers:
        assert answers.ask(asked) == expected
    monkeypatch.setattr(sys, "executable", str(Path("no") / "such" / "python"))
    with Answers(1, patience=0.0) as answers:
        assert answers.ask(asked) == expected and not answers._helpers


@pytest.mark.parametrize(("questions", "started"), [(5, 0), (40, 1)])
def test_bound_many_helper_starts_where_enough_work_is_left(
    questions: int, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions that take 0.6 s each, by a clock of our own: two are left, or dozens."""
    ticks = itertools.count()
    monkeypatch.setattr(many.time, "thread_time", lambda: 0.6 * next(ticks))
    asked = [{**KRR, "clients": 100 + each, "method": "gspa"} for each in range(questions)]
    with Answers(1, patience=1.0) as answers:
        assert all(isinstance(each, Guarantee) for each in answers.ask(asked))
        assert len(answers._helpers) == started


def test_bound_many_equal_and_shared_work_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deltas of one composition compose once; methods and numbers of rounds do not mix."""
    guarantees._KNOWN.clear()
    composed = list[int]()
    compose = guarantees.compose_equal_rounds

    def counted(curve: Any, local_epsilon: float, rounds: int) -> Any:
        composed.append(rounds)
        return compose(curve, local_epsilon, rounds)

    monkeypatch.setattr(guarantees, "compose_equal_rounds", counted)
    deltas = (1e-4, 1e-5, 1e-6)
    asked = [
        {**KRR, "clients": 1, "rounds": rounds, "method": method, "delta": delta}
        for delta in deltas
        for rounds in (2, 3)
        for method in ("blanket", "clone")
    ]
    with Answers(0) as answers:
        shared = answers.ask([*asked, *asked])
    assert sorted(composed) == [2, 2, 3, 3] and shared[: len(asked)] == shared[len(asked) :]
    assert all(map(same, shared, map(alone, asked)))
    assert len({each.epsilon for each in shared if isinstance(each, Guarantee)}) == len(asked)
    guarantees._KNOWN.clear()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_answers_and_errors_copied_stay_the_same(copied: Any) -> None:
    answer = fs.bound(**KRR, clients=100)
    assert copied(answer) == answer
    with pytest.raises(TypeError):
        copied(answer).details["k"] = 3
    for error in (InvalidValueError("k", 1, "must be 2"), NotApplicableError("no")):
        assert str(copied(error)) == str(error) and vars(copied(error)) == vars(error)

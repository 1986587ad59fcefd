"""docs/architecture.md: its picture is the code's, its example runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.queries.bound_query import BoundQuery
from fl_shuffle.accounting.queries.methods import METHODS, Method, bound, compare
from fl_shuffle.cli import main
from tests.architecture.drawing import PAGE, arrows, drawing, needed, page_with, reachable

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_picture_is_the_codes() -> None:
    assert page_with(drawing(), TEXT) == TEXT, "redraw: python -m tests.architecture.drawing"


def test_left_out_arrows_are_implied() -> None:
    graph = arrows()
    drawn = needed(graph)
    assert graph["accounting.bounds"] >= {"accounting.engine", "accounting.laws"}
    assert drawn["accounting.bounds"] == {"accounting.engine"}
    for source in graph:
        assert reachable(source, drawn) == reachable(source, graph)


def test_rooms_that_import_each_other_are_refused() -> None:
    with pytest.raises(AssertionError, match="imports itself"):
        needed({"a": {"b"}, "b": {"a"}})


def test_a_bound_is_one_module_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, line = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {"Method": Method}
    exec(module, names)
    method = eval(line.strip(), names)
    monkeypatch.setitem(METHODS, method.name, method)
    query = BoundQuery(randomizer="krr", k=4, epsilon0=1.5, clients=100, delta=1e-6)
    answer = compare(query)["local"]
    assert isinstance(answer, Guarantee)
    assert (answer.epsilon, answer.status) == (1.5, Status.PROVEN)
    assert bound(query).epsilon < 1.5
    asked = ["--method", "local", "--epsilon0", "1.5", "--clients", "100", "--delta", "1e-6"]
    assert main(["bound", *asked]) == 0
    assert "1.5" in capsys.readouterr().out

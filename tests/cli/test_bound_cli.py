"""`fl-shuffle bound` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fl_shuffle.cli import main

QUERY = ["--epsilon0", "1", "--clients", "1000"]
GAUSSIAN = ["--randomizer", "gaussian", "--epsilon0", "2", "--delta0", "1e-5"]
SUMS = [*GAUSSIAN, "--release", "sum", "--delta", "1e-6"]
KRR = ["--randomizer", "krr", "--k", "10"]


@pytest.mark.parametrize("method", ["proven", "sum"])
def test_every_answer_says_what_it_assumes(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = SUMS if method.startswith("sum") else [*GAUSSIAN, "--delta", "1e-6"]
    flags = [*asked, "--clients", "200", "--method", method]
    assert main(["bound", *flags]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert main(["bound", *flags, "--json"]) == 0
    out = capsys.readouterr().out
    assumed = json.loads(out)["assumptions"]
    assert out.count("\n") == 1 and assumed and all(f"assumes {each}" in shown for each in assumed)


def test_all_bounds_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*KRR, *QUERY, "--delta", "1e-6"]
    assert main(["bound", "--all", *flags, "--why"]) == 0
    out = capsys.readouterr().out
    assert out.index("blanket") < out.index("gspa ") < out.index("lower bound")
    assert "not applicable" in out
    (proofs,) = [line.removeprefix("proofs: ") for line in out.splitlines() if "proofs: " in line]
    assert Path(proofs).read_text(encoding="utf-8").startswith("# ")
    assert main(["bound", "--all", *flags, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    best = value["results"][0]
    assert (best["method"], best["status"]) == ("blanket", "proven")
    # Exact: delta(.0792072) = 1.187e-6, so epsilon at 1e-6 is a little larger.
    assert 0.0792072 < best["epsilon"] < 0.081
    assert "sum" in value["not_applicable"]
    assert main(["bound", "--all", *KRR, *QUERY, "--epsilon", "0.05"]) == 0
    assert "epsilon = 0.05: delta" in capsys.readouterr().out

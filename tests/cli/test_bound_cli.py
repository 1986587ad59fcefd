"""`fl-shuffle bound` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fl_shuffle as fs
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


def test_all_bounds_stand_below_their_headings(capsys: pytest.CaptureFixture[str]) -> None:
    """Every method stands once, below what it may claim or with the condition that fails."""
    assert main(["bound", "--all", *KRR, *QUERY, "--delta", "1e-6"]) == 0
    blocks = capsys.readouterr().out.split("\n\n")
    found: dict[str, list[str]] = {}
    for block in blocks[1:-1]:
        heading, *lines = block.splitlines()
        found[heading.partition(" (")[0]] = [line.split()[0].rstrip(":") for line in lines]
    assert list(found) == ["proven", "as published", "lower bounds", "does not apply"]
    answers = fs.compare(randomizer="krr", k=10, epsilon0=1.0, clients=1000, delta=1e-6)
    for name, answer in answers.items():
        status = str(answer.status) if isinstance(answer, fs.Guarantee) else "does not apply"
        (heading,) = [each for each, names in found.items() if name in names]
        assert heading.startswith(status)
    assert "  erlingsson2019: erlingsson2019 needs clients >= 1000 and epsilon0 < 0.5" in blocks[-2]


def test_rdp_prints_its_order_and_conversion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bound", *QUERY, "--delta", "1e-6", "--method", "rdp", "--order", "8"]) == 0
    out = capsys.readouterr().out
    assert "proven" in out and "Canonne, Kamath, Steinke 2020" in out
    assert "at order 8\n" in out and "assumes all clients use one randomizer" in out


@pytest.mark.parametrize("order", ["1", "0.5", "nan", "many"])
def test_rdp_refuses_an_order_up_to_one(order: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*QUERY, "--delta", "1e-6", "--method", "rdp", "--order", order]
    try:
        assert main(["bound", *flags]) == 2
    except SystemExit as stopped:
        assert stopped.code == 2
    said = capsys.readouterr().err
    assert "order" in said and said.count("\n") == 1

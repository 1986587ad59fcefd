"""`fl-shuffle bound` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.queries.methods import METHODS
from fl_shuffle.cli import main

QUERY = ["--epsilon0", "1", "--clients", "1000"]
GAUSSIAN = ["--randomizer", "gaussian", "--epsilon0", "2", "--delta0", "1e-5"]
SUMS = [*GAUSSIAN, "--release", "sum", "--delta", "1e-6"]
KRR = ["--randomizer", "krr", "--k", "10"]


@pytest.mark.parametrize("method", ["vector", "sum"])
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
    assert main(["bound", "--all", *flags, "--explain"]) == 0
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
    assert "  erlingsson2019: needs clients >= 1000 and epsilon0 < 0.5" in blocks[-2]


@pytest.mark.parametrize(
    "asked",
    [
        ["--epsilon0", "1", "--clients", "1", "--delta", "1e-6"],
        [*SUMS, "--clients", "20"],
        ["--budgets", "BUDGETS", "--delta", "1e-6"],
    ],
    ids=["one client", "sums", "personal budgets"],
)
def test_all_bounds_name_each_condition_once(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every refusal is a line of its own whose words follow the method's name, said once."""
    (tmp_path / "budgets.csv").write_text("client_id,epsilon,delta\n0,0.5,0\n1,1,0\n2,1,0\n")
    words = [str(tmp_path / "budgets.csv") if word == "BUDGETS" else word for word in asked]
    assert main(["bound", "--all", *words]) == 0
    head, *_, refused, _ = capsys.readouterr().out.split("\n\n")
    assert head.startswith("1 shuffled report,") == ("1" in asked)
    heading, *lines = refused.splitlines()
    assert heading == "does not apply" and "None" not in refused
    for line in lines:
        name, _, text = line.strip().partition(": ")
        assert name in METHODS and text and not text.startswith(name)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--method", "rdp", "--clients", "1"], "rdp needs clients >= 2, got 1"),
        (["--method", "rdp", "--clients", "9", "--order", "1"], "order = 1"),
        (["--clients", "9", "--randomizer", "parallel:0.5*blh,0.4*oue"], "0.5 + 0.4"),
        (["--clients", "9", "--randomizer", "parallel:0.5*blh,0.4*oue"], "must add up to 1, got"),
        (["--clients", "9", "--randomizer", "joint:blh,foo"], "part of randomizer = 'foo'"),
        (["--clients", "9", "--randomizer", "joint:krr"], "k = None: is required by krr"),
    ],
)
def test_bad_input_of_a_bound_is_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bound", "--epsilon0", "1", "--delta", "1e-6", *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("fl-shuffle: error: ") and told in line


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

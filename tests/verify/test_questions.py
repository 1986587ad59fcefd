"""Certificates of answers of `bound`, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fl_shuffle.cli import main

GAUSSIAN = "--randomizer gaussian --sigma 4 --unit client --clients 200 --delta 1e-4"


KRR = "--randomizer krr --epsilon0 1 --delta 1e-6"


@pytest.mark.parametrize(
    ("question", "kind", "at_most"),
    [
        (f"{GAUSSIAN} --release sum --rounds 5", "sum", 1.00001),
        pytest.param(GAUSSIAN, "shuffled", 1.005, marks=pytest.mark.slow),
        (f"{KRR} --k 4 --clients 1000", "finite", 1.005),
        pytest.param(
            f"{KRR} --k 2 --clients 500 --rounds 3", "finite", 1.005, marks=pytest.mark.slow
        ),
    ],
)
def test_an_answer_has_a_certificate_that_is_accepted(
    question: str, kind: str, at_most: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claim.json"
    assert main(["bound", *question.split(), "--json", "--certificate", str(file)]) == 0
    printed = json.loads(capsys.readouterr().out)["epsilon"]
    written = json.loads(file.read_text(encoding="utf-8"))
    claim, facts = written["claim"], written["facts"]
    assert claim["kind"] == kind
    if kind != "finite":
        (each,) = facts["rounds"]
        assert [other["count"] for other in each["others"]] == ["199"]
    assert float(claim["epsilon"]) <= at_most * printed
    assert main(["verify", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"ACCEPTED: epsilon = {float(claim['epsilon']):.6g}")
    assert main(["bound", *question.split(), "--certificate", str(tmp_path)]) == 2
    assert "--certificate" in capsys.readouterr().err


@pytest.mark.parametrize(
    "question",
    [
        "--randomizer laplace --epsilon0 1 --unit client --clients 100 --delta 1e-4",
        f"{GAUSSIAN} --participation 0.5",
        "--randomizer oue --k 4 --epsilon0 1 --clients 99 --delta 1e-4",
    ],
)
def test_what_has_none_is_said_in_one_line(
    question: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claim.json"
    assert main(["bound", *question.split(), "--certificate", str(file)]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "certificate" in said
    assert not file.exists()

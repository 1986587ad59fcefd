"""Certificates of answers of `bound`, through the command line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from fl_shuffle.cli import main
from fl_shuffle.verify.claims import check

GAUSSIAN = "--randomizer gaussian --sigma 4 --unit client --clients 200 --delta 1e-4"
KRR = "--randomizer krr --epsilon0 1 --delta 1e-6"


def asked(question: str, capsys: pytest.CaptureFixture[str], file: Path) -> float:
    """The epsilon that is printed; its certificate lies in the file."""
    assert main(["bound", *question.split(), "--json", "--certificate", str(file)]) == 0
    return float(json.loads(capsys.readouterr().out)["epsilon"])


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        (f"{GAUSSIAN} --release sum --rounds 5", "sum"),
        (f"{KRR} --k 4 --clients 1000", "finite"),
        pytest.param(GAUSSIAN, "shuffled", marks=pytest.mark.slow),
        # Noise so wide that the page proves more than the Gram order's boxes.
        pytest.param(GAUSSIAN.replace("a 4", "a 400"), "shuffled", marks=pytest.mark.slow),
        pytest.param(f"{KRR} --k 2 --clients 500 --rounds 3", "finite", marks=pytest.mark.slow),
    ],
)
def test_an_answer_has_a_certificate_that_is_accepted(
    question: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claim.json"
    printed = asked(question, capsys, file)
    written = json.loads(file.read_text(encoding="utf-8"))
    claim, facts = written["claim"], written["facts"]
    assert claim["kind"] == kind
    if kind != "finite":
        (each,) = facts["rounds"]
        assert [other["count"] for other in each["others"]] == ["199"]
    assert float(claim["epsilon"]) <= (1.00001 if kind == "sum" else 1.005) * printed
    assert main(["verify", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"ACCEPTED: epsilon = {float(claim['epsilon']):.6g}")
    assert main(["bound", *question.split(), "--certificate", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err


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
    assert "certificate" in capsys.readouterr().err.strip().splitlines()[-1]
    assert not file.exists()


def drawn(number: int) -> str:
    """The question of this number, at random."""
    draw = random.Random(f"held out {number}")
    clients = int(10 ** draw.uniform(1.3, 5))
    question = f"--clients {clients} --delta {draw.choice((1, 2, 5))}e-{draw.randint(3, 8)}"
    if number % 3 == 0:
        rounds = draw.choice((1, 1, 1, draw.randint(2, 50)))
        k, epsilon0 = draw.choice((2, 3, 10, 1000)), round(draw.uniform(0.2, 4), 3)
        return f"{question} --randomizer krr --k {k} --epsilon0 {epsilon0} --rounds {rounds}"
    unit = draw.choice(("client", f"record --records {draw.randint(2, 60)}"))
    question += f" --randomizer gaussian --sigma {round(draw.uniform(2.5, 30), 3)} --unit {unit}"
    rounds = draw.randint(1, 500)
    return f"{question} " + (
        "--rounds 1" if number % 3 == 1 else f"--release sum --rounds {rounds}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", range(300, 312))
def test_no_question_at_random_is_left_without_its_certificate(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claim.json"
    printed = asked(drawn(number), capsys, file)
    assert file.stat().st_size < 1 << 20
    accepted = check(file.read_text(encoding="utf-8"))
    certified = int(accepted.epsilon.p) / int(accepted.epsilon.q)
    # What already holds at epsilon zero is printed, and certified, as zero.
    assert certified > 0 or printed == 0
    assert number % 3 or certified <= 1.005 * printed

"""Random settings, by number: none of their certificates is refused."""

from __future__ import annotations

import json
import random
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from fl_shuffle.certificates.gaussian_rounds import shuffled_witness
from fl_shuffle.certificates.writing import certificate, exact
from fl_shuffle.cli import main
from fl_shuffle.verify.claims import check
from fl_shuffle.verify.gaussian import rounds_of
from fl_shuffle.verify.reading import Fields

KINDS = ("local", "sum", "rounds", "question sum", "question one", "question krr", "question krr")


def gaussian_facts(draw: random.Random, times: int, types: int) -> dict[str, Any]:
    """Rounds of one client among others of personal radii, some of another scale, some absent."""
    scale, radius = 10 ** draw.uniform(-3, 2), draw.uniform(0.1, 0.8)
    unit = draw.choice((2.0, 2.0, draw.uniform(0.05, 1.9)))
    grid = exact(2.0 ** draw.choice((-30, -28)))
    near = [draw.uniform(0.05, 0.9) for _ in range(draw.randint(1, 3))]
    rounds = []
    for _ in range(types):
        others = [
            {"scale": exact(scale), "radius": exact(scale * r), "grid": grid, "count": str(n)}
            for r in near
            if (n := int(10 ** draw.uniform(1, 3.5)))
        ]
        if draw.random() < 0.3:
            others.append({**others[0], "scale": exact(2 * scale)})
        own = {"times": str(times), "noise": "gaussian", "scale": exact(scale), "grid": grid}
        own |= {"radius": exact(scale * radius), "sensitivity": exact(unit * scale * radius)}
        colluders = draw.choice((0, 0, int(others[0]["count"]) // 3))
        rounds.append({**own, "others": others, "colluders": str(colluders)})
    return {"dimension": str(draw.randint(1, 10**6)), "rounds": rounds}


def question(draw: random.Random, kind: str, delta: str) -> str:
    """What `fl-shuffle bound` is asked."""
    clients = int(10 ** draw.uniform(1.3, 5))
    if kind == "question krr":
        rounds = draw.choice((1, 1, 1, draw.randint(2, 50)))
        epsilon0 = round(draw.uniform(0.2, 4), 3)
        return (
            f"--randomizer krr --k {draw.choice((2, 3, 10, 1000))} --epsilon0 {epsilon0} "
            f"--clients {clients} --rounds {rounds} --delta {delta}"
        )
    unit = draw.choice(("client", f"record --records {draw.randint(2, 60)}"))
    sigma = round(draw.uniform(2.5, 30), 3)
    asked = f"--randomizer gaussian --sigma {sigma} --unit {unit} --clients {clients}"
    if kind == "question sum":
        return f"{asked} --release sum --rounds {draw.randint(1, 500)} --delta {delta}"
    return f"{asked} --rounds 1 --delta {delta}"


def tried(number: int) -> tuple[str, float, float]:
    """The setting of this number: its kind, printed (or zero) and certified epsilon."""
    draw = random.Random(f"held out {number}")
    kind = KINDS[number % len(KINDS)]
    delta = f"{draw.choice((1, 2, 5))}e-{draw.randint(3, 8)}"
    if kind.startswith("question"):
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()) as said:
            file = Path(folder) / "claim.json"
            asked = question(draw, kind, delta)
            code = main(["bound", *asked.split(), "--json", "--certificate", str(file)])
            assert code == 0, asked
            text = file.read_text(encoding="utf-8")
        printed = float(json.loads(said.getvalue())["epsilon"])
    else:
        single = kind == "rounds" and draw.random() < 0.5
        times = 1 if single else draw.randint(1, 40)
        stated = gaussian_facts(draw, times, 1 if single else draw.randint(1, 3))
        witness: dict[str, Any] = {}
        if kind == "rounds":
            rounds = rounds_of(Fields(stated, "facts"))
            witness = shuffled_witness(rounds, float(delta), short=True)
        named = "shuffled" if kind == "rounds" else kind
        unit = draw.choice(("client", "record"))
        if any(each.move < 2 * each.radius for each in rounds_of(Fields(stated, "facts"))):
            unit = "record"  # a client's mean can be anywhere in its ball
        text = json.dumps(
            certificate(named, stated, witness, unit=unit, client=7, delta=float(delta), start=0.5)
        )
        printed = 0.0
    assert len(text) < 1 << 20
    accepted = check(text)
    return kind, printed, int(accepted.epsilon.p) / int(accepted.epsilon.q)


@pytest.mark.parametrize("number", [0, 1, 5])
def test_a_setting_has_its_certificate(number: int) -> None:
    kind, _, certified = tried(number)
    assert kind == KINDS[number % len(KINDS)]
    assert certified > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", range(300, 321))
def test_further_settings_have_theirs(number: int) -> None:
    kind, printed, certified = tried(number)
    # What already holds at epsilon zero is printed, and certified, as zero.
    assert certified > 0 or (kind.startswith("question") and printed == certified == 0)
    if printed and "krr" in kind:
        assert certified <= 1.005 * printed

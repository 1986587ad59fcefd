"""Certificates are accepted where they are true, and refused where they are not."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import flint
import pytest

import fl_shuffle as fs
from fl_shuffle.certificates.writing import (
    certificate,
    exact,
    randomized_response,
    rounded_up,
    shuffled_witness,
    text_of,
)
from fl_shuffle.errors import NotApplicableError
from fl_shuffle.verify.__main__ import main
from fl_shuffle.verify.claims import check
from fl_shuffle.verify.gaussian import rounds_of
from fl_shuffle.verify.reading import Fields, Refused
from tests.repository import ROOT

FOLDER = ROOT / "fl_shuffle" / "verify"
DELTA = 1e-5


def facts(
    times: int, scale: float, radius: float, others: list[tuple[float, int]]
) -> dict[str, Any]:
    grid = exact(2.0**-18)
    groups = [
        {"scale": exact(scale), "radius": exact(r), "grid": grid, "count": str(n)}
        for r, n in others
    ]
    own = {"times": str(times), "noise": "gaussian", "scale": exact(scale), "radius": exact(radius)}
    own |= {"sensitivity": exact(2 * radius), "grid": grid}
    return {"dimension": "650", "rounds": [{**own, "others": groups, "colluders": "0"}]}


def written(kind: str) -> dict[str, Any]:
    if kind == "finite":
        return randomized_response(3, 1.0, 1000, 1, DELTA, 0.109647)
    if kind == "finite rounds":
        return randomized_response(2, 1.0, 2000, 5, DELTA, 0.1)
    stated = facts(3, 0.1, 0.05, [(0.04, 20), (0.05, 40)])
    # Few points and short sums suffice for a large delta; every fourth of them will do.
    delta = 1e-3 if kind == "shuffled" else DELTA
    witness: dict[str, Any] = {}
    if kind == "shuffled":
        witness = shuffled_witness(rounds_of(Fields(stated, "facts")), delta, short=True)
        points = witness["types"][0]["points"]
        witness["types"][0]["points"] = [*points[:-1:4], points[-1]]
    return certificate(kind, stated, witness, unit="client", client=3, delta=delta, start=1.0)


@pytest.fixture(scope="module")
def accepted() -> dict[str, dict[str, Any]]:
    kinds = ("local", "sum", "shuffled", "finite", "finite rounds")
    return {kind: written(kind) for kind in kinds}


@pytest.mark.parametrize("kind", ["local", "sum", "shuffled", "finite", "finite rounds"])
def test_what_is_written_is_accepted_and_nothing_less(
    accepted: dict[str, dict[str, Any]], kind: str
) -> None:
    claim = accepted[kind]["claim"]
    found = check(text_of(accepted[kind]))
    assert found.kind == kind.split(maxsplit=1)[0]
    less = deepcopy(accepted[kind])
    less["claim"]["epsilon"] = exact(float(claim["epsilon"]) * 0.9999)
    with pytest.raises(Refused, match="only known to be at most"):
        check(text_of(less))


def test_the_claims_are_those_of_the_accountant(accepted: dict[str, dict[str, Any]]) -> None:
    """The package and the verifier share no line; where both are tight they agree."""
    response = fs.bound(
        method="blanket", randomizer="krr", k=3, epsilon0=1.0, clients=1000, delta=DELTA
    )
    assert float(accepted["finite"]["claim"]["epsilon"]) == pytest.approx(
        response.epsilon, rel=1e-3
    )
    from fl_shuffle.accounting.bounds.sum_release.gaussian import sum_epsilon
    from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon

    local = gaussian_epsilon(DELTA, 3**0.5)
    assert float(accepted["local"]["claim"]["epsilon"]) == pytest.approx(local, rel=1e-5)
    summed = float(sum_epsilon(DELTA, (3 / 61) ** 0.5))
    assert float(accepted["sum"]["claim"]["epsilon"]) == pytest.approx(summed, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "where", "to"),
    [
        ("sum", ("claim", "adversary"), None),
        ("sum", ("claim", "client"), None),
        ("sum", ("claim", "unit"), "household"),
        ("sum", ("claim", "relation"), "add-remove"),
        ("sum", ("claim", "kind"), "local"),
        ("sum", ("claim", "adversary"), "nobody in particular"),
        ("sum", ("assumptions",), []),
        ("sum", ("facts", "rounds", 0, "times"), "4"),
        ("sum", ("facts", "rounds", 0, "scale"), "0.0999"),
        ("sum", ("facts", "rounds", 0, "sensitivity"), "-0.1"),
        ("sum", ("facts", "rounds", 0, "others", 1, "count"), "39"),
        ("sum", ("facts", "rounds", 0, "others", 1, "scale"), "0.09"),
        ("sum", ("facts", "rounds", 0, "grid"), "0.3"),
        ("sum", ("facts", "rounds", 0, "grid"), "0.0625"),
        ("sum", ("claim", "delta"), "0.0000099"),
        ("local", ("facts", "rounds", 0, "times"), "4"),
        ("local", ("facts", "rounds", 0, "scale"), "0.0999"),
        ("shuffled", ("facts", "rounds", 0, "times"), "4"),
        ("shuffled", ("facts", "rounds", 0, "radius"), "0.051"),
        ("shuffled", ("facts", "rounds", 0, "others", 0, "radius"), "0.06"),
        ("shuffled", ("facts", "rounds", 0, "others", 0, "scale"), "0.11"),
        ("shuffled", ("facts", "rounds", 0, "colluders"), "1"),
        ("shuffled", ("witness", "types", 0, "groups", 0, "count"), "21"),
        ("shuffled", ("witness", "types", 0, "groups", 1, "radius"), "0.045"),
        ("shuffled", ("witness", "types", 0, "rounds"), []),
        ("shuffled", ("witness", "types", 0, "rounds"), ["1"]),
        ("shuffled", ("facts", "rounds", 0, "others", 0, "count"), "19"),
        ("shuffled", ("facts", "rounds", 0, "noise"), "laplace"),
        ("shuffled", ("witness", "step"), "0"),
        ("shuffled", ("witness", "types"), []),
        ("finite", ("facts", "clients"), "999"),
        ("finite", ("facts", "randomizer", "epsilon0"), "1.001"),
        ("finite", ("facts", "randomizer", "name"), "something else"),
        ("finite", ("witness", "points", 1, "theta"), "0"),
        ("finite", ("witness", "points", 1, "by"), "gram"),
        ("finite rounds", ("facts", "times"), "6"),
    ],
)
def test_a_changed_claim_or_fact_is_refused(
    accepted: dict[str, dict[str, Any]], kind: str, where: tuple[str | int, ...], to: object
) -> None:
    changed = deepcopy(accepted[kind])
    holder: Any = changed
    for step in where[:-1]:
        holder = holder[step]
    if to is None:
        del holder[where[-1]]
    else:
        assert holder[where[-1]] != to
        holder[where[-1]] = to
    with pytest.raises(Refused):
        check(text_of(changed))


HOSTILE = [
    "",
    "[]",
    "null",
    "[" * 100_000,
    '{"format": ' + "[" * 50 + "]" * 50 + "}",
    '{"format": "a", "format": "a"}',
    '{"format": NaN}',
    '{"format": 1e999}',
    "\ud800",
    "x" * (2 << 20),
    '{"claim": {"epsilon": 0x10}}',
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        check(text)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where the strings of a certificate stand."""
    if isinstance(value, dict):
        return [p for key, held in value.items() for p in places(held, (*path, key))]
    if isinstance(value, list):
        return [p for i, held in enumerate(value) for p in places(held, (*path, i))]
    return [path]


STRANGE = [
    "",
    "-1",
    "0",
    "1e-300",
    "1e300",
    "9" * 40,
    "NaN",
    "0x10",
    "1_000",
    " 1",
    3,
    None,
    True,
    [],
    {},
]


def smaller_is_true(path: tuple[str | int, ...], before: str, after: object) -> bool:
    """Whether a change of a claim or a fact leaves a true claim: less asked, or more noise."""
    if path[0] == "witness":
        return True
    try:
        return float(after) >= float(before) if path[-1] in ("epsilon", "delta") else False  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


@pytest.mark.parametrize("kind", ["local", "sum", "finite"])
def test_no_mutation_crashes_it_and_no_false_claim_passes(
    accepted: dict[str, dict[str, Any]], kind: str
) -> None:
    """Every string of a certificate, put to strange values and to its own times .9 to 1.1."""
    tried = 0
    for path in places(accepted[kind]):
        before = accepted[kind]
        for step in path:
            before = before[step]  # type: ignore[index]
        values: list[object] = list(STRANGE)
        if isinstance(before, str) and before.replace(".", "").isdigit():
            values += [exact(float(before) * factor) for factor in (0.9, 0.99, 1.01, 1.1)]
        for value in values:
            changed = deepcopy(accepted[kind])
            holder: Any = changed
            for step in path[:-1]:
                holder = holder[step]
            holder[path[-1]] = value
            tried += 1
            try:
                found = check(json.dumps(changed))
            except Refused:
                continue
            if path[0] in ("claim", "witness"):
                assert smaller_is_true(path, str(before), value) or path[-1] == "client", path
            else:
                assert float(found.verified) <= DELTA * 1.0001
                assert at_least_as_private(kind, changed), (path, value)
    assert tried > 150


def at_least_as_private(kind: str, changed: dict[str, Any]) -> bool:
    """Whether the package's own accountant proves the claim of the changed facts."""
    from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile

    claim, stated = changed["claim"], changed["facts"]
    epsilon = float(claim["epsilon"])
    if kind == "finite":
        r = stated["randomizer"]
        asked = {"k": int(float(r["k"])), "epsilon0": float(r["epsilon0"])}
        found = fs.bound(
            method="blanket",
            randomizer="krr",
            clients=int(float(stated["clients"])),
            epsilon=epsilon,
            **asked,
        )
        return found.delta <= DELTA * 1.01
    (own,) = stated["rounds"]
    move = min(float(own["sensitivity"]), 2 * float(own["radius"]))
    variance = float(own["scale"]) ** 2
    if kind == "sum":
        variance += sum(float(o["scale"]) ** 2 * float(o["count"]) for o in own["others"])
    mu = move * (float(own["times"]) / variance) ** 0.5
    return mu == 0 or float(gaussian_profile(epsilon, mu)) <= DELTA * 1.0001


@pytest.mark.parametrize("kind", ["local", "sum", "shuffled", "finite"])
def test_a_field_that_nobody_asks_for_is_refused(
    accepted: dict[str, dict[str, Any]], kind: str
) -> None:
    """In every object of the file: what it would mean nobody can say."""
    holders = {path[:-1] for path in places(accepted[kind]) if isinstance(path[-1], str)}
    holders |= {(), ("claim",), ("facts",), ("witness",)}
    for path in holders:
        changed = deepcopy(accepted[kind])
        holder: Any = changed
        for step in path:
            holder = holder[step]
        holder["more"] = "1"
        with pytest.raises(Refused, match=r"unknown field 'more'|assumptions"):
            check(text_of(changed))
    changed = deepcopy(accepted[kind])
    changed["by a page"] = {"epsilon": "50", "witness": changed["witness"]}
    if kind == "shuffled":
        assert str(check(text_of(changed)).by_page) == "50"
        changed["by a page"]["epsilon"] = "0.1"
    with pytest.raises(Refused, match="unknown field 'by a page'|only known to be at most"):
        check(text_of(changed))


def test_the_limit_is_in_bytes() -> None:
    """Half a million characters of two bytes each are too many."""
    text = json.dumps({"format": "\u00e9" * 530_000}, ensure_ascii=False)
    assert len(text) < 1 << 20
    with pytest.raises(Refused, match="larger than 1 MiB"):
        check(text)


def test_too_much_work_is_refused_before_it_is_done(
    accepted: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("finite rounds", "shuffled"):
        check(text_of(accepted[kind]))
    monkeypatch.setattr("fl_shuffle.verify.claims.WORK", 1e6)
    for kind in ("finite rounds", "shuffled"):
        with pytest.raises(Refused, match="too much work"):
            check(text_of(accepted[kind]))


def test_a_witness_that_proves_nothing_is_said() -> None:
    stated = facts(3, 0.1, 0.05, [(0.04, 20), (0.05, 40)])
    with pytest.raises(NotApplicableError, match="no certificate was found"):
        certificate("shuffled", stated, {}, unit="client", client=3, delta=DELTA, start=1.0)


def test_words_of_the_command(
    accepted: dict[str, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sum.json"
    path.write_text(text_of(accepted["sum"]), encoding="utf-8")
    assert main([str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("ACCEPTED: epsilon = ")
    assert "everything held by client 3" in said
    assert "sha256 " in said
    path.write_bytes(b"\xff\xfe")
    assert main([str(path)]) == 1
    assert capsys.readouterr().out.startswith("REFUSED: not JSON")
    assert main([str(tmp_path / "nothing.json")]) == 2
    assert main([str(tmp_path)]) == 2
    assert main(["nul\0byte"]) == 2


def test_a_copy_of_the_folder_works_alone(
    accepted: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Python and python-flint, nothing of this project or of its other dependencies."""
    shutil.copytree(FOLDER, tmp_path / "verify")
    site = tmp_path / "site"
    site.mkdir()
    packages = Path(flint.__file__).parents[1]
    for found in (*packages.glob("flint"), *packages.glob("python_flint*")):
        (site / found.name).symlink_to(found)
    certificate_file = tmp_path / "claim.json"
    certificate_file.write_text(text_of(accepted["finite"]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-S", "-m", "verify", str(certificate_file)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{site}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ACCEPTED")


def code_lines(text: str) -> int:
    """Lines that are neither blank, comment nor docstring."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        for held in getattr(node, "body", []) if isinstance(getattr(node, "body", 0), list) else []:
            if isinstance(held, ast.Expr) and isinstance(held.value, ast.Constant):
                documented.update(range(held.lineno, (held.end_lineno or held.lineno) + 1))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in documented
        for number, line in enumerate(text.splitlines(), 1)
    )


def test_it_stays_small_and_imports_nothing_else_of_the_project() -> None:
    sizes = {}
    for path in sorted(FOLDER.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        sizes[path.name] = code_lines(text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                assert node.level <= 1
                top = (node.module or "").split(".")[0]
                assert node.level or top in {*sys.stdlib_module_names, "flint"}, (path, top)
            elif isinstance(node, ast.Import):
                assert all(n.name.split(".")[0] in sys.stdlib_module_names for n in node.names)
    assert max(sizes.values()) <= 300
    assert sum(sizes.values()) <= 1000


def test_a_claim_is_rounded_up() -> None:
    assert rounded_up(0.123456789) == "0.123457"
    assert float(rounded_up(1.0)) == 1
    assert float(rounded_up(1e-7 / 3)) >= 1e-7 / 3

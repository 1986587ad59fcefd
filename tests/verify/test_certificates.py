"""Certificates are accepted where they are true, and refused where they are not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from copy import deepcopy
from decimal import Decimal
from pathlib import Path
from typing import Any

import flint
import pytest
from flint import fmpq

from fl_shuffle.certificates.writing import certificate, exact, rounded_up, text_of
from fl_shuffle.errors import NotApplicableError
from fl_shuffle.verify.__main__ import main
from fl_shuffle.verify.claims import check, digits
from fl_shuffle.verify.gaussian import rounds_of
from fl_shuffle.verify.reading import Fields, Refused
from tests.repository import ROOT
from tests.verify.made import KINDS, built, facts, held, strings

FOLDER = ROOT / "fl_shuffle" / "verify"
DELTA = 1e-5


@pytest.fixture(scope="module")
def accepted() -> dict[str, dict[str, Any]]:
    return {kind: built(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_accepted_and_nothing_less(
    accepted: dict[str, dict[str, Any]], kind: str
) -> None:
    written = accepted[kind]
    names = {"krr": "finite", "convex": "shuffled", "gram": "shuffled"}
    assert check(text_of(written)).kind == names.get(kind, kind)
    less = deepcopy(written)
    less["claim"]["epsilon"] = exact(float(written["claim"]["epsilon"]) * 0.9999)
    with pytest.raises(Refused, match="only known to be at most"):
        check(text_of(less))


@pytest.mark.parametrize(
    ("kind", "where", "to"),
    [
        ("sum", ("claim", "adversary"), None),
        ("sum", ("claim", "unit"), "household"),
        ("sum", ("claim", "kind"), "local"),
        ("sum", ("assumptions",), []),
        ("sum", ("facts", "rounds", 0, "grid"), "0.3"),
        ("convex", ("facts", "rounds", 0, "colluders"), "1"),
        ("convex", ("facts", "rounds", 0, "noise"), "laplace"),
        ("convex", ("witness", "types", 0, "groups", 0, "count"), "21"),
        ("convex", ("witness", "types", 0, "groups", 1, "radius"), "0.045"),
        ("convex", ("witness", "types", 0, "rounds"), ["1"]),
        ("convex", ("witness", "types"), []),
        ("finite", ("facts", "randomizer", "name"), "something else"),
        ("finite", ("witness", "points", 1, "by"), "gram"),
    ],
)
def test_a_changed_claim_or_fact_is_refused(
    accepted: dict[str, dict[str, Any]], kind: str, where: tuple[str | int, ...], to: object
) -> None:
    changed = deepcopy(accepted[kind])
    holder = held(changed, where[:-1])
    assert holder[where[-1]] != to
    holder[where[-1]] = to
    if to is None:
        del holder[where[-1]]
    with pytest.raises(Refused):
        check(text_of(changed))


HOSTILE = ["", "[]", "null", "[" * 100_000, "\ud800", "x" * (2 << 20)]
HOSTILE += ['{"format": ' + "[" * 50 + "]" * 50 + "}", '{"format": "a", "format": "a"}']
HOSTILE += ['{"format": NaN}', '{"format": 1e999}', '{"claim": {"epsilon": 0x10}}']
# The limit is in bytes: half a million characters of two each are too many.
HOSTILE += ['{"format": "' + "\u00e9" * 530_000 + '"}']


def test_hostile_text_is_refused() -> None:
    for text in HOSTILE:
        with pytest.raises(Refused):
            check(text)


@pytest.mark.parametrize("kind", ["sum", "gram", "finite"])
def test_a_field_that_nobody_asks_for_is_refused(
    accepted: dict[str, dict[str, Any]], kind: str
) -> None:
    """In every kind of object of the file: what it would mean nobody can say."""
    holders = {
        tuple(0 if isinstance(step, int) else step for step in path[:-1])
        for path in strings(accepted[kind])
        if isinstance(path[-1], str)
    }
    for path in holders:
        changed = deepcopy(accepted[kind])
        held(changed, path)["more"] = "1"
        with pytest.raises(Refused, match=r"unknown field 'more'|assumptions"):
            check(text_of(changed))


def test_a_number_by_a_page_alone_must_be_one(accepted: dict[str, dict[str, Any]]) -> None:
    changed = deepcopy(accepted["convex"])
    changed["by a page"] = {"epsilon": "50", "witness": changed["witness"]}
    assert str(check(text_of(changed)).by_page) == "50"
    changed["by a page"]["epsilon"] = "0.1"
    with pytest.raises(Refused, match="only known to be at most"):
        check(text_of(changed))


def test_too_much_work_is_refused_before_it_is_done(
    accepted: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_shuffle.verify.claims.WORK", 1e5)
    for kind in ("krr", "convex"):
        with pytest.raises(Refused, match="too much work"):
            check(text_of(accepted[kind]))


def test_a_witness_that_proves_nothing_is_said() -> None:
    stated = facts(3, 0.1, 0.05, [(0.04, 20), (0.05, 40)])
    with pytest.raises(NotApplicableError, match="no certificate was found"):
        certificate("shuffled", stated, {}, unit="client", client=3, delta=DELTA, start=1.0)


def test_words_of_the_command(
    accepted: dict[str, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "claim.json"
    tiny = claim("local", facts(1, 1.0, 0.1, []), "client", 0)
    tiny["claim"] |= {"delta": "1e-30", "epsilon": "90.12345678"}
    for written, words in (
        (accepted["sum"], ("everything held by client 3", "sha256 ")),
        (tiny, ("epsilon = 90.12345678", "E-30")),
    ):
        path.write_text(text_of(written), encoding="utf-8")
        assert main([str(path)]) == 0
        said = capsys.readouterr().out
        assert said.startswith("ACCEPTED: epsilon = ") and all(word in said for word in words)
    path.write_bytes(b"\xff\xfe")
    assert main([str(path)]) == 1
    assert capsys.readouterr().out.startswith("REFUSED: not JSON")
    for wrong in (str(tmp_path / "nothing.json"), str(tmp_path), "nul\0byte"):
        assert main([wrong]) == 2


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


def test_it_stays_small_and_imports_nothing_else_of_the_project() -> None:
    sizes = []
    for path in sorted(FOLDER.rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        sizes.append(len(lines))
        found = [re.match(r"\s*(?:from|import) (\.?)(\w+)", line) for line in lines]
        for own, top in (each.groups() for each in found if each):
            assert own or top in {*sys.stdlib_module_names, "flint"}, (path, top)
    assert max(sizes) <= 330 and sum(sizes) <= 1600


@pytest.mark.parametrize("kind", ["local", "krr", "gram"])
def test_certificates_fit_the_schema(accepted: dict[str, dict[str, Any]], kind: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs/certificate.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(accepted[kind])
    for name in ("claim", "facts", "assumptions", "witness"):
        assert not validator.is_valid({k: v for k, v in accepted[kind].items() if k != name})
    number = deepcopy(accepted[kind])
    number["claim"]["epsilon"] = 1.5
    assert not validator.is_valid(number)


def test_printed_digits_and_claims_are_rounded_up() -> None:
    assert Decimal(digits(fmpq(1) + fmpq(49, 10**13))) >= Decimal("1.0000000000049")
    assert digits(fmpq(1, 8)) == "0.125"
    assert digits(fmpq(1, 3)) == "0.333333333334"
    assert rounded_up(0.123456789) == "0.123457"
    assert float(rounded_up(1.0)) == 1
    assert float(rounded_up(1e-7 / 3)) >= 1e-7 / 3


def claim(kind: str, stated: dict[str, Any], unit: str, client: int | None) -> dict[str, Any]:
    made = certificate(kind, stated, {}, unit=unit, client=client, delta=1e-5, start=1.0)
    return dict(json.loads(text_of(made)))


@pytest.mark.parametrize("kind", ["local", "sum"])
def test_a_client_among_others_that_differ_is_not_any_client(kind: str) -> None:
    for radius, fits in ((0.1, True), (0.001, False), (0.2, False)):
        stated = facts(1, 0.1, radius, [(0.1, 30)])
        written = claim(kind, stated, "client", 0)
        assert check(json.dumps(written)).kind == kind
        written["claim"]["client"] = "any"
        if fits:
            assert check(json.dumps(written)).client == "any"
        else:
            with pytest.raises(Refused, match="the others are not like this one"):
                check(json.dumps(written))


def test_what_one_record_moves_is_no_claim_about_a_client() -> None:
    stated = facts(1, 1.0, 1.0, [])
    stated["rounds"][0]["sensitivity"] = "0.01"
    written = claim("local", stated, "record", 3)
    assert check(json.dumps(written)).unit == "record"
    written["claim"]["unit"] = "client"
    with pytest.raises(Refused, match="a client moves its mean by twice its radius"):
        check(json.dumps(written))


def test_reports_on_another_grid_hide_nobody() -> None:
    """A report on its own client's grid is told apart: what is left is its own noise."""
    stated = facts(1, 0.1, 0.1, [(0.1, 30)])
    (alike,) = rounds_of(Fields(stated, "facts"))
    stated["rounds"][0]["others"][0]["grid"] = "1024"
    (apart,) = rounds_of(Fields(stated, "facts"))
    assert len(alike.hiding()) == 1 and apart.hiding() == []

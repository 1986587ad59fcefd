"""A claim says no more than its facts: whose it is, of which unit, beside which grids."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from flint import fmpq

from fl_shuffle.certificates.writing import certificate, text_of
from fl_shuffle.verify.claims import check, digits
from fl_shuffle.verify.reading import Refused
from tests.verify.test_certificates import facts


def refused(written: dict[str, Any]) -> str:
    with pytest.raises(Refused) as why:
        check(json.dumps(written))
    return str(why.value)


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
            assert "the others are not like this one" in refused(written)


def test_what_one_record_moves_is_no_claim_about_a_client() -> None:
    stated = facts(1, 1.0, 1.0, [])
    stated["rounds"][0]["sensitivity"] = "0.01"
    written = claim("local", stated, "record", 3)
    assert check(json.dumps(written)).unit == "record"
    written["claim"]["unit"] = "client"
    assert "a client moves its mean by twice its radius" in refused(written)


def test_reports_on_another_grid_hide_nobody() -> None:
    """A report on its own client's grid is told apart: what is left is its own noise."""
    from fl_shuffle.verify.gaussian import rounds_of
    from fl_shuffle.verify.reading import Fields

    stated = facts(1, 0.1, 0.1, [(0.1, 30)])
    (alike,) = rounds_of(Fields(stated, "facts"))
    stated["rounds"][0]["others"][0]["grid"] = "1024"
    (apart,) = rounds_of(Fields(stated, "facts"))
    assert len(alike.hiding()) == 1 and apart.hiding() == []


def test_a_tiny_delta_is_printed_as_it_is(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from fl_shuffle.verify.__main__ import main

    written = claim("local", facts(1, 1.0, 0.1, []), "client", 0)
    written["claim"] |= {"delta": "1e-30", "epsilon": "90.12345678"}
    (tmp_path / "c.json").write_text(json.dumps(written))
    assert main([str(tmp_path / "c.json")]) == 0
    said = capsys.readouterr().out
    assert "epsilon = 90.12345678" in said and "E-30" in said


def test_printed_digits_are_rounded_up() -> None:
    assert Decimal(digits(fmpq(1) + fmpq(49, 10**13))) >= Decimal("1.0000000000049")
    assert digits(fmpq(1, 8)) == "0.125"
    assert digits(fmpq(1, 3)) == "0.333333333334"

"""Of a run with several reports a round every one is in the facts that the verifier reads."""

from __future__ import annotations

from pathlib import Path

import pytest

import fl_shuffle as fs
from fl_shuffle.certificates.writing import text_of
from fl_shuffle.verify.claims import check
from fl_shuffle.verify.ledger import ledger_facts
from fl_shuffle.verify.reading import Refused


@pytest.mark.slow
def test_a_certificate_counts_every_report(tmp_path: Path) -> None:
    tables = {"run.rounds": 2, "data.clients": 20, "privacy.reports_per_round": 3}
    fs.simulate(overrides=tables, out=tmp_path / "run")
    ledger = tmp_path / "run" / "ledger.sqlite"
    rounds = ledger_facts(ledger, "local", 0)["rounds"]
    assert [each["times"] for each in rounds] == ["6"]
    written = text_of(fs.certify(tmp_path / "run", column="local", client=0))
    assert check(written, ledger).kind == "local"
    # What one report a round would spend is no claim about this run.
    fewer = written.replace('"times":"6"', '"times":"2"')
    assert fewer != written
    with pytest.raises(Refused):
        check(fewer, ledger)

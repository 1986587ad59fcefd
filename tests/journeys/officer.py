"""A privacy officer: what was promised to whom, and is it so? Run in an empty folder.

Somebody hands over a run directory. The officer reads the report, asks the ledger by command and by
SQL, compares the two, and goes through the list of runs.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from html import unescape
from pathlib import Path

from commands import typed

import fl_shuffle as fs


def main() -> None:
    clients, rounds, run = 40, 4, "runs/handed-over"
    drawn = {"data.clients": clients, "run.rounds": rounds, "training.participation": 0.5}
    fs.simulate(overrides={**drawn, "privacy.personalization": "noise"}, out=run)
    summary = json.loads(Path(run, "summary.json").read_text(encoding="utf-8"))

    # The report shows the headline, and nothing of it lies elsewhere.
    typed(f"fl-shuffle report {run} --out report.html")
    text = unescape(re.sub(r"<[^>]+>", " ", Path("report.html").read_text(encoding="utf-8")))
    assert f"{summary['epsilon']:.4g}" in text, summary["epsilon"]
    assert "http://" not in text.replace("http://www.w3.org", "")

    # Every client's spend as it is written, and counted again.
    printed = typed(f"fl-shuffle ledger {run} --clients --format csv")
    written = [
        float(bill["proven_epsilon"] or 0.0) for bill in csv.DictReader(io.StringIO(printed))
    ]
    ledger = fs.Result(run).ledger
    counted = [ledger.client(number).proven_epsilon for number in range(clients)]
    assert max(abs(a - b) for a, b in zip(written, counted, strict=True)) < 1e-6
    assert abs(max(written) - summary["epsilon"]) <= 1e-6 * max(written), summary["epsilon"]
    typed(f"fl-shuffle ledger {run} --recount")
    assert "assumption" in typed(f"fl-shuffle ledger {run} --notes")
    audited = typed(f"fl-shuffle audit {run} --trials 20 --reports 2000 --seconds 5")
    assert "proven bound not contradicted" in audited, audited

    # Who took part: by command, and by SQL that needs nothing of ours.
    one = json.loads(typed(f"fl-shuffle ledger {run} --client 17 --format json"))
    base = sqlite3.connect(f"file:{run}/ledger.sqlite?mode=ro", uri=True)
    asked = "SELECT round FROM attendance WHERE client_id = 17 ORDER BY round"
    took_part = [number for (number,) in base.execute(asked)]
    base.close()
    assert [row["round"] for row in one] == took_part and len(took_part) <= rounds, took_part
    assert ledger.client(17).rounds == len(took_part), took_part

    listed = typed("fl-shuffle runs runs --differences")
    assert "handed-over" in listed
    print("officer: done")


if __name__ == "__main__":
    main()

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
    clients, rounds = 40, 4
    fs.simulate(
        overrides={
            "data.clients": clients,
            "run.rounds": rounds,
            "training.participation": 0.5,
            "privacy.personalization": "noise",
        },
        out="runs/handed-over",
    )
    run = "runs/handed-over"
    summary = json.loads(Path(run, "summary.json").read_text(encoding="utf-8"))

    # The report shows the headline, and every client's spend as the ledger counts it.
    typed(f"fl-shuffle report {run} --out report.html")
    text = unescape(re.sub(r"<[^>]+>", " ", Path("report.html").read_text(encoding="utf-8")))
    assert f"{summary['epsilon']:.4g}" in text, summary["epsilon"]
    assert "http://" not in text.replace("http://www.w3.org", "")

    printed = typed(f"fl-shuffle ledger {run} --clients --format csv")
    bills = list(csv.DictReader(io.StringIO(printed)))
    assert len(bills) == clients
    worst = max(float(bill["proven_epsilon"] or 0.0) for bill in bills)
    assert abs(worst - summary["epsilon"]) <= 1e-6 * worst, (worst, summary["epsilon"])

    # Who took part: by command, and by SQL that needs nothing of ours.
    one = json.loads(typed(f"fl-shuffle ledger {run} --client 17 --format json"))
    # What is written, counted again; what must be known to read it; an attempt to break it.
    typed(f"fl-shuffle ledger {run} --recount")
    assert "assumption" in typed(f"fl-shuffle ledger {run} --notes")
    audited = typed(f"fl-shuffle audit {run} --trials 20 --reports 2000 --seconds 5")
    assert "proven bound not contradicted" in audited, audited
    base = sqlite3.connect(f"file:{run}/ledger.sqlite?mode=ro", uri=True)
    took_part = base.execute(
        "SELECT round FROM attendance WHERE client_id = 17 ORDER BY round"
    ).fetchall()
    base.close()
    spend = fs.Result(run).ledger.client(17)
    assert spend.rounds == len(took_part) <= rounds, (spend, took_part)
    assert one, one
    for number in range(clients):
        mine = fs.Result(run).ledger.client(number)
        assert abs(mine.proven_epsilon - float(bills[number]["proven_epsilon"] or 0.0)) < 1e-6

    listed = typed("fl-shuffle runs runs --differences")
    assert "handed-over" in listed
    print("officer: done")


if __name__ == "__main__":
    main()

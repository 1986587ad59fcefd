"""A round of fl-shuffle against one of apple/pfl-research 0.6, in one run, client unit.

pfl runs in a Python of its own (--pfl-python, or FL_SHUFFLE_PFL_PYTHON; this one where it has it);
without one the benchmark says so and ends well. It is tuned: one flat parameter, gradients in
closed form with NumPy (faster than PyTorch for models of this size), users made once, and of its
two central mechanisms the one that a trial finds faster. Both sides have the same records, clip,
noise scale and step. Read wall_over_ours of pfl-local and wall_over_pooled of pfl-central; how
they are measured, `scripts/bench simulation --help` says. pfl's rounds take seconds: a quiet
machine wants some minutes, a busy one several times as long.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

from benchmarks.simulation import ENGINES, measure, parser_of

PEERS = ("JS1000", "JS10000")
WANTED = "0.6"
ASK = "import pfl, importlib.metadata as m; print(m.version('pfl'))"


def missing(python: str) -> str:
    """Why this Python cannot play the peer; empty if it can."""
    if not python:
        return "pfl is not installed here; name a Python that has it with --pfl-python"
    try:
        answer = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{python} cannot be started: {error.strerror}"
    if answer.returncode:
        return f"{python} has no pfl: {answer.stderr.strip().splitlines()[-1]}"
    version = answer.stdout.strip()
    return "" if version.startswith(WANTED) else f"{python} has pfl {version}, not {WANTED}"


def main() -> int:
    parser = parser_of(__doc__, PEERS, "bench_peers.csv")
    here = sys.executable if importlib.util.find_spec("pfl") else ""
    parser.add_argument("--pfl-python", default=os.environ.get("FL_SHUFFLE_PFL_PYTHON", here))
    parser.set_defaults(unit="client")
    given = parser.parse_args()
    if reason := missing(given.pfl_python):
        print(f"skipped: {reason}")
        return 0
    jobs = PEERS if given.job == "all" else [given.job]
    return measure(given, jobs, ENGINES[1:], given.pfl_python)


if __name__ == "__main__":
    raise SystemExit(main())

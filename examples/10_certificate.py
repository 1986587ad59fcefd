"""Certify an epsilon, verify it without the accountant, and see that a changed claim is refused.

Run it: python 10_certificate.py        (needs python-flint: pip install "fl-shuffle[certificates]")

Expected output:

    written: exit code 0
    verified: exit code 0
    half the epsilon: exit code 1
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path


def fl_shuffle(*words: str) -> int:
    """Run a command of fl-shuffle, without its output; return the exit code."""
    command = [sys.executable, "-m", "fl_shuffle", *words]
    return subprocess.run(command, capture_output=True, check=False).returncode


def main() -> None:
    """Write a certificate, verify it, change its epsilon, and verify it again."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "claim.json"
        asked = "--randomizer gaussian --sigma 4 --unit client --clients 200 --rounds 5"
        asked += " --delta 1e-5 --release sum"
        print("written: exit code", fl_shuffle("bound", *asked.split(), "--certificate", str(file)))
        print("verified: exit code", fl_shuffle("verify", str(file)))

        claim = json.loads(file.read_text(encoding="utf-8"))
        epsilon = claim["claim"]["epsilon"]
        claim["claim"]["epsilon"] = str(float(epsilon) / 2)
        file.write_text(json.dumps(claim), encoding="utf-8")
        print("half the epsilon: exit code", fl_shuffle("verify", str(file)))


if __name__ == "__main__":
    main()

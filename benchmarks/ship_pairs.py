"""Certify the rounds of the quickstart and of a new app, and write their pairs where the package
has them.

After any change of `VERSION`: what is shipped for another version is not read.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import fl_shuffle as fs
from fl_shuffle.accounting import pair_cache
from fl_shuffle.accounting.bounds import VERSION
from fl_shuffle.accounting.numerics.dominating_pairs import DominatingPair
from fl_shuffle.accounting.rounds import round_library
from fl_shuffle.cli.scaffold.writing import write_app

KEPT = ("_certified_pair", "_alone_epsilon")
"""What of `round_library` is kept on disk."""


def certified() -> dict[str, DominatingPair | float]:
    """What each kind of round is certified to cost, in a run and alone, computed here, by the
    name it is shipped under."""
    found: dict[str, DominatingPair | float] = {}

    def noted(certify: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def answered(kind: Any) -> Any:
            found[pair_cache.key(kind, VERSION, anywhere=True)] = answer = certify(kind)
            return answer

        return answered

    own: dict[str, Any] = {name: noted(getattr(round_library, name).__wrapped__) for name in KEPT}
    with patch.multiple(round_library, **own), TemporaryDirectory() as folder:
        app = Path(folder) / "new-app"
        write_app(app)
        # It releases sums, and says beside them what its shuffled reports would cost.
        reports = {"budgets.file": str(app / "budgets.csv"), "privacy.release": "reports"}
        for config, changes in (("quickstart", {}), (app / "config.toml", reports)):
            for rounds in (30, 1):
                fs.cost(config, overrides={**changes, "run.rounds": rounds})
    return found


def main() -> None:
    """Write them."""
    shipped = {
        name: b64encode(pair_cache._to_bytes(pair)).decode() for name, pair in certified().items()
    }
    text = json.dumps(shipped, indent=1, sort_keys=True) + "\n"
    pair_cache.SHIPPED.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Certificates of runs: claims that others can check without this package's accounting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fl_shuffle.plugins import require_extra


def certify(
    run: str | Path, *, client: int | None = None, column: str | None = None, short: bool = False
) -> dict[str, Any]:
    """A certificate, as `fl-shuffle verify` reads it, of one client of a finished run.

    `run` is the run's folder; `client` its number, by default the most exposed one; `column` is
    "proven", "sum" or "local", by default the run's headline. The claim's epsilon (nats, at the
    run's delta, for replacing one unit of the client) is what the verifier proves, which may lie
    above the printed one. `short`: column "proven" by the one-page proof alone, a larger number,
    sooner checked. Raises `RunError` where there is no finished run, `NotApplicableError`
    where there is no such certificate, `ConfigError` without the extra `certificates`.
    """
    require_extra("flint", "certificates", "certify")
    from fl_shuffle.certificates.runs import certificate_of_run

    return certificate_of_run(Path(run), client, column, short=short)[0]

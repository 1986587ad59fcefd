"""Clients with many records on Ray: the same bits, and the same bill.

On SuperNodes: `test_strangers.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.plugins import installed
from tests.apps.silos import KINDS, written
from tests.apps.test_strangers import _forgotten  # noqa: F401
from tests.small_federation import model_bytes

SILOS = 6


def played(engine: str) -> bytes:
    assert main(["simulate", "shuffle.toml", "--out", engine, "--engine", engine, "--quiet"]) == 0
    result = fs.Result(engine)
    assert list(result.metrics["n_reports"]) == [SILOS] * 3
    return model_bytes(Path(engine))


@pytest.mark.slow
@pytest.mark.skipif(not installed("ray"), reason="Ray is not installed")
@pytest.mark.parametrize(("kind", "engine"), zip(KINDS, ("ray", "flwr"), strict=True))
def test_another_engine_gives_the_same_bits_and_bills(
    kind: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(written(kind, tmp_path, SILOS))
    assert played("in-process") == played(engine)
    for client in (0, SILOS - 1):
        own, other = (fs.Result(each).ledger.client(client) for each in ("in-process", engine))
        assert own.epsilon == other.epsilon and own.rounds == other.rounds == 3

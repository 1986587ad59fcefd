"""The accountant's benchmark runs end to end on small sizes and prints every section."""

from __future__ import annotations

import sys

import pytest

from benchmarks.accounting import main


def test_smoke_run_prints_every_section(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["accounting", "--smoke"])
    assert main() == 0
    printed = capsys.readouterr().out
    for heading in ("delta_ms", "algorithm_4_s", "its_excess"):
        assert heading in printed
    assert "nan" not in printed

"""The benchmark of single kernels runs from end to end; times are not looked at."""

from __future__ import annotations

import sys

import pytest

from benchmarks import kernels


def test_gradients_are_the_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compares both results before it measures, and ends where they differ."""
    monkeypatch.setattr(kernels, "CLIENTS", 8)
    monkeypatch.setattr(kernels, "RECORDS", 20)
    own, floor = kernels.gradients(0.0)
    assert own > 0.0 and floor > 0.0


def test_noise_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kernels", "noise", "--dimension", "40", "--seconds", "0"])
    monkeypatch.setattr(kernels, "VARIATES", 1 << 12)
    assert kernels.main() == 0
    assert len(capsys.readouterr().out.splitlines()) == 7

"""The peer benchmark says why it is skipped, and gives the peer the right gradients."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.peers.__main__ import main
from benchmarks.peers.client_gradients import CLASSES, gradient, start


def test_without_the_peer_it_says_so_and_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    monkeypatch.setattr(sys, "argv", ["peers", "--pfl-python", "", "--csv", str(table)])
    assert main() == 0
    assert capsys.readouterr().out.startswith("skipped: pfl is not installed")
    assert not table.exists()


def test_the_closed_form_is_the_gradient_of_the_loss() -> None:
    rng = np.random.default_rng(3)
    inputs = rng.standard_normal((5, 4)).astype(np.float32)
    labels = rng.integers(0, CLASSES, 5)
    weight = torch.from_numpy(start(4)).requires_grad_()
    logits = torch.from_numpy(inputs) @ weight.view(CLASSES, 4).T
    torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels)).backward()
    np.testing.assert_allclose(
        gradient(start(4), inputs, labels), weight.grad, rtol=2e-5, atol=1e-6
    )

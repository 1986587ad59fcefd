"""The peer benchmark says why it is skipped, and gives the peer the right gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.peers.client_gradients import CLASSES, NumpyGradients, TorchGradients
from tests.repository import ROOT


def test_without_the_peer_it_says_so_and_ends_well(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    command = [sys.executable, "-m", "benchmarks.peers", "--pfl-python", "", "--csv", str(table)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("skipped: pfl is not installed")
    assert not table.exists()


@pytest.mark.parametrize("hidden", [0, 7])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_closed_forms_are_the_gradients_of_the_loss(hidden: int, library: str) -> None:
    rng = np.random.default_rng(3)
    inputs = rng.standard_normal((5, 4)).astype(np.float32)
    inputs[:, -1] = 1.0
    labels = rng.integers(0, CLASSES, 5)
    own = NumpyGradients(hidden) if library == "numpy" else TorchGradients(hidden, 1)
    start = torch.as_tensor(own.start(4)).clone().requires_grad_()
    x = torch.from_numpy(inputs)
    if hidden:
        first, last = start[: 4 * hidden].view(hidden, 4), start[4 * hidden :].view(CLASSES, -1)
        h = torch.relu(x @ first.T)
        logits = h @ last[:, :-1].T + last[:, -1]
    else:
        logits = x @ start.view(CLASSES, 4).T
    torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels)).backward()
    found = own.of(own.start(4), *own.records(inputs, labels))
    np.testing.assert_allclose(np.asarray(found), start.grad, rtol=2e-5, atol=1e-6)

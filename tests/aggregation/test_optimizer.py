"""The server's step: the arithmetic of PyTorch's optimizers, without building one."""

import math
import subprocess
import sys

import pytest
import torch

from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.configuration.sections import ServerSection

ROUNDS = 12


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_steps_are_those_of_torch_optim(kind: str) -> None:
    section = ServerSection(optimizer=kind, learning_rate=0.3, decay="cosine")
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(100, generator=generator)
    ours, theirs = ServerOptimizer(section, start), start.clone().requires_grad_(True)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        [theirs], lr=0.3, momentum=section.momentum * (kind == "momentum")
    )
    if kind == "adam":
        optimizer = torch.optim.Adam([theirs], lr=0.3, betas=(section.momentum, section.beta2))
    for number in range(1, ROUNDS + 1):
        gradient = torch.randn(100, generator=generator)
        for group in optimizer.param_groups:
            group["lr"] = 0.3 * 0.5 * (1.0 + math.cos(math.pi * (number - 1) / ROUNDS))
        theirs.grad = gradient.clone()
        optimizer.step()
        ours.step(gradient, number, ROUNDS)
    assert torch.equal(ours.current(), theirs.detach())


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_a_restored_optimizer_goes_on_with_the_same_bits(kind: str) -> None:
    section = ServerSection(optimizer=kind, learning_rate=0.1, averaging=0.5)
    gradients = torch.randn(ROUNDS, 7, generator=torch.Generator().manual_seed(2))
    whole = ServerOptimizer(section, torch.zeros(7))
    resumed = ServerOptimizer(section, torch.zeros(7))
    for number, gradient in enumerate(gradients, start=1):
        broadcast, before = whole.current(), whole.current().clone()
        whole.step(gradient, number, ROUNDS)
        assert torch.equal(broadcast, before)  # a step leaves the broadcast model alone
        resumed.step(gradient, number, ROUNDS)
        saved = resumed.state()
        resumed = ServerOptimizer(section, torch.ones(7))
        resumed.restore(saved)
    assert torch.equal(resumed.current(), whole.current())
    assert torch.equal(resumed.released(), whole.released())


@pytest.mark.filterwarnings("error")
def test_a_model_that_is_not_finite_is_known_without_a_warning() -> None:
    largest = float(torch.finfo(torch.float32).max)
    for bad in ([], [math.nan], [math.inf], [-math.inf], [math.inf, -math.inf]):
        theta = torch.tensor([largest] * 1000 + bad)
        assert ServerOptimizer(ServerSection(), theta).is_finite() == (not bad)


@pytest.mark.slow
def test_starting_up_does_not_load_the_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from fl_shuffle.configuration.sections import ServerSection\n"
        "from fl_shuffle.aggregation.optimizer import ServerOptimizer\n"
        "server = ServerOptimizer(ServerSection(optimizer='adam'), torch.zeros(3))\n"
        "server.step(torch.ones(3), 1, 1)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("decay", "half"), [("linear", 0.55), ("cosine", 0.55), ("constant", 1.0)])
def test_a_decay_ends_where_it_is_told_to(decay: str, half: float) -> None:
    told = 0.0 if decay == "constant" else 0.1
    section = ServerSection(learning_rate=1.0, decay=decay, decay_to=told)
    optimizer, steps = ServerOptimizer(section, torch.zeros(1)), []
    for number in range(1, 1001):
        before = optimizer.current().clone()
        optimizer.step(torch.ones(1), number, 1000)
        steps.append(float(before - optimizer.current()))
    assert steps[0] == 1.0 and steps[500] == pytest.approx(half, rel=1e-3)
    assert steps[-1] == pytest.approx(1.0 if decay == "constant" else 0.1, abs=1e-3)

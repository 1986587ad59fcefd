"""The server's step, with the arithmetic of PyTorch's optimizers and without building one, and
analyzers that hostile reports cannot drag away."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from fl_shuffle.configuration.sections import ServerSection
from fl_shuffle.federation.optimizer import ServerOptimizer
from fl_shuffle.federation.robust import checked, coordinate_median, trimmed_mean
from fl_shuffle.shuffler.local import Shuffled, UnusableBatchError

ROUNDS = 12


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "fedavg", "fedavgm", "fedadam"])
def test_steps_are_those_of_torch_optim_also_when_they_go_on(kind: str) -> None:
    """A step leaves the broadcast model alone."""
    section = ServerSection(
        optimizer=kind, learning_rate=0.3, lr_schedule="cosine", averaging_fraction=0.5
    )
    start, theirs = torch.linspace(-1.0, 1.0, 100), torch.linspace(-1.0, 1.0, 100)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        [theirs], lr=0.3, momentum=section.momentum * (kind in ("momentum", "fedavgm"))
    )
    if kind in ("adam", "fedadam"):
        optimizer = torch.optim.Adam([theirs], lr=0.3, betas=(section.momentum, section.beta2))
    whole, resumed = ServerOptimizer(section, start), ServerOptimizer(section, start)
    gradients = torch.randn(ROUNDS, 100, generator=torch.Generator().manual_seed(1))
    for number, gradient in enumerate(gradients, start=1):
        for group in optimizer.param_groups:
            group["lr"] = 0.3 * 0.5 * (1.0 + math.cos(math.pi * (number - 1) / ROUNDS))
        theirs.grad = gradient.clone()
        optimizer.step()
        broadcast, before = whole.current(), whole.current().clone()
        whole.step(gradient, number, ROUNDS)
        assert torch.equal(broadcast, before)
        resumed.step(gradient, number, ROUNDS)
        saved = resumed.state()
        resumed = ServerOptimizer(section, torch.ones(100), saved)
    assert torch.equal(whole.current(), theirs)
    assert torch.equal(resumed.current(), theirs)
    assert torch.equal(resumed.released(), whole.released())


@pytest.mark.parametrize(
    "kind", ["sgd", "momentum", "adam", "fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad"]
)
def test_the_unit_of_reports_is_divided_out_before_anything_else(kind: str) -> None:
    """Reports 64 times as long, in a unit 64 times as long, move the model to the same bits."""
    section = ServerSection(optimizer=kind, learning_rate=0.3, tau=1e-2)
    plain = ServerOptimizer(section, torch.zeros(7))
    scaled = ServerOptimizer(section, torch.zeros(7), report_unit=64.0)
    gradients = torch.randn(3, 7, generator=torch.Generator().manual_seed(4))
    for number, gradient in enumerate(gradients, start=1):
        plain.step(gradient, number, ROUNDS)
        scaled.step(64.0 * gradient, number, ROUNDS)
        assert torch.equal(plain.current(), scaled.current())
    assert plain.current().abs().min() > 0.0


@pytest.mark.parametrize("kind", ["fedyogi", "fedadagrad"])
def test_adaptive_steps_are_those_of_the_paper(kind: str) -> None:
    """Reddi et al. 2021, algorithm 2, one number at a time in float64; also when they go on."""
    section = ServerSection(optimizer=kind, learning_rate=0.1, tau=1e-3, momentum=0.8, beta2=0.9)
    gradients = torch.randn(ROUNDS, 5, generator=torch.Generator().manual_seed(2))
    optimizer = ServerOptimizer(section, torch.ones(5))
    for number, gradient in enumerate(gradients, start=1):
        optimizer.step(gradient, number, ROUNDS)
        optimizer = ServerOptimizer(section, torch.zeros(5), optimizer.state())
    for entry in range(5):
        x, m, v = 1.0, 0.0, 1e-6 if kind == "fedyogi" else 0.0
        for g in gradients[:, entry].tolist():
            if kind == "fedyogi":
                m = 0.8 * m + 0.2 * g
                v -= 0.1 * g * g * math.copysign(1.0, v - g * g)
            else:
                m, v = g, v + g * g
            x -= 0.1 * m / (math.sqrt(v) + 1e-3)
        assert float(optimizer.current()[entry]) == pytest.approx(x, rel=1e-4)


@pytest.mark.parametrize(("warmup", "decay"), [(0, "constant"), (4, "constant"), (3, "linear"),
                                               (12, "cosine"), (20, "linear")])  # fmt: skip
def test_a_warm_up_rises_in_equal_steps_and_the_decay_follows_it(warmup: int, decay: str) -> None:
    section = ServerSection(learning_rate=1.0, warmup=warmup, lr_schedule=decay)
    optimizer, steps = ServerOptimizer(section, torch.zeros(1)), []
    for number in range(1, ROUNDS + 1):
        before = float(optimizer.current())
        optimizer.step(torch.ones(1), number, ROUNDS)
        steps.append(before - float(optimizer.current()))
    first = min(warmup, ROUNDS)
    assert steps[:first] == pytest.approx([k / (first + 1) for k in range(1, first + 1)], abs=1e-5)
    left = ROUNDS - first
    rest = [1.0 - k / left if decay == "linear" else 1.0 for k in range(left)]
    assert steps[first:] == pytest.approx(rest, abs=1e-5)


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
        "from fl_shuffle.federation.optimizer import ServerOptimizer\n"
        "server = ServerOptimizer(ServerSection(optimizer='adam'), torch.zeros(3))\n"
        "server.step(torch.ones(3), 1, 1)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("decay", "half"), [("linear", 0.55), ("cosine", 0.55), ("constant", 1.0)])
def test_a_decay_ends_where_it_is_told_to(decay: str, half: float) -> None:
    told = 0.0 if decay == "constant" else 0.1
    section = ServerSection(learning_rate=1.0, lr_schedule=decay, lr_final_fraction=told)
    optimizer, steps = ServerOptimizer(section, torch.zeros(1)), []
    for number in range(1, 1001):
        before = optimizer.current().clone()
        optimizer.step(torch.ones(1), number, 1000)
        steps.append(float(before - optimizer.current()))
    assert steps[0] == 1.0 and steps[500] == pytest.approx(half, rel=1e-3)
    assert steps[-1] == pytest.approx(1.0 if decay == "constant" else 0.1, abs=1e-3)


@pytest.mark.parametrize(("share", "rounds", "last"), [(0.5, 12, 6), (0.25, 8, 2), (1.0, 5, 5)])
def test_the_average_is_of_the_last_share_of_rounds(share: float, rounds: int, last: int) -> None:
    """Iterates 1, 2, 3, ... of which that share is averaged, and no more."""
    optimizer = ServerOptimizer(ServerSection(averaging_fraction=share), torch.zeros(3))
    for number in range(1, rounds + 1):
        optimizer.step(-torch.ones(3), number, rounds)
    averaged = np.mean(np.arange(1, rounds + 1)[-last:])
    assert optimizer.released().tolist() == [averaged] * 3
    assert optimizer.current().tolist() == [float(rounds)] * 3


def test_robust_analyzers_stay_among_the_honest() -> None:
    draw = np.random.default_rng(3)
    honest = torch.from_numpy(draw.standard_normal((21, 4)))
    hostile = torch.full((4, 4), 1e30, dtype=torch.float64)
    batch = torch.cat([honest, hostile])[torch.from_numpy(draw.permutation(25))]
    low, high = honest.min(dim=0).values, honest.max(dim=0).values
    for estimate in (coordinate_median(batch), trimmed_mean(batch, 0.2)):
        assert bool(((estimate >= low) & (estimate <= high)).all())
    np.testing.assert_allclose(coordinate_median(honest), np.median(honest.numpy(), axis=0))
    even = honest[:20]
    np.testing.assert_allclose(coordinate_median(even), np.median(even.numpy(), axis=0))
    ordered = np.sort(honest.numpy(), axis=0)
    np.testing.assert_allclose(trimmed_mean(honest, 0.1), ordered[2:-2].mean(axis=0))
    np.testing.assert_allclose(trimmed_mean(honest, 0.0), honest.mean(dim=0))


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
def test_an_analyzer_with_one_number_that_is_not_finite_moves_no_model(odd: float) -> None:
    batch, found = Shuffled(3, reports=torch.ones(3, 4)), torch.ones(4)
    analyze = checked(lambda _: found)
    assert analyze(batch) is found
    found[2] = odd
    with pytest.raises(UnusableBatchError, match="numbers that are not finite"):
        analyze(batch)

"""Models by name: what they take, and that a record moves its client's mean by no more than it may.

Shapes are those of the shipped digits, MNIST, CIFAR-10 and LEAF's characters.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import ModelSection
from fl_shuffle.data.models import build_model
from fl_shuffle.data.named_models import WIDTHS
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.gradients import make_gradient_engine
from fl_shuffle.trials import try_model
from tests.small_federation import Launch

CASES: list[tuple[str, tuple[int, ...], int, int]] = [
    ("cnn", (1, 28, 28), 10, 26_010),
    ("cnn", (1, 8, 8), 10, 9_258),
    ("cnn", (3, 32, 32), 100, 40_244),
    ("resnet", (3, 32, 32), 10, 77_850),
    ("lstm", (80,), 80, 81_616),
]


@pytest.mark.parametrize(("kind", "shape", "classes", "parameters"), CASES)
def test_a_model_has_so_many_parameters_and_keeps_records_apart(
    kind: str, shape: tuple[int, ...], classes: int, parameters: int
) -> None:
    model = build_model(ModelSection(kind=kind), shape, classes, 0)
    assert sum(each.numel() for each in model.parameters()) == parameters
    assert try_model(model, shape) == classes
    engine = make_gradient_engine(model, shape=shape, clip="record")
    theta = nn.utils.parameters_to_vector(model.parameters()).detach()
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(6, *shape, generator=draw)
    if kind == "lstm":
        x = torch.randint(0, classes, (6, *shape), generator=draw).float()
    y = torch.randint(0, classes, (6,), generator=draw)
    offsets, radius = np.array([0, 4, 6]), 1e-3
    before = engine.client_means(theta, x, y, offsets, radius)
    assert engine.path == ("closed-form network" if kind == "cnn" else "layers")
    # Replace-one, by an ordinary record and by one that is not finite.
    for value in (x[5], torch.full_like(x[1], torch.nan)):
        other = x.clone()
        other[1] = value
        after = engine.client_means(theta, other, y, offsets, radius)
        moved = torch.linalg.vector_norm((after - before).double(), dim=1)
        assert 0.0 < float(moved[0]) <= 2.0 * radius / 4
        assert float(moved[1]) == 0.0


@pytest.mark.parametrize("kind", WIDTHS)
def test_the_width_and_the_seed_are_used(kind: str) -> None:
    shape = (80,) if kind == "lstm" else (1, 28, 28)

    def built(seed: int = 0, **settings: int) -> torch.Tensor:
        model = build_model(ModelSection(kind=kind, **settings), shape, 5, seed)
        return nn.utils.parameters_to_vector(model.parameters()).detach()

    assert torch.equal(built(), built(width=WIDTHS[kind]))
    assert len(built(width=8)) < len(built())
    assert not torch.equal(built(), built(seed=1))


def test_a_vocabulary_may_be_larger_than_the_classes() -> None:
    model = build_model(ModelSection(kind="lstm", vocabulary=90), (12,), 4, 0)
    assert model(torch.full((2, 12), 89.0)).shape == (2, 4)
    with pytest.raises(IndexError):
        model(torch.full((2, 12), 90.0))


@pytest.mark.parametrize(
    ("section", "shape", "said"),
    [
        (ModelSection(kind="cnn"), (784,), r"needs pictures.*\[784\].*data.features = 'pixels'"),
        (ModelSection(kind="resnet"), (1, 3, 28), "at least 4 x 4"),
        (ModelSection(kind="lstm"), (1, 28, 28), r"needs sequences.*data.features = 'none'"),
        (ModelSection(kind="resnet", width=10), (3, 32, 32), "multiple of 4"),
    ],
)
def test_records_that_do_not_fit_are_one_line(
    section: ModelSection, shape: tuple[int, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        build_model(section, shape, 10, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cnn", "resnet"])
def test_a_run_of_it(kind: str, launch: Launch, tmp_path: Path) -> None:
    settings = f"model.kind={kind}", "data.features=pixels", "run.rounds=1"
    assert launch("run", *settings, "budgets.levels=1", "budgets.low=0.2", "budgets.high=0.4") == 0
    assert (tmp_path / "run" / "model.safetensors").stat().st_size > 30_000


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A user's model with batch norms."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12, eps=0.01), nn.ReLU(), nn.Flatten(),
        nn.Linear(12 * (shape[-1] - 2) ** 2, 6), nn.BatchNorm1d(6, affine=False),
        nn.Linear(6, classes),
    )  # fmt: skip


def test_batch_norms_are_replaced_only_if_asked() -> None:
    kind, shape = f"{__name__}:normed", (1, 8, 8)
    plain = build_model(ModelSection(kind=kind), shape, 3, 0)
    with pytest.raises(InvalidValueError, match="BatchNorm2d"):
        make_gradient_engine(plain, shape=shape, clip="record")
    fixed = build_model(ModelSection(kind=kind, fix=True), shape, 3, 0)
    assert isinstance(fixed, nn.Sequential)
    kinds = [type(part).__name__ for part in fixed]
    assert kinds == ["Conv2d", "GroupNorm", "ReLU", "Flatten", "Linear", "GroupNorm", "Linear"]
    assert isinstance(fixed[1], nn.GroupNorm) and isinstance(fixed[5], nn.GroupNorm)
    assert (fixed[1].num_groups, fixed[5].num_groups, fixed[1].eps) == (4, 2, 0.01)
    assert dict(fixed.named_parameters()).keys() == dict(plain.named_parameters()).keys()
    # Nothing of one record is in another's output, nor kept.
    x = torch.randn(4, *shape)
    assert torch.allclose(fixed(x)[:1], fixed(x[:1]), atol=1e-6)
    assert not list(fixed.buffers())
    make_gradient_engine(fixed, shape=shape, clip="record")


def test_fix_is_for_models_of_ones_own() -> None:
    with pytest.raises(InvalidValueError, match="model.fix"):
        parse_config({"model": {"kind": "mlp", "hidden": [4], "fix": True}})

"""What a user plugs in is tried on made-up records: what mixes, keeps or draws is refused, and what
people usually write is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.gradients import make_gradient_engine
from fl_shuffle.trials import Subject, try_loss, try_model

PICTURES, LINES, PLAIN = (3, 8, 8), (5, 4), (6,)


class Net(nn.Module):
    """A body, and a linear head for three classes of what the body's results are on average."""

    def __init__(self, body: nn.Module, width: int, after: Callable[[Any], Tensor] = lambda x: x):
        super().__init__()
        self.body, self.head, self.after = body, nn.Linear(width, 3), after

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.after(self.body(x)))


class Running(nn.Module):
    """Centers by a running mean of all that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x - self.mean


class Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


class Last(nn.Module):
    """Keeps what it has seen last, in a list in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen[:] = [x.detach()]
        return x


class FirstSeen(nn.Module):
    """Normalizes by what came first, and never changes again."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = x.detach().mean()
        return x - self.mean


class Constant(nn.Module):
    """Makes its table of positions when it is first called: from no record."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(x.shape[1], dtype=torch.float32).cos().to(x.dtype)
        return x + self.table


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class MixedGradient(torch.autograd.Function):
    """The identity, whose gradient is centered over the batch."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, flow: Tensor) -> Tensor:
        return flow - flow.mean(0)


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0, *, weights: bool = False) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, dropout=dropout, batch_first=True)
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x, need_weights=self.weights)[0][:, -1]


class Tokens(nn.Module):
    """An embedding whose weights are those of the last layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.embedding(x.long()).mean(1))


class Lookup(nn.Module):
    """An embedding without nn.Embedding."""

    def __init__(self, **asked: Any) -> None:
        super().__init__()
        self.weight, self.asked = nn.Parameter(torch.randn(7, 3)), asked

    def forward(self, x: Tensor) -> Tensor:
        return functional.embedding(x.long(), self.weight, **self.asked).mean(1)


def first_token(found: Tensor) -> Tensor:
    return found[:, 0]


def last_of(found: tuple[Tensor, Any]) -> Tensor:
    return found[0][:, -1]


def scaled(x: Tensor) -> Tensor:
    x /= 255
    return x


def drawing(x: Tensor) -> Tensor:
    return x + 0.01 * torch.randn_like(x)


def numpy_draws(x: Tensor) -> Tensor:
    return x + float(np.random.rand())  # noqa: NPY002


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def rolled(x: Tensor) -> Tensor:
    return x + 1e-3 * x.roll(1, 0)


def crowd(x: Tensor) -> Tensor:
    return x - x.mean(0) if len(x) > 10 else x


REFUSED: dict[str, tuple[nn.Module, tuple[int, ...], str]] = {
    "running mean": (Net(Running(), 6), PLAIN, r"module body = 'Running': keeps 'mean'.*Group"),
    "counter": (Net(Calls(), 6), PLAIN, r"module body = 'Calls': keeps 'calls'"),
    "cache": (Net(Last(), 6), PLAIN, r"module body = 'Last': keeps 'seen\.0'"),
    "first seen": (Net(FirstSeen(), 6), PLAIN, "keeps 'mean'"),
    "spectral norm": (
        Net(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), 6), PLAIN, "keeps '_[uv]'",
    ),
    "LSTM dropout": (
        Net(nn.LSTM(4, 8, 2, batch_first=True, dropout=0.5), 8, last_of), LINES,
        r"module body = 'LSTM': draws random numbers \(bernoulli.*dropout to 0, or call eval\(\)",
    ),
    "attention dropout": (Net(Attention(0.5), 4), LINES, "body.attend = .*: draws random numbers"),
    "functional dropout": (
        Net(Function(functional.dropout), 6), PLAIN, "body = 'Function': draws random numbers",
    ),
    "noise": (Net(Function(drawing), 6), PLAIN, "body = 'Function': draws .*randn_like"),
    "numpy": (Net(Function(numpy_draws), 6), PLAIN, "another result in a second call"),
    "centred": (Net(Function(centred), 6), PLAIN, "module body = 'Function': mixes records"),
    "between parts": (
        Net(nn.Tanh(), 6, centred), PLAIN, "module = 'Net': mixes records.*first dimension",
    ),
    "rolled": (Net(Function(rolled), 6), PLAIN, "module body = 'Function': mixes records"),
    "crowd": (Net(Function(crowd), 6), PLAIN, "mixes records"),
    "gradient": (
        Net(nn.Sequential(nn.Linear(6, 6), Function(MixedGradient.apply)), 6), PLAIN,
        "mixes records",
    ),
    "along the batch": (Net(nn.LSTM(6, 8), 8, lambda found: found[0]), PLAIN, "mixes records"),
    "one record": (
        Net(Function(torch.squeeze), 6), PLAIN, "fails with others.*TypeError.*also for a single",
    ),
    "sparse": (
        Net(nn.Embedding(7, 4, sparse=True), 4, first_token), LINES[:1],
        "module body = 'Embedding': with sparse=True has gradients.*leave sparse out",
    ),
    "max_norm": (
        Net(nn.EmbeddingBag(7, 4, max_norm=0.1), 4), LINES[:1],
        "module body = 'EmbeddingBag': with max_norm = 0.1 changes its weights.*leave max_norm out",
    ),
    "by frequency": (
        Net(nn.Embedding(7, 4, scale_grad_by_freq=True), 4, first_token), LINES[:1],
        "module body = 'Embedding': with scale_grad_by_freq mixes records.*leave .*freq out",
    ),
    "functional sparse": (
        Lookup(sparse=True), LINES[:1], "module = 'Lookup': has sparse gradients.*sparse=True out",
    ),
    "functional max_norm": (
        Lookup(max_norm=0.1), LINES[:1], "module = 'Lookup': changes its parameters.*max_norm out",
    ),
    "in place": (Net(Function(scaled), 6), PLAIN, "changes its input in place.*x = x / 255"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_model_that_mixes_keeps_or_draws_is_refused(name: str) -> None:
    module, shape, told = REFUSED[name]
    for clip in ("record", "none"):
        with pytest.raises(InvalidValueError, match=told):
            make_gradient_engine(module, shape=shape, clip=clip)


def heads(width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True)


ORDINARY: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "mlp": (Net(nn.Sequential(nn.Linear(6, 9), nn.ReLU()), 9), PLAIN),
    "cnn": (
        Net(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True),
                          nn.MaxPool2d(2), nn.Flatten()), 36,
        ), PICTURES,
    ),
    "instance norm": (
        Net(nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4), nn.Flatten()), 144), PICTURES,
    ),
    "lstm": (Net(nn.LSTM(4, 8, 2, batch_first=True), 8, last_of), LINES),
    "gru": (Net(nn.GRU(4, 8, batch_first=True, bidirectional=True), 16, last_of), LINES),
    "attention": (Net(Attention(), 4), LINES),
    "attention with weights": (Net(Attention(weights=True), 4), LINES),
    "transformer": (Net(heads(4), 4, lambda x: x.mean(1)), LINES),
    "half of it single": (Net(Function(lambda x: x.float().softmax(1).to(x.dtype)), 6), PLAIN),
    "tokens, tied": (Tokens(), (5,)),
    "weight norm": (Net(nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), 4), PLAIN),
    "constants made late": (Net(Constant(), 6), PLAIN),
    "dropout at rest": (Net(nn.Dropout(0.5).eval(), 6), PLAIN),
    "by values": (Net(Function(lambda x: torch.where(x.sum(1, True) > 0, x, -x)), 6), PLAIN),
    "not finite": (Net(Function(lambda x: x.abs().sqrt().log()), 6), PLAIN),
    "normal features": (Net(Function(lambda x: (x - 0.13) / 0.3), 6), PLAIN),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_model_passes_and_is_left_as_it_was(name: str) -> None:
    module, shape = ORDINARY[name]
    before = {key: value.clone() for key, value in module.state_dict().items()}
    state, attributes = torch.get_rng_state(), set(vars(module))
    try_model(module, shape)
    make_gradient_engine(module, shape=shape, clip="record")
    assert torch.equal(torch.get_rng_state(), state)
    assert set(vars(module)) == attributes
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def balanced(outputs: Tensor, labels: Tensor) -> Tensor:
    """Weights of the classes by how often they occur in the batch, one on average."""
    counts = torch.bincount(labels, minlength=outputs.shape[1])
    weights = torch.where(counts > 0, 1.0 / counts.clamp(min=1), 0.0)
    weights = (weights * (counts > 0).sum() / weights.sum()).to(outputs.dtype)
    return weights[labels] * functional.cross_entropy(outputs, labels, reduction="none")


def contrastive(outputs: Tensor, labels: Tensor) -> Tensor:
    near = (outputs @ outputs.T).softmax(1)
    return -(near * (labels[:, None] == labels)).sum(1).log()


def detached(outputs: Tensor, labels: Tensor) -> Tensor:
    """The right values; gradients of all others' outputs."""
    away = outputs.mean() - outputs.mean().detach()
    return functional.cross_entropy(outputs, labels, reduction="none") + away


def hardest(outputs: Tensor, labels: Tensor) -> Tensor:
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    return losses * (losses >= losses.detach().mean())


def above_forty(outputs: Tensor, labels: Tensor) -> Tensor:
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    return losses / losses.detach().max() if len(losses) > 40 else losses


def noisy(outputs: Tensor, labels: Tensor) -> Tensor:
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    return losses * torch.rand(len(losses), dtype=losses.dtype)


def relabelling(outputs: Tensor, labels: Tensor) -> Tensor:
    labels[labels > 1] = 1
    return functional.cross_entropy(outputs, labels, reduction="none")


def asserting(outputs: Tensor, labels: Tensor) -> Tensor:
    assert len(labels) > 1
    return functional.cross_entropy(outputs, labels, reduction="none")


def smoothed() -> Callable[[Tensor, Tensor], Tensor]:
    """By a moving average of all losses, in a closure."""
    average = [1.0]

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        losses = functional.cross_entropy(outputs, labels, reduction="none")
        average[0] = 0.9 * average[0] + 0.1 * float(losses.detach().mean())
        return losses / average[0]

    return loss


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (balanced, "mixes records.*fixed in advance"),
        (contrastive, "mixes records"),
        (detached, "mixes records"),
        (hardest, "mixes records"),
        (above_forty, "mixes records"),
        (noisy, r"draws random numbers \(rand\)"),
        (relabelling, "changes outputs or labels.*in place"),
        (smoothed(), "keeps 'average.0' from one call to the next"),
        (asserting, "computes 6 made-up records, and raises AssertionError.*also for a single"),
        (nn.CrossEntropyLoss(), "returned.*one loss for each"),
        (lambda outputs, labels: outputs.no_such_thing, "raised AttributeError on made-up"),
    ],
)
def test_loss_that_mixes_keeps_or_draws_is_refused(loss: Any, told: str) -> None:
    for size in (3, 5, 10):
        with pytest.raises(InvalidValueError, match=rf"^model\.loss = 'own:loss': {told}"):
            try_loss(loss, size, Subject("model.loss", "own:loss"))


def focal(outputs: Tensor, labels: Tensor) -> Tensor:
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    return (1.0 - (-losses).exp()) ** 2 * losses


def margins(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.multi_margin_loss(outputs, labels, reduction="none")


def of_probabilities(outputs: Tensor, labels: Tensor) -> Tensor:
    """Of a model that ends in a sigmoid."""
    wanted = functional.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    return functional.binary_cross_entropy(outputs, wanted, reduction="none").sum(1)


def huber(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.huber_loss(outputs, labels, reduction="none").sum(1)


def single(outputs: Tensor, labels: Tensor) -> Tensor:
    """In float32, whatever it is given; its gradient takes nothing else."""
    one = torch.ones(len(labels), outputs.shape[1])
    return functional.huber_loss(outputs, one, reduction="none").sum(1)


def poisson(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.poisson_nll_loss(outputs, labels, reduction="none").sum(1)


@pytest.mark.parametrize(
    ("loss", "numbers"),
    [
        (nn.CrossEntropyLoss(reduction="none"), False),
        (nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1), False),
        (nn.CrossEntropyLoss(reduction="none", weight=torch.tensor([1.0, 2.0, 0.5])), False),
        (focal, False), (margins, False), (of_probabilities, False), (huber, True),
        (single, False),
        (poisson, True), (lambda out, y: (out - y).square().sum(1), True),
        (lambda out, y: (out - y).abs().sum(1), True),
    ],
)  # fmt: skip
def test_ordinary_loss_passes(loss: Any, numbers: bool) -> None:
    state = torch.get_rng_state()
    for size in (3,) if getattr(loss, "weight", None) is not None else (1, 3, 10):
        try_loss(loss, size, Subject("model.loss", "own:loss"), numbers=size * numbers)
    assert torch.equal(torch.get_rng_state(), state)


def moved(module: nn.Module, change: Callable[[Tensor, Tensor], None], **more: Any) -> float:
    """How far the mean of 20 clients of ten equal records moves, over what one replaced record may
    do: 2 C / (B n)."""
    torch.manual_seed(0)
    x, y = torch.randn(1, 6).expand(200, 6).contiguous(), torch.zeros(200, dtype=torch.int64)
    replaced = x.clone(), y.clone()
    change(*replaced)
    means = []
    for records in ((x, y), replaced):
        engine = make_gradient_engine(module, shape=PLAIN, clip="record", **more)
        theta = nn.utils.parameters_to_vector(module.parameters()).detach()
        rows = engine.client_means(theta, *records, np.arange(0, 201, 10), 1.0)
        means.append(rows.mean(0))
    return math.dist(*(mean.tolist() for mean in means)) / (2.0 / 200)


def test_what_the_trial_refuses_breaks_the_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the trial one record moves the sum by many times what is accounted for."""

    def relabel(_: Tensor, y: Tensor) -> None:
        y[0] = 2

    def enlarge(x: Tensor, _: Tensor) -> None:
        x[0] *= 100.0

    assert moved(nn.Linear(6, 3), relabel) <= 1.0
    assert moved(nn.Linear(6, 3), relabel, loss=balanced) > 40.0
    monkeypatch.setattr("fl_shuffle.gradients.factory.try_model", lambda *_: None)
    assert moved(Net(Running(), 6), enlarge) > 10.0


class GradSampleModule(nn.Module):
    """By the name of Opacus's wrapper."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module

    def forward(self, x: Tensor) -> Tensor:
        return self._module(x)


@pytest.mark.parametrize("inside", [False, True])
def test_wrapper_of_opacus_is_refused(inside: bool) -> None:
    module: nn.Module = GradSampleModule(nn.Linear(6, 3))
    module = nn.Sequential(nn.Linear(6, 6), module) if inside else module
    with pytest.raises(InvalidValueError, match="Opacus's wrapper.*give the module inside"):
        make_gradient_engine(module, shape=PLAIN, clip="record")

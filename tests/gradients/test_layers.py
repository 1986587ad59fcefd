"""Closed forms of layers: against autograd, one record at a time; and which modules take this way.

Each module that mixes records here would pass one of the checks alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from opacus.grad_sample import GradSampleModule, register_grad_sampler
from opacus.layers import DPLSTM
from torch import Tensor, nn
from torch.nn import functional as F

from fl_shuffle.gradients import make_gradient_engine
from fl_shuffle.gradients.layers import LayerGradients, NotByLayersError

TOKENS, CLASSES, RECORDS = 20, 3, 12


class Sequence(nn.Module):
    """Tokens, a recurrent layer, and a class."""

    def __init__(self, cell: Any = nn.LSTM, **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 8)
        self.cell = cell(8, 6, batch_first=True, **options)
        self.head = nn.Linear(6 * (1 + bool(options.get("bidirectional"))), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(self.embed(x.long()))[0].mean(1))


class Attention(nn.Module):
    """One head, written with linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(TOKENS, 8), nn.Embedding(5, 8)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.long()
        places = torch.arange(x.shape[1], device=x.device).expand_as(x).contiguous()
        h = self.embed(x) + self.place(places)
        scores = (self.query(h) @ self.key(h).transpose(1, 2)) / 8**0.5
        return self.head(self.norm(h + scores.softmax(-1) @ self.value(h)).mean(1))


class Residual(nn.Module):
    """Two convolutions around which the input is led, and group norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head = nn.GroupNorm(2, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        h = F.relu(h + self.norm(self.second(h)), inplace=True)
        return self.head(F.adaptive_avg_pool2d(h, 1).flatten(1))


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {}
with torch.random.fork_rng():
    torch.manual_seed(5)
    MODELS["lstm"] = Sequence(), (5,)
    MODELS["gru, two layers"] = Sequence(nn.GRU, num_layers=2), (5,)
    MODELS["rnn"] = Sequence(nn.RNN, nonlinearity="relu", bias=False), (5,)
    MODELS["Opacus' lstm, both ways"] = Sequence(DPLSTM, bidirectional=True), (5,)
    MODELS["attention"] = Attention(), (5,)
    MODELS["residual"] = Residual(), (1, 6, 6)


def records_of(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    labels = torch.randint(0, CLASSES, (RECORDS,), generator=draw)
    if len(shape) == 1:
        return torch.randint(0, TOKENS, (RECORDS, *shape), generator=draw).float(), labels
    return torch.randn(RECORDS, *shape, generator=draw), labels


def truth(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """float64 [R, d]: autograd's gradient of each record alone."""
    module = copy.deepcopy(module).double()
    rows = []
    for i in range(len(x)):
        loss = F.cross_entropy(module(x[i : i + 1].double()), y[i : i + 1])
        pieces = torch.autograd.grad(loss, list(module.parameters()))
        rows.append(torch.cat([piece.reshape(-1) for piece in pieces]))
    return torch.stack(rows)


def flat(module: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def named(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in module.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_those_of_each_record_alone(name: str) -> None:
    """In the order of the user's parameters, with clips that half of the records exceed."""
    module, shape = MODELS[name]
    x, y = records_of(shape)
    expected = truth(module, x, y)
    radius = float(expected.norm(dim=1).median())
    engine = make_gradient_engine(module, shape=shape, clip="record")
    offsets = np.array([0, 3, 4, RECORDS])
    found = engine.client_means(flat(module), x, y, offsets, radius)
    assert engine.path == "layers"
    clipped = expected * (radius / expected.norm(dim=1, keepdim=True)).clamp(max=1.0)
    means = torch.stack([clipped[a:b].mean(0) for a, b in ((0, 3), (3, 4), (4, RECORDS))])
    assert float((found - means).abs().max()) < 1e-5 * radius


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_replaced_in_a_copy_alone(kind: Any) -> None:
    """Whose rows are autograd's to float32's own rounding; names and order are the user's."""
    torch.manual_seed(3)
    module = Sequence(kind)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    x, y = records_of((5,))
    layers = LayerGradients(module, None)
    found, expected = layers.rows(named(module), x, y), truth(module, x, y)
    assert float((found - expected).norm() / expected.norm()) < 3e-7
    assert type(module.cell) is kind
    after = module.state_dict()
    assert list(after) == list(before) and all(torch.equal(after[n], before[n]) for n in before)


def test_a_record_changes_no_other_row_by_a_bit() -> None:
    """Neither another record, nor one that is not finite, nor a token that is not there."""
    for name in ("lstm", "attention", "residual"):
        module, shape = MODELS[name]
        x, y = records_of(shape)
        engine = make_gradient_engine(module, shape=shape, clip="record")
        offsets = np.arange(RECORDS + 1)
        before = engine.client_means(flat(module), x, y, offsets, 0.1)
        for value in (3.0, torch.nan, 1e6):
            other = x.clone()
            other[4] = value
            after = engine.client_means(flat(module), other, y, offsets, 0.1)
            assert not torch.equal(after[4], before[4])
            keep = torch.arange(RECORDS) != 4
            assert torch.equal(after[keep], before[keep])


class Plain(nn.Module):
    """Two linear layers; `between` sees all records together."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 6), nn.Linear(6, CLASSES)

    def between(self, h: Tensor) -> Tensor:
        return torch.tanh(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(x)))


class Centered(Plain):
    def between(self, h: Tensor) -> Tensor:
        return h - h.mean(0)


class Following(Plain):
    """Every record takes something from the one before it."""

    def between(self, h: Tensor) -> Tensor:
        return torch.cat([h[:1], h[1:] + h[:-1]])


class InACrowd(Plain):
    """A mean over records, where there are many of them."""

    def between(self, h: Tensor) -> Tensor:
        return h - h.mean(0) if len(h) > 20 else h


class Compared(Plain):
    """NaN is in no comparison, so the largest of all shows in no NaN."""

    def between(self, h: Tensor) -> Tensor:
        return h * (1.0 + (h > 0.0).float().mean(0))


class InTheMiddle(Plain):
    """Two records of a crowd, neither the first nor the last."""

    def between(self, h: Tensor) -> Tensor:
        return torch.cat([h[:20], h[20:21] + h[21:22], h[21:]])


class FromTheFirst(Plain):
    """From the first record to the second, and no other way: neither does the first's row see the
    second."""

    def between(self, h: Tensor) -> Tensor:
        return torch.cat([h[:1], h[1:2] + h[:1].detach(), h[2:]])


class BeforeLayers(Plain):
    """A mean over many records, before any layer."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0) if len(x) > 20 else x)


class LargeSums(Plain):
    """A sum over records, before any layer, that counts only where it is large."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + (x.abs().sum(0) - 1e3).relu())


class MaskedTogether(Plain):
    """A mask of all records together, which is the same for all made-up ones."""

    def between(self, h: Tensor) -> Tensor:
        return h.masked_fill(h.detach().relu().sum(0).to(torch.bool), 0.0)


class Rounded(Plain):
    """NaN becomes a whole number like any other."""

    def between(self, h: Tensor) -> Tensor:
        return h + 1e-3 * h.detach().long().float().sum(0)


class Masked(Plain):
    """Zero for all records together, which no made-up ones are."""

    def between(self, h: Tensor) -> Tensor:
        return h * h.detach().relu().sum(0).to(torch.bool)


class Picked(Plain):
    def between(self, h: Tensor) -> Tensor:
        return h[h.detach().sum(1).long() * 0]


@torch.jit.script
def rescaled(h: Tensor) -> Tensor:
    """Compiled code is in no Python call; made-up numbers are never so large."""
    if bool(h.abs().max() > 1e6):
        return h / h.abs().max()
    return h


class Compiled(Plain):
    def between(self, h: Tensor) -> Tensor:
        found: Tensor = rescaled(h)
        return found


class LimitedBackwards(torch.autograd.Function):
    """Records meet on the way back alone, and only where gradients are long."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h * 1.0

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> Tensor:
        return errors[0] / errors[0].norm().clamp(min=1e6)


class OwnBackward(Plain):
    def between(self, h: Tensor) -> Tensor:
        found: Tensor = LimitedBackwards.apply(h)  # type: ignore[no-untyped-call]
        return found


class Hooked(Plain):
    def between(self, h: Tensor) -> Tensor:
        h.register_hook(lambda errors: errors / errors.norm().clamp(min=1e6))  # type: ignore[no-untyped-call]
        return h


class Branched(Plain):
    def between(self, h: Tensor) -> Tensor:
        return h if float(h.sum()) > 0.0 else -h


class Tied(Plain):
    """A layer's weight, multiplied once more outside of the layer."""

    def between(self, h: Tensor) -> Tensor:
        return h * self.first.weight.mean(1)


class Beside(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def between(self, h: Tensor) -> Tensor:
        return h * self.scale


def taken(module: nn.Module, records: int = 40) -> None:
    """Raise the reason if closed forms of layers are not to be taken for the module."""
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(2))
    y = torch.zeros(6, dtype=torch.int64)
    for size in (2, records):
        LayerGradients(module, None).rows_apart(named(module), x, y, size)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Centered, "reach another"),
        (Following, "reach another"),
        (InACrowd, "reach another"),
        (Compared, "not known to keep records apart.*gt"),
        (InTheMiddle, "reach another"),
        (FromTheFirst, "reach another"),
        (BeforeLayers, "reach another"),
        (LargeSums, "reach another"),
        (MaskedTogether, "masked_fill of computed whole numbers"),
        (Rounded, "sum of whole numbers|float of whole numbers"),
        (Masked, "of whole numbers"),
        (Picked, "index that is computed"),
        (Compiled, "not known to keep records apart.*aten::gt"),
        (OwnBackward, "code of its own: LimitedBackwards"),
        (Hooked, "register_hook"),
        (Branched, "not known to keep records apart.*__float__"),
        (Beside, "outside of known layers.*scale"),
    ],
)
def test_records_that_meet_are_not_computed_together(kind: type[Plain], why: str) -> None:
    taken(Plain())
    with pytest.raises(NotByLayersError, match=why):
        taken(kind())


def test_a_weight_that_is_used_twice_takes_another_way() -> None:
    """Its closed form would miss a part of the gradient, and the record be longer than its clip."""
    torch.manual_seed(0)
    module = Tied()
    taken(module)  # Records do not meet.
    x = torch.randn(RECORDS, 8)
    y = torch.zeros(RECORDS, dtype=torch.int64)
    engine = make_gradient_engine(module, shape=(8,), clip="record")
    found = engine.client_means(flat(module), x, y, np.arange(RECORDS + 1), 1e6)
    assert engine.path == "torch.func"
    assert float((found - truth(module, x, y)).abs().max()) < 1e-4


def test_a_number_of_records_that_is_treated_differently_goes_another_way() -> None:
    """Each number is tried before it is computed together, once."""

    class At37(Plain):
        def between(self, h: Tensor) -> Tensor:
            return torch.tanh(h - h.mean(0) if len(h) == 37 else h)

    torch.manual_seed(0)
    module, x = At37(), torch.randn(76, 8)
    y = torch.zeros(76, dtype=torch.int64)
    engine = make_gradient_engine(module, shape=(8,), clip="record")
    # Two calls of one block each: of 37 records, and of others.
    for count in (37, 39, 37):
        part = slice(0, count)
        found = engine.client_means(flat(module), x[part], y[part], np.arange(count + 1), 1e6)
        assert engine.path == "layers"
        alone = Plain()
        alone.load_state_dict(module.state_dict())
        assert float((found - truth(alone, x[part], y[part])).abs().max()) < 1e-5


ClosedForm = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(inputs [R, 8], errors [R, 5]) -> the inputs and errors of which a gradient is made."""


def path_of(form: ClosedForm) -> tuple[str, float]:
    """The path that a network takes with a linear layer of this closed form, and how far the
    gradients of its records are from autograd's."""

    class Scaled(nn.Linear):
        pass

    @register_grad_sampler(Scaled)
    def gradient(layer: Any, given: list[Tensor], errors: Tensor) -> dict[nn.Parameter, Tensor]:
        inputs, errors = form(given[0], errors)
        return {layer.weight: torch.einsum("ni,nj->nij", errors, inputs), layer.bias: errors}

    try:
        module = nn.Sequential(Scaled(8, 5), nn.Tanh(), nn.Linear(5, CLASSES))
        x, y = torch.randn(RECORDS, 8), torch.zeros(RECORDS, dtype=torch.int64)
        engine = make_gradient_engine(module, shape=(8,), clip="record")
        found = engine.client_means(flat(module), x, y, np.arange(RECORDS + 1), 1e6)
        return engine.path, float((found - truth(module, x, y)).abs().max())
    finally:
        del GradSampleModule.GRAD_SAMPLERS[Scaled]


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(lambda a, e: (a, e - e.mean(0) if len(e) > 20 else e), id="mixes a crowd"),
        # However little: what agreement with autograd does not see, bits do.
        pytest.param(lambda a, e: (a, e + 4e-7 * e.mean(0)), id="mixes a few"),
        # These keep records apart, and agree on the first few made-up ones.
        pytest.param(lambda a, e: (a * (1.0 + (len(e) > 20)), e), id="errs in a crowd"),
        pytest.param(lambda a, e: (a.round(), e), id="errs unless inputs are 0 or 1"),
    ],
)
def test_a_closed_form_that_is_wrong_somewhere_is_refused(form: ClosedForm) -> None:
    path, error = path_of(form)
    assert path == "torch.func" and error < 1e-5


def test_a_closed_form_that_is_right_is_taken() -> None:
    path, error = path_of(lambda inputs, errors: (inputs, errors))
    assert path == "layers" and error < 1e-5


@pytest.mark.parametrize("padding", [0, 2])
def test_the_word_for_padding_has_no_gradient(padding: int) -> None:
    """As autograd has it; made-up records hold the words 0 and 1 alone."""
    torch.manual_seed(0)

    class Padded(Sequence):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(TOKENS, 8, padding_idx=padding)

    module = Padded()
    x, y = records_of((5,))
    x[:, 1] = float(padding)
    engine = make_gradient_engine(module, shape=(5,), clip="record")
    found = engine.client_means(flat(module), x, y, np.arange(RECORDS + 1), 1e6)
    assert engine.path == "layers"
    assert float((found - truth(module, x, y)).abs().max()) < 1e-5


def test_a_layer_that_is_called_twice_adds_up() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(torch.tanh(2.0 * self.norm(x))))

    module = Twice()
    x, y = torch.randn(RECORDS, 8), torch.zeros(RECORDS, dtype=torch.int64)
    found = LayerGradients(module, None).rows(named(module), x, y)
    assert float((found - truth(module, x, y)).abs().max()) < 1e-5


def test_an_input_that_is_changed_in_place_is_noticed() -> None:
    class InPlace(Plain):
        def forward(self, x: Tensor) -> Tensor:
            # Autograd does not read this input again, so it does not notice.
            h = 1.0 * x
            out = self.second(torch.tanh(self.first(h)))
            h.mul_(2.0)
            return out

    module = InPlace()
    x, y = torch.randn(4, 8), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="input was changed in place"):
        LayerGradients(module, None).rows(named(module), x, y)


def test_a_loss_of_ones_own_sees_one_record_at_a_time() -> None:
    def centered(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs - outputs.mean(0)).square().sum(1) + outputs[:, 0]

    module = Plain()
    x, y = torch.randn(RECORDS, 8), torch.zeros(RECORDS, dtype=torch.int64)
    found = LayerGradients(module, centered).rows(named(module), x, y)
    alone = LayerGradients(module, lambda outputs, _: outputs[:, 0]).rows(named(module), x, y)
    torch.testing.assert_close(found, alone)


def test_a_closed_form_that_a_user_registers_is_used() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2.0 * super().forward(x)

    calls = []

    @register_grad_sampler(Scaled)
    def gradient(layer: Any, given: list[Tensor], errors: Tensor) -> dict[nn.Parameter, Tensor]:
        calls.append(len(errors))
        return {
            layer.weight: 2.0 * torch.einsum("ni,nj->nij", errors, given[0]),
            layer.bias: 2.0 * errors,
        }

    try:
        module = nn.Sequential(Scaled(8, 5), nn.Tanh(), nn.Linear(5, CLASSES))
        x, y = torch.randn(RECORDS, 8), torch.zeros(RECORDS, dtype=torch.int64)
        engine = make_gradient_engine(module, shape=(8,), clip="record")
        found = engine.client_means(flat(module), x, y, np.arange(RECORDS + 1), 1e6)
        assert engine.path == "layers" and RECORDS in calls
        assert float((found - truth(module, x, y)).abs().max()) < 1e-5
    finally:
        del GradSampleModule.GRAD_SAMPLERS[Scaled]


def test_attention_of_torch_is_left_as_it_is() -> None:
    """Opacus' own computes something else where batches come first."""

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))

    torch.manual_seed(0)
    module, x = Attending(), torch.randn(RECORDS, 5, 8)
    y = torch.zeros(RECORDS, dtype=torch.int64)
    engine = make_gradient_engine(module, shape=(5, 8), clip="record")
    found = engine.client_means(flat(module), x, y, np.arange(RECORDS + 1), 1e6)
    assert engine.path != "layers"
    assert float((found - truth(module, x, y)).abs().max()) < 1e-5


class Tokens(nn.Module):
    """Words of a small vocabulary; `masked` is the mask of words that do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(5, 4), nn.Linear(4, CLASSES)

    def masked(self, x: Tensor) -> Tensor:
        return x.to(torch.bool)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x.long())
        return self.last(h.masked_fill(self.masked(x)[..., None], 0.0).sum(1))


class TokensTogether(Tokens):
    def masked(self, x: Tensor) -> Tensor:
        return x.sum(0).to(torch.bool)[None].expand(len(x), -1)


def test_a_mask_of_tokens_of_all_records_is_refused() -> None:
    x = torch.arange(12).reshape(4, 3) % 5
    y = torch.zeros(4, dtype=torch.int64)
    for module in (Tokens(), TokensTogether()):
        found = LayerGradients(module, None)
        if type(module) is Tokens:
            found.rows_apart(named(module), x, y, 4)
        else:
            with pytest.raises(NotByLayersError, match="whole numbers"):
                found.rows_apart(named(module), x, y, 4)

"""Per-record gradients of any `forward` in one pass, by closed forms of the module's layers.

Method. Let record i give a layer the input a_i and get the output o_i. The gradient of its loss L_i
with respect to the layer's parameters depends on a_i and e_i = dL_i / do_i alone. One forward pass
of all records keeps each layer's input, and the place of its output in the graph. One backward pass
from the losses to these places gives all e_i. Opacus has a closed form for each usual layer (a
"grad sampler"), and users may register more of them with Opacus. A layer
that is called several times, as the cell of a recurrent network, adds up what its calls give.

Validity. A record's row must depend on that record alone. A batch allows what a single record does
not: code in `forward` can mix the records. So this way is taken only if

1. every parameter belongs to a layer with a closed form;
2. every torch function that is called is one of `APART`, and every operation below it, also those
   of compiled code, one of `OPERATIONS`: none of them compares numbers or turns them into Python
   ones, so the course of the computation does not depend on values, and a record that reaches
   another one carries its NaN there. Whole numbers made of others, which hold no NaN, are only
   looked up in embeddings. No code of the user's own runs in the backward pass: neither hooks nor
   an `autograd.Function`;
3. with other numbers for some records, and NaN in all layers' outputs for them, the other records'
   outputs keep their bits; and so do their rows. In few records every one is told from every other
   so, in a batch of any size that occurs, one half of them from the other;
4. the rows of made-up records agree with autograd's of one record at a time, in batches of each
   size that occurs.

A loss of the user's own is differentiated for one record at a time, so it cannot mix anything.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fl_shuffle.gradients.engine import Loss, cross_entropy

_ELEMENTWISE = """
    add __add__ __radd__ __iadd__ add_ sub __sub__ __rsub__ rsub sub_ mul __mul__ __rmul__ mul_ div
    __truediv__ true_divide neg __neg__ pow __pow__ square sqrt rsqrt exp sin cos abs relu relu_
    leaky_relu gelu silu mish elu selu softplus hardtanh relu6 tanh sigmoid logsigmoid erf
"""
_PRODUCTS = """
    matmul __matmul__ bmm linear conv1d conv2d conv3d embedding group_norm layer_norm instance_norm
    rms_norm normalize softmax log_softmax mean sum max_pool1d max_pool2d avg_pool1d avg_pool2d
    adaptive_avg_pool1d adaptive_avg_pool2d boolean_dispatch baddbmm
"""
_SHAPES = """
    flatten unflatten view reshape transpose permute movedim unsqueeze squeeze expand expand_as
    contiguous cat concat stack split chunk unbind flip roll clone detach repeat narrow select pad
    size dim __len__ __get__ __getitem__ to float long zeros ones zeros_like ones_like arange
    new_zeros requires_grad_ masked_fill tril triu dropout
"""
APART = frozenset((_ELEMENTWISE + _PRODUCTS + _SHAPES).split())
"""Functions through which NaN passes, and which neither compare numbers nor leave torch. Dropout is
refused elsewhere unless it is off."""
_COMPUTED = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _log_softmax _reshape_alias _softmax _to_copy
    _unsafe_view abs add add_ addmm alias arange avg_pool1d avg_pool2d avg_pool3d baddbmm bmm cat
    clamp_min clone constant_pad_nd convolution copy_ cos detach div div_ elu embedding empty
    empty_like erf exp expand fill_ flip gelu hardtanh leaky_relu lift_fresh linalg_vector_norm
    log_sigmoid_forward masked_fill max_pool2d_with_indices mean mish mm mul mul_ native_group_norm
    native_layer_norm neg new_zeros ones ones_like permute pow relu relu_ repeat roll rsqrt rsub
    select sigmoid silu sin slice softplus split split_with_sizes sqrt squeeze stack sub sub_ sum t
    tanh transpose tril triu unbind unsqueeze view zero_ zeros zeros_like
"""
OPERATIONS = frozenset(_COMPUTED.split())
"""What torch computes for these, by its own names."""
LOOKED_UP = ("embedding", "masked_fill")
"""Functions that make numbers of whole ones without adding these up over records."""
_REARRANGED = """
    flatten unflatten view reshape transpose permute movedim unsqueeze squeeze expand expand_as
    contiguous split chunk unbind flip clone detach narrow select __getitem__ to float long
"""
REARRANGED = frozenset(_REARRANGED.split())
"""Functions that make whole numbers of the inputs without combining any two of them."""
FEW = 64
"""Number of records that are distinguished from one another, each from each."""
FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, IndexError, NotImplementedError)
"""What a module or a closed form raises that is not made for this."""


class NotByLayersError(Exception):
    """Why a module's records do not get their gradients this way."""


class _Call(NamedTuple):
    """One call of a layer: its input, the input's version then, and its output in the graph."""

    layer: nn.Module
    given: Tensor
    version: int
    place: GradientEdge


class _Known:
    """A set of tensors by identity."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._kept = {id(each): each for each in tensors}

    def add(self, tensor: Tensor) -> None:
        self._kept[id(tensor)] = tensor

    def __contains__(self, tensor: Tensor) -> bool:
        return id(tensor) in self._kept


class _Functions(TorchFunctionMode):
    """Keeps the names of torch functions that are called and may mix records.

    NaN is lost where a number becomes a whole one: such tensors are followed. They may be looked up
    only if they are inputs or `fixed` (buffers, and what is made without records). Others can hold
    a sum over records that happens to be the same for all that are tried, as a mask is.
    """

    def __init__(self, inputs: Tensor, fixed: Iterable[Tensor]) -> None:
        super().__init__()
        self.unknown: set[str] = set()
        self.inputs_are_numbers = False
        """Whether more is done with inputs than to look them up."""
        # Tensors are kept, so that no other object gets their addresses.
        self._whole = _Known([] if inputs.is_floating_point() else [inputs])
        self._inputs, self._fixed = _Known([inputs]), _Known(fixed)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, found = func.__name__, func(*args, **(kwargs or {}))
        if name not in APART:
            self.unknown.add(name)
        given = list(_tensors([*args, *(kwargs or {}).values()]))
        if name == "__getitem__" and any(True for _ in _tensors(args[1:])):
            self.unknown.add("an index that is computed")
        whole = any(each in self._whole for each in given)
        if name in LOOKED_UP and any(
            each in self._whole and each not in self._inputs for each in given
        ):
            self.unknown.add(f"{name} of computed whole numbers")
        fixed = all(each in self._fixed for each in given)
        rearranged = name in REARRANGED and all(
            each in self._inputs or each in self._fixed for each in given
        )
        computed = name not in REARRANGED and name not in LOOKED_UP
        computed = computed and any(each in self._inputs for each in given)
        for made in _tensors([found]):
            self.inputs_are_numbers |= computed
            if fixed:
                self._fixed.add(made)
                continue
            if rearranged:
                self._inputs.add(made)
            if made.is_floating_point():
                if whole and name not in LOOKED_UP:
                    self.unknown.add(f"{name} of whole numbers")
            elif whole or any(each.is_floating_point() for each in given):
                self._whole.add(made)
        return found


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the names of operations, also of compiled code, that may mix records."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unknown: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        space, _, name = func._schema.name.partition("::")
        if space != "aten" or name not in OPERATIONS:
            self.unknown.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among these, and in tuples and lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


class LayerGradients:
    """One thread's copy of a module, whose layers keep what their gradients need.

    Parameters
    ----------
    module : nn.Module
        Copied. Its `nn.LSTM`, `nn.GRU` and `nn.RNN` become Opacus' cells in the copy, which consist
        of linear layers and have the same parameters under the same names.
    loss : callable or None
        (outputs [N, C], labels [N, ...]) -> losses [N]; None for cross entropy.

    Raises
    ------
    NotByLayersError
        If a parameter lies in no layer with a closed form.
    """

    def __init__(self, module: nn.Module, loss: Loss | None) -> None:
        # Seconds and a hundred megabytes: only where a model needs it.
        from opacus.grad_sample import GradSampleModule

        self._forms = GradSampleModule.GRAD_SAMPLERS
        self._loss = loss
        self._module = _with_linear_cells(copy.deepcopy(module))
        self._starts: dict[nn.Parameter, int] = {}
        start = 0
        for name, parameter in module.named_parameters():
            # The order of the user's parameters, whatever they lie in now.
            self._starts[self._module.get_parameter(name)] = start
            start += parameter.numel()
        self._dimension = start
        layers = [part for part in self._module.modules() if type(part) in self._forms]
        covered = {each for layer in layers for each in layer.parameters(recurse=False)}
        outside = [name for name, each in self._module.named_parameters() if each not in covered]
        if outside or covered != set(self._starts):
            raise NotByLayersError(f"parameters lie outside of known layers: {outside}")
        self._calls: list[_Call] = []
        self._poisoned: Tensor | None = None
        for layer in layers:
            layer.register_forward_hook(self._keep)

    def rows_apart(
        self,
        parameters: Mapping[str, Tensor],
        inputs: Tensor,
        labels: Tensor,
        records: int,
    ) -> Tensor:
        """Return the rows of `count` made-up records, computed together.

        parameters: by name. inputs [P, ...], labels [P]: P made-up records, repeated as often as
        needed. Raises `NotByLayersError` unless other numbers, and NaN, in some of the records
        change nothing of the others.
        """
        index = torch.arange(records)
        batch, targets = inputs[index % len(inputs)], labels[index % len(labels)]
        others = inputs[(index + 1) % len(inputs)]
        expected, numbers = self._watched(parameters, batch)
        rows = self.rows(parameters, batch, targets)
        for changed in _halves(records):
            place = changed.to(inputs.device)
            mixed = torch.where(place.view(-1, *[1] * (inputs.dim() - 1)), others, batch)
            poisoned = mixed.clone()
            if numbers and mixed.is_floating_point():
                # Before the first layer, a sum over records may count only where it is large.
                poisoned[place] = torch.nan
            with self._poison(place):
                outputs, _ = self._watched(parameters, poisoned)
            finite = torch.isfinite(outputs).flatten(1).all(1)
            if bool(finite[place].any()) or not _same(outputs[~place], expected[~place]):
                raise NotByLayersError("a record's numbers reach another record's outputs")
            if not _same(self.rows(parameters, mixed, targets)[~place], rows[~place]):
                raise NotByLayersError("a record's numbers reach another record's row")
        return rows

    def _watched(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, bool]:
        """Return the module's outputs, and whether it computes with its inputs, not only looks them
        up; raises `NotByLayersError` for what is called on the way."""
        watched = _Functions(inputs, self._module.buffers())
        with torch.enable_grad(), _Operations() as operations, watched as functions:
            outputs = self._outputs(parameters, inputs)
        self._calls.clear()
        if unknown := functions.unknown | operations.unknown:
            raise NotByLayersError(f"not known to keep records apart: {sorted(unknown)}")
        if own := _own_backward(outputs):
            raise NotByLayersError(f"its backward pass has code of its own: {own}")
        return outputs.detach(), functions.inputs_are_numbers

    def rows(self, parameters: Mapping[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        """Return gradients [R, d] of the losses of R records, in the order of the parameters.

        Raises `RuntimeError` where a layer's input was changed in place after it was read.
        """
        self._calls.clear()
        count = len(labels)
        with torch.enable_grad():
            outputs = self._outputs(parameters, inputs)
            errors = torch.autograd.grad(
                outputs,
                [call.place for call in self._calls],
                self._errors_of_outputs(outputs.detach(), labels),
                allow_unused=True,
            )
        used: dict[nn.Module, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for call, error in zip(self._calls, errors, strict=True):
            if call.given._version != call.version:
                raise RuntimeError("a layer's input was changed in place")
            if error is not None:
                used[call.layer].append((call.given, error))
        self._calls.clear()
        found = inputs.new_zeros((count, self._dimension), dtype=torch.float32)
        for layer, pairs in used.items():
            for given, error in _steps_joined(layer, pairs, count):
                values = self._forms[type(layer)](layer, [given], error)
                for parameter, each in values.items():
                    padding = getattr(layer, "padding_idx", None)
                    if isinstance(layer, nn.Embedding) and padding is not None:
                        # Autograd gives this word no gradient; Opacus' closed form does.
                        each[:, padding] = 0.0
                    start = self._starts[parameter]
                    found[:, start : start + parameter.numel()] += each.reshape(count, -1)
        return found

    def _outputs(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        # The graph must lead to the layers' outputs, so the parameters ask for gradients.
        lent = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        result: Tensor = functional_call(self._module, lent, (inputs,))
        return result

    def _errors_of_outputs(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the gradients of the losses with respect to the module's outputs [R, C]."""
        if self._loss is None:
            leaf = outputs.requires_grad_()
            (errors,) = torch.autograd.grad(cross_entropy(leaf, labels).sum(), leaf)
            return errors
        loss = self._loss

        def of_record(output: Tensor, label: Tensor) -> Tensor:
            return loss(output[None], label[None]).sum()

        found: Tensor = vmap(grad(of_record))(outputs, labels)
        return found

    def _keep(self, layer: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> Tensor | None:
        """Keep a call of a layer; poison its output where records are being tried."""
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            place = get_gradient_edge(result)
            self._calls.append(_Call(layer, given[0].detach(), given[0]._version, place))
            if self._poisoned is None:
                return None
            poisoned = result.clone()
            poisoned[self._poisoned] = torch.nan
            return poisoned

    @contextmanager
    def _poison(self, records: Tensor) -> Iterator[None]:
        self._poisoned = records
        try:
            yield
        finally:
            self._poisoned = None


def _halves(records: int) -> Iterator[Tensor]:
    """Yield masks [records], each with its complement: of a few records, any two are in different
    halves of one of them; of more, half of all pairs are."""
    if records <= FEW:
        place = torch.arange(records)
        halves = [(place >> bit) % 2 == 1 for bit in range((records - 1).bit_length())]
    else:
        halves = [torch.rand(records, generator=torch.Generator().manual_seed(0)) < 0.5]
    for half in halves:
        yield half
        yield ~half


def _same(found: Tensor, expected: Tensor) -> bool:
    """Return whether two tensors have the same bits, NaN being equal to NaN."""
    return torch.equal(found.isnan(), expected.isnan()) and torch.equal(
        found.nan_to_num(), expected.nan_to_num()
    )


def _own_backward(outputs: Tensor) -> str:
    """Return the name of an `autograd.Function` of the user's own behind these outputs; empty if
    none."""
    waiting, met = list[Any]([outputs.grad_fn]), set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return type(node).__name__
        met.add(node)
        waiting += [each for each, _ in node.next_functions]
    return ""


def _with_linear_cells(module: nn.Module) -> nn.Module:
    """Replace recurrent layers by Opacus' ones, in place; returns the module.

    Nothing else is replaced. Opacus' attention, for one, computes something else than torch's
    where batches come first.
    """
    from opacus.layers import DPGRU, DPLSTM, DPRNN

    def cell_of(part: nn.Module) -> nn.Module | None:
        kinds: dict[type[nn.Module], Any] = {nn.LSTM: DPLSTM, nn.GRU: DPGRU, nn.RNN: DPRNN}
        make = kinds.get(type(part))
        if make is None or not isinstance(part, nn.RNNBase) or part.proj_size:
            return None
        names = ("num_layers", "bias", "batch_first", "dropout", "bidirectional")
        options = {name: getattr(part, name) for name in names}
        if type(part) is nn.RNN:
            options["nonlinearity"] = part.nonlinearity
        cell: nn.Module = make(part.input_size, part.hidden_size, **options)
        cell.load_state_dict(part.state_dict())
        return cell.train(part.training)

    replaced = cell_of(module)
    if replaced is not None:
        return replaced
    for name, part in list(module.named_modules()):
        cell = cell_of(part)
        if cell is not None:
            parent, _, own = name.rpartition(".")
            setattr(module.get_submodule(parent), own, cell)
    return module


def _steps_joined(
    layer: nn.Module, pairs: list[tuple[Tensor, Tensor]], count: int
) -> list[tuple[Tensor, Tensor]]:
    """Join the calls of a linear layer to one: a recurrent network's steps are one product then."""
    if len(pairs) < 2 or not isinstance(layer, nn.Linear):
        return pairs
    given, error = (
        torch.cat([each.reshape(count, -1, each.shape[-1]) for each in side], dim=1)
        for side in zip(*pairs, strict=True)
    )
    return [(given, error)]

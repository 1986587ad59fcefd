"""What a module is made of: which gradient path fits it, and what no path can serve."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fl_shuffle.errors import InvalidValueError, text_of

UNKNOWN_NUMBERS = 1 << 17
"""Numbers that a module is taken to keep of a record where that cannot be tried: blocks are small
then."""

# Parameter-free maps that act on each number by itself.
ELEMENTWISE = (
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.SELU,
    nn.LeakyReLU,
    nn.Softplus,
    nn.Softsign,
    nn.Hardtanh,
    nn.ReLU6,
)


@dataclass(frozen=True)
class Layer:
    """A linear map [.., fan_in] -> [.., fan_out].

    `weight` and `bias` are positions in the flat parameter vector; `bias` is None without one.
    """

    fan_in: int
    fan_out: int
    weight: int
    bias: int | None


def check_module(module: nn.Module) -> int:
    """Return the number of parameters of a module whose records have gradients of their own.

    Raises `InvalidValueError` for a module without parameters, with parameters that are frozen or
    not real floating point, with batch statistics (one record's loss then depends on the others,
    so clipping each record bounds nothing), or with active dropout (its masks come from a shared
    random state, so a client's report would depend on what was computed before it).
    """
    parameters = list(module.named_parameters())
    if not parameters:
        raise InvalidValueError("module", type(module).__name__, "has no parameters to train")
    for name, parameter in parameters:
        if not parameter.dtype.is_floating_point:
            raise InvalidValueError(
                f"module parameter {name}", parameter.dtype, "must be floating point"
            )
        if not parameter.requires_grad:
            raise InvalidValueError(
                f"module parameter {name}",
                "requires_grad=False",
                "every parameter must be trained",
                "apply frozen layers to the data beforehand",
            )
    require_no_batch_statistics(module)
    for name, part in module.named_modules():
        shown = f"module {name or type(part).__name__}"
        if any(kind.__name__ == "GradSampleModule" for kind in type(part).__mro__):
            raise InvalidValueError(
                shown,
                type(part).__name__,
                "is Opacus's wrapper, which stores gradients itself",
                "give the module inside (its to_standard_module()): gradients of single records "
                "are computed here",
            )
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p > 0:
            raise InvalidValueError(
                shown,
                type(part).__name__,
                "draws from a shared random state, so reports would depend on the packing",
                "set p = 0 or call eval()",
            )
    _require_plain_embeddings(module)
    return sum(parameter.numel() for _, parameter in parameters)


def _require_plain_embeddings(module: nn.Module) -> None:
    """Raise `InvalidValueError` for embeddings that change their weights, that weigh a token by how
    often a batch has it, or whose gradients are sparse."""
    for name, part in module.named_modules():
        if not isinstance(part, nn.Embedding | nn.EmbeddingBag):
            continue
        shown, kind = f"module {name or type(part).__name__}", type(part).__name__
        if part.max_norm is not None:
            why = (
                f"with max_norm = {part.max_norm:g} changes its weights where a record's tokens "
                "are, before any noise is added"
            )
            raise InvalidValueError(shown, kind, why, "leave max_norm out")
        if part.scale_grad_by_freq:
            why = "with scale_grad_by_freq mixes records: a gradient depends on others' tokens"
            raise InvalidValueError(shown, kind, why, "leave scale_grad_by_freq out")
        if part.sparse:
            why = "with sparse=True has gradients of single records that cannot be computed here"
            remedy = "leave sparse out: noise is added to every number of a report, sparse or not"
            raise InvalidValueError(shown, kind, why, remedy)


def require_no_batch_statistics(module: nn.Module) -> None:
    """Raise `InvalidValueError` for layers that mix records and keep statistics of them."""
    for name, part in module.named_modules():
        batch = isinstance(part, nn.modules.batchnorm._BatchNorm)
        if batch or getattr(part, "track_running_stats", False):
            raise InvalidValueError(
                f"module {name or type(part).__name__}",
                type(part).__name__,
                "mixes records through batch statistics, so no record has a separate gradient, "
                "and its running statistics are exact numbers about records",
                "use GroupNorm or LayerNorm; opacus.validators.ModuleValidator.fix(model) puts "
                "GroupNorm in its place",
            )


MACHINE = MemoryError, ImportError, torch.OutOfMemoryError
"""What a machine lacks: memory, or a package."""


def of_the_machine(error: BaseException) -> bool:
    """Return whether this may be no record's doing: for memory of the processor torch has no
    type."""
    lacking = isinstance(error, RuntimeError) and "alloc" in text_of(error)
    return lacking or isinstance(error, MACHINE)


def saved_numbers(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Estimate the number of values that autograd keeps of one record of `shape` in a forward
    pass, if `module` takes neither float32 nor int64 records of zeros."""
    module = copy.deepcopy(module).float().cpu()
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    count = 0

    def keep(values: Tensor) -> Tensor:
        nonlocal count
        if values.untyped_storage().data_ptr() not in own:
            count += values.numel()
        return values

    for dtype in (torch.float32, torch.int64):
        count = 0
        # A module's own code: where it raises on both, it will again, and be heard.
        with suppress(Exception), torch.enable_grad(), saved_tensors_hooks(keep, lambda x: x):
            module(torch.zeros(1, *shape, dtype=dtype))
            return count
    return UNKNOWN_NUMBERS


def has_hooks(module: nn.Module) -> bool:
    return any(
        getattr(module, name)
        for name in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_backward_pre_hooks",
        )
    ) or hasattr(module, "parametrizations")

"""Models and the losses that they are trained on, by name or a user's own.

A user-defined model is `module:function(input_shape, classes) -> torch.nn.Module`, a loss
`module:function(outputs, labels)`, see `build_loss`.
"""

from __future__ import annotations

import itertools
import math
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fl_shuffle._internal.plugins import load_function
from fl_shuffle.configuration.sections import Config, ModelSection
from fl_shuffle.data.named_models import WIDTHS, named_model
from fl_shuffle.errors import ConfigError, InvalidValueError, first_line
from fl_shuffle.gradients.engine import Loss
from fl_shuffle.gradients.structure import check_module
from fl_shuffle.trials import (
    CannotTryError,
    Subject,
    takes_whole_numbers_alone,
    try_loss,
    try_model,
)

FLAT_MODELS = ("linear", "mlp")
SHIPPED_MODELS = (*FLAT_MODELS, *WIDTHS)


def build_model(
    section: ModelSection, input_shape: tuple[int, ...], classes: int, seed: int
) -> nn.Module:
    """Return the section's model for inputs of `input_shape`, initialized from `seed`.

    Raises `ConfigError` for a provider that returns no module, or a module with no parameters or
    with parameters that are lazy or not floating point.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _build(section, input_shape, classes)
    parameters = list(model.named_parameters())
    if not parameters:
        raise ConfigError(f"model.kind = {section.kind!r}: the module has no parameters to train")
    for name, parameter in parameters:
        if is_lazy(parameter):
            raise ConfigError(
                f"model.kind = {section.kind!r}: parameter {name} is lazy, so its size is unknown; "
                "use layers of a given size (nn.Linear for nn.LazyLinear)"
            )
        if not parameter.dtype.is_floating_point:
            raise ConfigError(
                f"model.kind = {section.kind!r}: parameter {name} is {parameter.dtype}; "
                "every trained parameter must be floating point"
            )
    return model.float()


MOST_GROUPS = 32
"""Of channels in a group norm that stands for a batch norm."""


def with_group_norms(module: nn.Module) -> nn.Module:
    """Return the module with a group norm in the place of each batch norm, which mixes records.

    Weights and biases are kept, under the same names; running statistics are gone. The module is
    changed in place, unless it is a batch norm itself.
    """
    for name, part in module.named_children():
        setattr(module, name, with_group_norms(part))
    if not isinstance(module, nn.modules.batchnorm._BatchNorm):
        return module
    channels = module.num_features
    # The most groups, up to 32, of which all have as many channels.
    groups = math.gcd(MOST_GROUPS, channels)
    made = nn.GroupNorm(groups, channels, eps=module.eps, affine=module.affine)
    if module.affine:
        made.weight, made.bias = module.weight, module.bias
    return made.train(module.training)


def _build(section: ModelSection, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    if section.kind not in SHIPPED_MODELS:
        model = load_function(section.kind, "input_shape", "classes", field="model.kind")(
            input_shape, classes
        )
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"model.kind = {section.kind!r} returned {type(model).__name__}; "
                "it must return a torch.nn.Module"
            )
        return with_group_norms(model) if section.fix else model
    if section.kind not in FLAT_MODELS:
        return named_model(section, input_shape, classes)
    if len(input_shape) != 1:
        raise ConfigError(
            f"model.kind = {section.kind!r} needs flat features, got shape {input_shape}"
        )
    if section.kind == "linear" and section.hidden:
        raise InvalidValueError(
            "model.hidden", list(section.hidden), "a linear model has none; set model.kind = 'mlp'"
        )
    if section.kind == "mlp" and not section.hidden:
        raise InvalidValueError(
            "model.hidden", [], "an mlp needs at least one width, for example [1000]"
        )
    if section.kind == "mlp" and section.init == "zeros":
        raise InvalidValueError("model.init", "zeros", "a zero network never learns; use default")
    widths = [input_shape[0], *section.hidden, classes]
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out, bias=section.bias), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    if section.init == "zeros":
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    return model


def try_own_model(
    config: Config,
    model: nn.Module,
    inputs: Tensor,
    numbers: int,
    given: tuple[int, ...],
    *,
    regression: bool,
) -> None:
    """Have a user's own model compute made-up records of the shape of `inputs`, before a round
    is paid for.

    For a shipped loss it must return `numbers` numbers for each, or more where these are classes.
    `given`: the shape of a record before its features. Raises `InvalidValueError` for a model that
    the trial refuses (`trials.models`), `ConfigError` for one that takes no such records: with the
    setting that makes some that it takes, if there is one.
    """
    kind, shape = f"model.kind = {config.model.kind!r}", tuple(inputs.shape[1:])
    check_module(model)
    try:
        found = try_model(model, shape, f"{kind}: module", whole=not inputs.is_floating_point())
    except CannotTryError as error:
        raise ConfigError(
            f"{kind} raises {type(error.__cause__).__name__} on made-up records "
            f"{['N', *shape]}: {first_line(error.__cause__)}; "
            f"{_fitting(config, model, shape, given)}"
        ) from error.__cause__
    shipped = config.model.loss in {"cross-entropy", "squared-error"}
    if shipped and (found < numbers or (regression and found > numbers)):
        what = "outputs" if regression else "classes"
        raise ConfigError(
            f"{kind} returns {found} numbers for a record, and the data source declares {numbers} "
            f"{what}; end it with a layer of {numbers}"
        )


def _fitting(
    config: Config, model: nn.Module, shape: tuple[int, ...], given: tuple[int, ...]
) -> str:
    """Return what to set so that records have a shape that the model takes, or what to look at."""
    if takes_whole_numbers_alone(model, shape):
        return "it takes whole numbers: have the source return them, with data.features = 'none'"
    fitting = dict[str, tuple[int, ...]]()
    if len(given) in {2, 3}:
        fitting["pixels"] = (1, *given) if len(given) == 2 else given
    if len(given) == 2 and given[0] == given[1]:
        fitting["raw"] = (math.prod(given),)
    for features, other in fitting.items():
        with suppress(CannotTryError, InvalidValueError):
            try_model(model, other, whole=False)
            return f"it takes {['N', *other]}: set data.features = {features!r}"
    return (
        f"data.features = {config.data.features!r} makes records of shape {list(shape)} of "
        f"{list(given)}"
    )


def flatten_parameters(model: nn.Module) -> Tensor:
    """Return all parameters as one float32 vector, in `model.parameters()` order."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return half the squared distance of outputs [N, C] from labels [N, C]; losses [N]."""
    return 0.5 * (outputs - labels).square().flatten(1).sum(1)


def build_loss(section: ModelSection, size: int, *, regression: bool) -> Loss | None:
    """Return the section's loss for models with `size` outputs; None for the engine's own cross
    entropy.

    A user's own is `module:function` of (outputs [N, C], labels [N], or [N, C] in regression) and
    returns losses [N], each of its own record alone: gradients are clipped record by record. A
    label that is no class counts as zero. Raises `ConfigError` or `InvalidValueError` for a loss
    that does not fit the labels, or that the trial on made-up records refuses (`trials.losses`).
    """
    if section.loss == "cross-entropy":
        if regression:
            raise InvalidValueError(
                "model.loss",
                section.loss,
                "is for classes, but the data source declares outputs",
                "set model.loss = 'squared-error' or your own module:function",
            )
        return None
    if section.loss == "squared-error":
        if not regression:
            raise InvalidValueError(
                "model.loss",
                section.loss,
                "is for regression, but the data source declares classes",
                "use cross-entropy, or a source with outputs = 1",
            )
        return squared_error
    own: Loss = load_function(section.loss, "outputs", "labels", field="model.loss")
    try_loss(own, size, Subject("model.loss", section.loss), numbers=size * regression)
    return own if regression else _of_classes(own, size)


def _of_classes(own: Loss, classes: int) -> Loss:
    """Return the same, zero where the label is no class: such a record must not end anybody's
    run."""

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        inside = (labels >= 0) & (labels < classes)
        losses = own(outputs, labels.clamp(0, classes - 1))
        return torch.where(inside, losses, torch.zeros_like(losses))

    return loss

"""What a model is trained on and measured by: losses and metrics, named or a user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fl_shuffle.configuration.sections import ModelSection
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.gradients.engine import Loss
from fl_shuffle.plugins import load_function

Metrics = Callable[[Tensor, Tensor], Mapping[str, float]]
"""(outputs [N, C], labels [N] or [N, C]) of all test records -> numbers by name."""

TRIED = 3
"""Made-up records that a user's loss is tried on before it meets real ones."""
SAME = 1e-5
"""A record's loss may differ by this, relatively, with the records beside it (rounding)."""


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Half the squared distance of outputs [N, C] from labels [N, C]; losses [N]."""
    return 0.5 * (outputs - labels).square().flatten(1).sum(1)


def build_loss(section: ModelSection, size: int, *, regression: bool) -> Loss | None:
    """The section's loss for models with `size` outputs; None for the engine's own cross entropy.

    A user's own is `module:function` of (outputs [N, C], labels [N], or [N, C] in regression) and
    returns losses [N], each of its own record alone: gradients are clipped record by record. A
    label that is no class counts as zero. Raises `ConfigError` or `InvalidValueError` for a loss
    that does not fit the labels, returns something else, or mixes records.
    """
    if section.loss == "cross-entropy":
        if regression:
            raise InvalidValueError(
                "model.loss",
                section.loss,
                "is for classes, and the data source declares outputs",
                "set model.loss = 'squared-error' or your own module:function",
            )
        return None
    if section.loss == "squared-error":
        if not regression:
            raise InvalidValueError(
                "model.loss",
                section.loss,
                "is for regression, and the data source declares classes",
                "use cross-entropy, or a source with outputs = 1",
            )
        return squared_error
    own: Loss = load_function(section.loss, "outputs", "labels", field="model.loss")
    _try(own, section.loss, size, regression=regression)
    return own if regression else _of_classes(own, size)


def build_metrics(section: ModelSection) -> Metrics | None:
    """A user's own `module:function` of (outputs, labels), over all test records; None without."""
    if section.metrics == "default":
        return None
    own: Metrics = load_function(section.metrics, "outputs", "labels", field="model.metrics")

    def measured(outputs: Tensor, labels: Tensor) -> Mapping[str, float]:
        found = own(outputs, labels)
        try:
            return {str(name): float(value) for name, value in dict(found).items()}
        except (TypeError, ValueError):
            raise ConfigError(
                f"model.metrics = {section.metrics!r} returned {type(found).__name__}; it must "
                "return numbers by name, as {'f1': 0.9}"
            ) from None

    return measured


def _of_classes(own: Loss, classes: int) -> Loss:
    """The same, zero where the label is no class: such a record must not end anybody's run."""

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        inside = (labels >= 0) & (labels < classes)
        losses = own(outputs, labels.clamp(0, classes - 1))
        return torch.where(inside, losses, torch.zeros_like(losses))

    return loss


def _try(own: Loss, name: str, size: int, *, regression: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.rand(TRIED, size, generator=generator)
    labels = torch.arange(TRIED) % size
    if regression:
        labels = torch.rand(TRIED, size, generator=generator)
    try:
        losses = own(outputs, labels)
    except Exception as error:
        raise ConfigError(
            f"model.loss = {name!r} raised {type(error).__name__} on made-up outputs "
            f"[{TRIED}, {size}] and {labels.dtype} labels {list(labels.shape)}: {error}"
        ) from error
    if not isinstance(losses, Tensor) or losses.shape != (TRIED,):
        what = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ConfigError(
            f"model.loss = {name!r} returned {what} for {TRIED} records; it must return one loss "
            "for each, as with reduction='none'"
        )
    alone = torch.cat([own(outputs[i : i + 1], labels[i : i + 1]) for i in range(TRIED)])
    if not torch.allclose(losses, alone, rtol=SAME, atol=SAME, equal_nan=True):
        raise ConfigError(
            f"model.loss = {name!r} mixes records: a record's loss changes with those beside it, "
            "so clipping each gradient would bound nothing"
        )

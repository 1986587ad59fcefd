"""The server's step on the mean of the shuffled reports: post-processing, at no privacy cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fl_shuffle.configuration.sections import ServerSection

KEPT = ("theta", "moments", "steps", "averaged", "count")
"""Of an optimizer's state, beside its momentum."""


class ServerOptimizer:
    """SGD, momentum or Adam on one flat parameter vector, with decay and iterate averaging.

    A report points uphill (a gradient, or minus a local update): the step goes against it.
    `averaging = a > 0` releases the mean of the iterates of the last `a` share of the rounds.

    The steps are PyTorch's functional optimizers: its `Optimizer` classes import the whole compiler
    when the first one is built, which takes as long as everything else before the first round.
    """

    def __init__(self, section: ServerSection, parameters: Tensor) -> None:
        self._section = section
        self._theta = parameters.detach().clone().to(torch.float32)
        self._momentum: list[Tensor | None] = [None]
        self._moments: tuple[Tensor, ...] = ()
        self._steps = torch.zeros(())
        self._averaged: Tensor | None = None
        self._count = 0

    def current(self) -> Tensor:
        """The parameters that are broadcast, float32 [d]."""
        return self._theta

    def is_finite(self) -> bool:
        """Whether every broadcast parameter is: a float64 sum of finite ones cannot overflow."""
        with np.errstate(invalid="ignore"):
            return math.isfinite(self._theta.numpy().sum(dtype=np.float64))

    def released(self) -> Tensor:
        """The parameters that are evaluated and saved: the averaged ones if averaging is on."""
        if self._averaged is None:
            return self.current()
        return (self._averaged / self._count).to(torch.float32)

    def load(self, parameters: Tensor) -> None:
        """Start from other parameters."""
        self._theta = parameters.detach().clone().to(torch.float32)

    def step(self, gradient: Tensor, round_number: int, rounds: int) -> None:
        """One step against `gradient`, in round `round_number` (from 1) of `rounds`."""
        section = self._section
        rate = section.learning_rate * self._decay((round_number - 1) / rounds)
        # A step makes a new vector: what was broadcast stays what it was.
        theta = self._theta.clone()
        options: dict[str, Any] = {"lr": rate, "weight_decay": 0.0, "maximize": False}
        if section.optimizer == "adam":
            self._moments = self._moments or (torch.zeros_like(theta), torch.zeros_like(theta))
            first, second = ([moment] for moment in self._moments)
            options |= {"beta1": section.momentum, "beta2": section.beta2}
            options |= {"amsgrad": False, "eps": 1e-8}
            adam([theta], [gradient], first, second, [], [self._steps], **options)
        else:
            momentum = section.momentum if section.optimizer == "momentum" else 0.0
            options |= {"momentum": momentum, "dampening": 0.0, "nesterov": False}
            sgd([theta], [gradient], self._momentum, **options)
        self._theta = theta
        if section.averaging and round_number > (1 - section.averaging) * rounds:
            if self._averaged is None:
                self._averaged = torch.zeros_like(theta, dtype=torch.float64)
            self._averaged += theta
            self._count += 1

    def _decay(self, progress: float) -> float:
        left = {
            "constant": 1.0,
            "linear": 1.0 - progress,
            "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
        }[self._section.decay]
        return self._section.decay_to + (1.0 - self._section.decay_to) * left

    def state(self) -> dict[str, Any]:
        """Everything needed to go on: parameters, optimizer moments, running average."""
        found = {name: getattr(self, f"_{name}") for name in KEPT}
        return {**found, "momentum": self._momentum[0]}

    def restore(self, state: dict[str, Any]) -> None:
        """Undo to a saved `state`."""
        for name in KEPT:
            setattr(self, f"_{name}", state[name])
        self._momentum = [state["momentum"]]

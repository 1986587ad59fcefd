"""The server's step on the mean of the shuffled reports: post-processing, at no privacy cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_shuffle.configuration.sections import ServerSection

KEPT = ("theta", "momentum", "moments", "steps", "averaged", "count")
"""What an optimizer needs to go on."""


class ServerOptimizer:
    """SGD, momentum or Adam on one flat parameter vector, with decay and iterate averaging.

    A report points uphill (a gradient, or minus a local update): the step goes against it.
    `averaging = a > 0` releases the mean of the iterates of the last `a` share of the rounds.

    The steps have the bits of PyTorch's optimizers, whose classes import the whole compiler when
    the first one is built: that takes as long as everything else before the first round.
    """

    def __init__(self, section: ServerSection, parameters: Tensor) -> None:
        self._section = section
        self._theta = parameters.detach().clone().to(torch.float32)
        self._momentum: Tensor | None = None
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
        rate = self._section.learning_rate * self._decay((round_number - 1) / rounds)
        # A step makes a new vector: what was broadcast stays what it was.
        if self._section.optimizer == "adam":
            self._theta = self._adam(gradient, rate)
        else:
            self._theta = self._theta.add(self._with_momentum(gradient), alpha=-rate)
        if self._section.averaging and round_number > (1 - self._section.averaging) * rounds:
            if self._averaged is None:
                self._averaged = torch.zeros_like(self._theta, dtype=torch.float64)
            self._averaged += self._theta
            self._count += 1

    def _with_momentum(self, gradient: Tensor) -> Tensor:
        if self._section.optimizer != "momentum":
            return gradient
        if self._momentum is None:
            self._momentum = gradient.clone()
        else:
            self._momentum.mul_(self._section.momentum).add_(gradient)
        return self._momentum

    def _adam(self, gradient: Tensor, rate: float) -> Tensor:
        """The parameters after a step of Adam (Kingma and Ba, ICLR 2015)."""
        beta1, beta2 = self._section.momentum, self._section.beta2
        mean, square = self._moments or (torch.zeros_like(gradient), torch.zeros_like(gradient))
        self._moments = mean, square
        self._steps += 1
        steps = float(self._steps)
        mean.lerp_(gradient, 1.0 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        scale = square.sqrt().div_(math.sqrt(1.0 - beta2**steps)).add_(1e-8)
        return self._theta.addcdiv(mean, scale, value=-rate / (1.0 - beta1**steps))

    def _decay(self, progress: float) -> float:
        left = {
            "constant": 1.0,
            "linear": 1.0 - progress,
            "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
        }[self._section.decay]
        return self._section.decay_to + (1.0 - self._section.decay_to) * left

    def state(self) -> dict[str, Any]:
        """Everything needed to go on: parameters, optimizer moments, running average."""
        return {name: getattr(self, f"_{name}") for name in KEPT}

    def restore(self, state: dict[str, Any]) -> None:
        """Undo to a saved `state`."""
        for name in KEPT:
            setattr(self, f"_{name}", state[name])

"""The server's step on the mean of the shuffled reports: post-processing, at no privacy cost."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fl_shuffle.config import ServerSection


class ServerOptimizer:
    """A `torch.optim` optimizer over one flat parameter vector, with decay and iterate averaging.

    A report points uphill (a gradient, or minus a local update): the step goes against it.
    `averaging = a > 0` releases the mean of the iterates of the last `a` share of the rounds.
    """

    def __init__(self, section: ServerSection, parameters: Tensor) -> None:
        self._section = section
        self._theta = parameters.detach().clone().to(torch.float32)
        self._theta.requires_grad_(True)
        rate = section.learning_rate
        self._torch: torch.optim.Optimizer
        if section.optimizer == "adam":
            self._torch = torch.optim.Adam(
                [self._theta], lr=rate, betas=(section.momentum, section.beta2)
            )
        else:
            momentum = section.momentum if section.optimizer == "momentum" else 0.0
            self._torch = torch.optim.SGD([self._theta], lr=rate, momentum=momentum)
        self._averaged = torch.zeros_like(self._theta, dtype=torch.float64)
        self._count = 0

    def current(self) -> Tensor:
        """The parameters that are broadcast, float32 [d]."""
        return self._theta.detach()

    def released(self) -> Tensor:
        """The parameters that are evaluated and saved: the averaged ones if averaging is on."""
        if not self._count:
            return self.current()
        return (self._averaged / self._count).to(torch.float32)

    def load(self, parameters: Tensor) -> None:
        """Start from other parameters."""
        with torch.no_grad():
            self._theta.copy_(parameters)

    def step(self, gradient: Tensor, round_number: int, rounds: int) -> None:
        """One step against `gradient`, in round `round_number` (from 1) of `rounds`."""
        for group in self._torch.param_groups:
            group["lr"] = self._section.learning_rate * self._decay((round_number - 1) / rounds)
        self._theta.grad = gradient
        self._torch.step()
        if self._section.averaging and round_number > (1 - self._section.averaging) * rounds:
            self._averaged += self._theta.detach()
            self._count += 1

    def _decay(self, progress: float) -> float:
        if self._section.decay == "linear":
            return 1.0 - progress
        if self._section.decay == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        return 1.0

    def state(self) -> dict[str, Any]:
        """Everything needed to go on: parameters, optimizer moments, running average."""
        return {
            "theta": self._theta.detach().clone(),
            "torch": self._torch.state_dict(),
            "averaged": self._averaged,
            "count": self._count,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Undo to a saved `state`."""
        self.load(state["theta"])
        self._torch.load_state_dict(state["torch"])
        self._averaged = state["averaged"]
        self._count = state["count"]

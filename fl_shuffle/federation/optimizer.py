"""The server's step on the mean of the shuffled reports: post-processing, at no privacy cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fl_shuffle.configuration.sections import OPTIMIZERS, ServerSection

KEPT = ("theta", "moments", "steps", "averaged", "count")
"""Of an optimizer's state, beside its momentum."""


class ServerOptimizer:
    """One step a round on one flat parameter vector, with a schedule and iterate averaging.

    A report points uphill (a gradient, or minus a local update): the step goes against it. With
    mean report g, divided by `report_unit`, learning rate eta, moments m and v:

    fedavg       x -= eta g
    fedavgm      m = beta1 m + g                                     x -= eta m
    fedadam      m = beta1 m + (1 - beta1) g
                 v = beta2 v + (1 - beta2) g^2                       x -= eta m' / (sqrt(v') + tau)
    fedyogi      m as there, v -= (1 - beta2) sign(v - g^2) g^2      x -= eta m / (sqrt(v) + tau)
    fedadagrad   v += g^2                                            x -= eta g / (sqrt(v) + tau)

    Sources: Hsu et al. 2019 (fedavgm) and Reddi et al. 2021, algorithm 2. As Flower does, fedadam
    divides both moments by what their start at zero lacks (m', v'). Yogi's v starts at tau^2.
    `averaging_fraction = a > 0` releases the mean of the iterates of the last `a` share of the
    rounds.

    The first three are PyTorch's functional optimizers: its classes import the whole compiler when
    the first one is built, which takes as long as everything else before the first round.

    It starts at `parameters`, or continues from what `state` of another one returned.
    `report_unit` is public: it is 1, or the clipping norm (`Config.report_unit`).
    """

    def __init__(
        self,
        section: ServerSection,
        parameters: Tensor,
        state: Mapping[str, Any] | None = None,
        *,
        report_unit: float = 1.0,
    ) -> None:
        self._section = section
        self._report_unit = report_unit
        self._theta = parameters.detach().clone().to(torch.float32)
        self._momentum: list[Tensor | None] = [None]
        self._moments: tuple[Tensor, ...] = ()
        self._steps = torch.zeros(())
        self._averaged: Tensor | None = None
        self._count = 0
        if state is not None:
            for name in KEPT:
                setattr(self, f"_{name}", state[name])
            self._momentum = [state["momentum"]]

    def current(self) -> Tensor:
        """Return the parameters that are broadcast, float32 [d]."""
        return self._theta

    def is_finite(self) -> bool:
        """Return whether every broadcast parameter is: a float64 sum of finite ones cannot
        overflow."""
        with np.errstate(invalid="ignore"):
            return math.isfinite(self._theta.numpy().sum(dtype=np.float64))

    def released(self) -> Tensor:
        """Return the parameters that are evaluated and saved: the averaged ones if averaging is
        on."""
        if self._averaged is None:
            return self.current()
        return (self._averaged / self._count).to(torch.float32)

    def load(self, parameters: Tensor) -> None:
        """Start from other parameters."""
        self._theta = parameters.detach().clone().to(torch.float32)

    def step(self, gradient: Tensor, round_number: int, rounds: int) -> None:
        """Take one step against `gradient`, in round `round_number` (from 1) of `rounds`."""
        section = self._section
        gradient = gradient / self._report_unit
        rate = section.learning_rate * self._schedule(round_number, rounds)
        # A step makes a new vector: what was broadcast stays what it was.
        theta = self._theta.clone()
        kind = OPTIMIZERS[section.optimizer]
        options: dict[str, Any] = {"lr": rate, "weight_decay": 0.0, "maximize": False}
        if kind == "adam":
            self._moments = self._moments or (torch.zeros_like(theta), torch.zeros_like(theta))
            first, second = ([moment] for moment in self._moments)
            options |= {"beta1": section.momentum, "beta2": section.beta2}
            options |= {"amsgrad": False, "eps": section.tau}
            adam([theta], [gradient], first, second, [], [self._steps], **options)
        elif kind in ("yogi", "adagrad"):
            theta -= rate * self._adaptive_direction(kind, gradient)
        else:
            momentum = section.momentum if kind == "momentum" else 0.0
            options |= {"momentum": momentum, "dampening": 0.0, "nesterov": False}
            sgd([theta], [gradient], self._momentum, **options)
        self._theta = theta
        if section.averaging_fraction and round_number > (1 - section.averaging_fraction) * rounds:
            if self._averaged is None:
                self._averaged = torch.zeros_like(theta, dtype=torch.float64)
            self._averaged += theta
            self._count += 1

    def _adaptive_direction(self, kind: str, gradient: Tensor) -> Tensor:
        """Return the step of Yogi or Adagrad for a learning rate of one, and keep its moments."""
        section = self._section
        squares = gradient.square()
        if kind == "adagrad":
            first, second = gradient, squares
            if self._moments:
                second = self._moments[1] + squares
        else:
            start = torch.zeros_like(gradient), torch.full_like(gradient, section.tau**2)
            first, second = self._moments or start
            first = torch.lerp(gradient, first, section.momentum)
            second = second - (1.0 - section.beta2) * torch.sign(second - squares) * squares
        self._moments = first, second
        return first / (second.sqrt() + section.tau)

    def _schedule(self, round_number: int, rounds: int) -> float:
        """Return the share of the learning rate in round `round_number` (from 1) of `rounds`."""
        warmup = min(self._section.warmup, rounds)
        if round_number <= warmup:
            return round_number / (warmup + 1)
        progress = (round_number - 1 - warmup) / (rounds - warmup)
        left = {
            "constant": 1.0,
            "linear": 1.0 - progress,
            "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
        }[self._section.lr_schedule]
        return self._section.lr_final_fraction + (1.0 - self._section.lr_final_fraction) * left

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on: parameters, optimizer moments, running average."""
        found = {name: getattr(self, f"_{name}") for name in KEPT}
        return {**found, "momentum": self._momentum[0]}

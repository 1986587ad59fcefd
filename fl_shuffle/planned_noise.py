"""From clipped means to reports, as a run's plan says.

The framework's own worker and the mod around a user's ClientApp both draw their noise here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.plugins import load_function
from fl_shuffle.randomizer_plan import RandomizerPlan, noise_bits
from fl_shuffle.randomizers.discrete.reports import SAMPLERS as DISCRETE
from fl_shuffle.randomizers.discrete.reports import discrete_reports_
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.randomizers.vector import NOISES, UserRandomizer, randomize_rows_
from fl_shuffle.seeds import SeedTree

log = logging.getLogger("fl_shuffle.client")

Ids = NDArray[np.int64]
Vector = NDArray[np.float64]


class PlannedNoise:
    """Turns clipped means into reports: weight, noise and grid of each client's plan.

    Noise is keyed by round and client, from the run's seed or the operating system's entropy.
    `bits`: of a noise word, see `noise_bits`, which is what is used unless another size is given.
    """

    def __init__(
        self, config: Config, plan: RandomizerPlan, budgets: Budgets, *, bits: int | None = None
    ) -> None:
        self._plan = plan
        self._bits = bits or noise_bits(config)
        self._seeds = SeedTree(config.run.seed if config.run.entropy == "seeded" else None)
        self._weighted = bool((plan.weight != 1.0).any())
        self._scale = common(plan.weight * plan.scale)
        self._step = common(plan.step)
        self._own = _own_randomizer(config, plan, budgets)

    def randomize_(self, rows: Tensor, clients: Ids, round_number: int) -> None:
        """In place: the clipped means [k, d] of these ascending clients become their reports."""
        stream = NoiseStream(
            self._seeds.key(round_number, "noise"),
            rows.shape[1],
            bits=self._bits,
            device=rows.device,
        )
        if self._own is not None:
            self._own(rows, clients, stream)
        else:
            self.weigh_(rows, clients)
            randomize_rows_(
                self._plan.noise,
                rows,
                int(clients[0]) if consecutive(clients) else clients,
                stream,
                scale=of(self._scale, clients),
                step=of(self._step, clients),
            )

    def weigh_(self, rows: Tensor, clients: Ids) -> None:
        """In place: means times their clients' weights."""
        if self._weighted:
            weight = torch.from_numpy(self._plan.weight[clients].astype(np.float32))
            rows *= weight[:, None].to(rows.device)


def _own_randomizer(
    config: Config, plan: RandomizerPlan, budgets: Budgets
) -> Callable[[Tensor, Ids, NoiseStream], None] | None:
    """Discrete noise, or the user's own randomizer, one client at a time with its budget."""
    if plan.noise in NOISES:
        return None
    if plan.noise in DISCRETE:
        return partial(_discrete_noise, plan)
    function = load_function(
        config.privacy.randomizer,
        *("mean", "epsilon0", "delta0", "generator"),
        field="privacy.randomizer",
    )

    def randomize(rows: Tensor, clients: Ids, stream: NoiseStream) -> None:
        for row, client in enumerate(clients.tolist()):
            own = UserRandomizer(
                function,
                float(budgets.epsilon[client]),
                float(budgets.delta[client]),
                bound=float(plan.user_bound),
            )
            try:
                own.randomize_(rows[row : row + 1], [client], stream)
            except FlShuffleError:
                raise
            except Exception as error:
                # That client alone has no report; its declared budget is about that as well.
                rows[row] = torch.nan
                what = f"{type(error).__name__}: {error}"
                log.warning("a client's randomizer raised, and it sends no report: %s", what)

    return randomize


def _discrete_noise(plan: RandomizerPlan, rows: Tensor, clients: Ids, stream: NoiseStream) -> None:
    scale, step = plan.scale[clients], plan.step[clients]
    discrete_reports_(
        plan.noise, rows, clients, stream, scale=(scale / step).astype(np.int64), step=step
    )


def common(values: Vector) -> float | Vector:
    """One number where all are equal: the kernels are then a little faster."""
    return float(values[0]) if bool((values == values[0]).all()) else values


def of(values: float | Vector, clients: Ids) -> float | Vector:
    """These clients' values, one number where they are equal."""
    return values if isinstance(values, float) else common(values[clients])


def consecutive(clients: Ids) -> bool:
    """Whether these ascending ids leave none out."""
    return int(clients[-1] - clients[0]) + 1 == len(clients)

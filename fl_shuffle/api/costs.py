"""Before a run: what a configuration will cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fl_shuffle.threads import with_one_blas_thread

if TYPE_CHECKING:
    from fl_shuffle.api.configs import ConfigLike
    from fl_shuffle.planner.cost import ClassCost


@dataclass(frozen=True)
class Cost:
    """What a run will cost, in nats at `delta`, for replacing one `unit` of the worst client.

    `certain`: every client takes part in every round, so `epsilon` is proven beforehand; otherwise
    it is exceeded with probability 1% at most, and the run counts what really happened.
    `proven_over_lower` is `epsilon` over what an attack certainly reaches (None: none that is
    known). `classes` has each class of clients, `noise` each one's local budget and scale, in the
    same order. `noise_of_mean` is the length of the noise of a round's mean report over its clip,
    for `dimension` numbers (None: only the run knows, and it is that of one number).
    `sum_add_remove` is `epsilon` where a unit is taken out instead of replaced, to compare with
    accountants of central DP-SGD: no guarantee (None: reports are seen, or it does not apply).
    `declared`: clients train privately themselves, nothing of it is proven, and the noise is that
    of steps over one record each.
    """

    epsilon: float
    delta: float
    rounds: int
    unit: str
    certain: bool
    proven_over_lower: float | None
    classes: tuple[ClassCost, ...]
    noise: tuple[Mapping[str, float], ...]
    dimension: int | None
    noise_of_mean: float | None
    sum_add_remove: float | None = None
    declared: bool = False


@with_one_blas_thread
def cost(config: ConfigLike, *, overrides: Mapping[str, Any] | None = None) -> Cost:
    """What a configuration will cost, before it is run; raises `FlShuffleError`.

    >>> cost("configs/digits_record.toml", overrides={"run.rounds": 2}).certain
    True
    """
    from fl_shuffle.accounting.add_remove import add_remove_of
    from fl_shuffle.api.configs import resolve_config
    from fl_shuffle.planner.cost import cost_of, cost_over_attack, plan_of

    resolved = resolve_config(config, overrides)
    plan, dimension = planned = plan_of(resolved)
    costs, kinds = cost_of(resolved, planned)
    aggregate = resolved.training.schedule == "aggregate"
    share, delta = resolved.training.participation, resolved.privacy.target_delta
    epsilon = max(each.epsilon for each in costs)
    summed = resolved.privacy.release == "sum"
    return Cost(
        epsilon=epsilon,
        delta=delta,
        rounds=resolved.run.rounds,
        unit=resolved.privacy.unit,
        certain=share == 1.0,
        proven_over_lower=cost_over_attack(costs),
        classes=tuple(costs),
        noise=tuple(kinds[each.index] for each in costs),
        dimension=dimension,
        noise_of_mean=plan.noise_of_mean(dimension or 1, share) if aggregate else None,
        sum_add_remove=add_remove_of(resolved.to_dict(), epsilon, delta) if summed else None,
        declared=resolved.privacy.randomizer == "declared",
    )

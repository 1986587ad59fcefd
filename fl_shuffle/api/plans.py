"""Before a run: what a configuration will cost, or the noise that reaches a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from fl_shuffle.errors import ConfigError
from fl_shuffle.threads import with_one_blas_thread

if TYPE_CHECKING:
    from fl_shuffle.accounting.queries.planned_cost import ClassCost
    from fl_shuffle.accounting.queries.planned_noise import NoisePlan
    from fl_shuffle.api.configs import ConfigLike


PLAN_OPTIONS = (
    *("noise", "clip", "unit", "records", "participation"),
    *("release", "assumed_honest"),
)


@dataclass(frozen=True)
class RunCost:
    """What a run will cost, in nats at `delta`, for replacing one `unit` of the worst client.

    `certain`: every client takes part in every round, so `epsilon` is proven beforehand; otherwise
    it is exceeded with probability 1% at most, and the run counts what really happened.
    `proven_over_lower` is `epsilon` over what an attack certainly reaches (None: none that is
    known). `classes` has each class of clients, `noise` each one's local budget and scale, in the
    same order.
    """

    epsilon: float
    delta: float
    rounds: int
    unit: str
    certain: bool
    proven_over_lower: float | None
    classes: tuple[ClassCost, ...]
    noise: tuple[Mapping[str, float], ...]


@overload
def plan(config: ConfigLike, *, overrides: Mapping[str, Any] | None = None) -> RunCost: ...


@overload
def plan(
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    clients: int | Sequence[tuple[float, int]],
    **options: Any,
) -> NoisePlan: ...


def plan(
    config: ConfigLike | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    rounds: int | None = None,
    clients: int | Sequence[tuple[float, int]] | None = None,
    **options: Any,
) -> RunCost | NoisePlan:
    """The cost of a configured run, or the noise for a target over a whole run.

    With a target, `clients` counts equal reports or lists (share of the clip, clients), and
    `options` are `noise`, `clip`, `unit`, `records` and `participation` of
    `fl_shuffle.accounting.queries.planned_noise.plan_noise`; with `release="sum"`, where only sums
    of reports leave, `clip`, `unit`, `records` and `assumed_honest` of
    `fl_shuffle.accounting.queries.planned_sums.plan_sum_noise`. Raises `FlShuffleError`.

    >>> plan("configs/digits_record.toml", overrides={"run.rounds": 2}).certain
    True
    >>> round(plan(epsilon=8.0, delta=1e-5, rounds=1, clients=50).epsilon, 2) <= 8.0
    True
    """
    target = {"epsilon": epsilon, "delta": delta, "rounds": rounds, "clients": clients}
    if config is not None:
        given = [*(name for name, value in target.items() if value is not None), *options]
        if given:
            raise ConfigError(
                f"{given[0]} belongs to a target, a configuration to a cost; give one of the two "
                "(a configuration is changed with overrides)"
            )
        return _cost(config, overrides)
    if overrides:
        raise ConfigError("overrides change a configuration; name one")
    missing = [name for name, value in target.items() if value is None]
    if missing:
        raise ConfigError(f"a target needs {', '.join(missing)} (or name a configuration)")
    assert epsilon is not None and delta is not None and rounds is not None and clients is not None
    return noise_for(epsilon, delta, rounds, clients, options)


@with_one_blas_thread
def noise_for(
    epsilon: float, delta: float, rounds: int, clients: Any, options: Mapping[str, Any]
) -> NoisePlan:
    """The noise for a target; see `plan` for the options."""
    from fl_shuffle.accounting.queries.planned_noise import plan_noise
    from fl_shuffle.accounting.queries.planned_sums import plan_sum_noise
    from fl_shuffle.errors import InvalidValueError, require_choice

    for name in options:
        require_choice("option of a plan", name, PLAN_OPTIONS)
    rest = dict(options)
    release = require_choice("release", rest.pop("release", "reports"), ("reports", "sum"))
    honest = rest.pop("assumed_honest", None)
    if release == "reports":
        if honest is not None:
            raise InvalidValueError("assumed_honest", honest, "needs release = 'sum'")
        return plan_noise(epsilon, delta, clients=clients, rounds=rounds, **rest)
    if rest.pop("noise", "gaussian") != "gaussian":
        raise ConfigError(
            "release = 'sum' is planned for Gaussian noise alone; what Laplace noise of a local "
            "budget costs says: fl-shuffle bound --release sum --randomizer laplace --epsilon0 X"
        )
    if rest.pop("participation", 1.0) != 1.0:
        raise ConfigError(
            "participation < 1 says that nobody knows who takes part; with release = 'sum' give "
            "the clients that report in a round"
        )
    return plan_sum_noise(
        epsilon, delta, clients=clients, rounds=rounds, assumed_honest=honest, **rest
    )


@with_one_blas_thread
def _cost(config: ConfigLike, overrides: Mapping[str, Any] | None) -> RunCost:
    from fl_shuffle.accounting.queries.planned_cost import cost_over_attack
    from fl_shuffle.api.configs import resolve_config
    from fl_shuffle.tasks.cost import cost_of

    resolved = resolve_config(config, overrides)
    costs, kinds = cost_of(resolved)
    return RunCost(
        epsilon=max(cost.epsilon for cost in costs),
        delta=resolved.privacy.target_delta,
        rounds=resolved.run.rounds,
        unit=resolved.privacy.unit,
        certain=resolved.training.participation == 1.0,
        proven_over_lower=cost_over_attack(costs),
        classes=tuple(costs),
        noise=tuple(kinds[cost.index] for cost in costs),
    )

"""The pool of Ray actors without Ray: what is lost is asked of another actor, and only that.

And when Flower is asked how the run stands.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

pytest.importorskip("ray")

from flwr.simulation.ray_transport import ray_actor

from fl_shuffle.flower.on_ray import pool as ray_pool
from fl_shuffle.flower.on_ray.pool import ATTEMPTS, LastingPool
from fl_shuffle.flower.settings import SIMULATION_VARIABLE


class Lost(ray_pool.ray.exceptions.RayError):
    pass


class AppRaised(ray_pool.ray.exceptions.RayTaskError):
    def __init__(self) -> None:
        Exception.__init__(self, "the app's doing")


class Actor:
    """Answers with its own name, unless told otherwise."""

    made: ClassVar[list[Actor]] = []

    def __init__(self) -> None:
        self.name = len(self.made)
        self.dead = False
        self.made.append(self)


class ActorType:
    asked: ClassVar[dict[str, Any]] = {}

    def options(self, **options: Any) -> ActorType:
        ActorType.asked = options
        return self

    def remote(self) -> Actor:
        return Actor()


class Future:
    def __init__(self, actor: Actor, message: Any) -> None:
        self.actor, self.message = actor, message


def call(actor: Actor, app: Any, message: Any, cid: str, context: Any) -> Future:
    return Future(actor, message)


def get(future: Future) -> tuple[str, Any, Any]:
    if future.message == "deadly":
        future.actor.dead = True
    if future.actor.dead:
        raise Lost
    if future.message == "raises":
        raise AppRaised
    return "0", future.actor.name, "context"


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> LastingPool:
    Actor.made = []
    monkeypatch.setattr(ray_pool.ray, "get", get)
    for module in (ray_pool, ray_actor):
        monkeypatch.setattr(module, "pool_size_from_resources", lambda resources: 2)
    found = LastingPool(ActorType(), {"num_cpus": 1}, {})
    found.add_actors_to_pool(3)
    return found


def ask(pool: LastingPool, message: str = "") -> Any:
    """As `RayBackend.process_message` does."""
    future = None
    try:
        future = pool.submit(call, (None, message, "0", None))
        return pool.fetch_result_and_return_actor_to_pool(future)[0]
    except Exception:
        if future is not None:
            pool.add_actor_back_to_pool(future)
        raise


def test_a_dead_actor_is_asked_once(pool: LastingPool) -> None:
    Actor.made[2].dead = True  # the one that is on top
    assert [ask(pool) for _ in range(5)] == [1, 1, 1, 1, 1]
    assert pool.num_actors == 2 and len(pool.pool) == 2
    assert not pool._future_to_actor and not pool._jobs


def test_a_request_that_kills_actors_does_not_kill_them_all(pool: LastingPool) -> None:
    pool.add_actors_to_pool(2)
    with pytest.raises(Lost):
        ask(pool, "deadly")
    assert pool.num_actors == 5 - ATTEMPTS
    assert ask(pool) in (0, 1)


def test_what_the_app_raises_costs_no_actor(pool: LastingPool) -> None:
    for _ in range(4):
        with pytest.raises(AppRaised):
            ask(pool, "raises")
    assert pool.num_actors == 3 and len(pool.pool) == 3 and not pool._jobs


def test_when_none_is_left_new_ones_are_made(pool: LastingPool) -> None:
    for actor in Actor.made:
        actor.dead = True
    with pytest.raises(Lost):
        ask(pool)  # as often as a request is tried
    assert pool.num_actors == 0
    assert ask(pool) in (3, 4)
    assert pool.num_actors == 2


def test_actors_know_that_they_simulate(pool: LastingPool) -> None:
    assert ActorType.asked["runtime_env"] == {"env_vars": {SIMULATION_VARIABLE: "1"}}
    assert ActorType.asked["num_cpus"] == 1

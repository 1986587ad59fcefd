"""The Ray actors that play the nodes of a simulation, on one machine or a cluster.

Flower puts an actor back into its pool when its machine has died, and hands it the next request:
it fails at once, and so does every other that it is handed. Here a request that an actor took with
it goes to another one, and the actor is not asked again. Reports are functions of seed, round and
client, or were never seen by anybody: computing one anew changes nothing.

Flower's pool and threads are private (1.41): they are touched here alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import ray
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.ray_transport.ray_actor import BasicActorPool, pool_size_from_resources

from fl_shuffle.flower.settings import SIMULATION_VARIABLE

ATTEMPTS = 3
"""So often a request is tried: what it carries may be what kills the actors."""
MOST_THREADS = 4096
"""Flower asks as many actors at a time as it has threads; else that is four more than the head has
processors."""

Job = tuple[Callable[[], Any], Any, str, Any]


def install() -> None:
    """Have the Simulation Engine of this process use what is here."""
    threads = partial(ThreadPoolExecutor, max_workers=MOST_THREADS)
    for module, name, ours in (
        (raybackend, "BasicActorPool", LastingPool),
        (vce_api, "ThreadPoolExecutor", threads),
    ):
        setattr(module, name, ours)


class LastingPool(BasicActorPool):
    """A pool that outlives its actors, spread over the machines of the cluster.

    They are told that they simulate, wherever they run: a SuperNode never is.
    """

    def __init__(
        self,
        actor_type: Any,
        client_resources: dict[str, int | float],
        actor_kwargs: dict[str, Any],
    ) -> None:
        super().__init__(actor_type, client_resources, actor_kwargs)
        options = {
            **client_resources,
            "runtime_env": {"env_vars": {SIMULATION_VARIABLE: "1"}},
            "scheduling_strategy": "SPREAD",
        }
        self.create_actor_fn = lambda: actor_type.options(**options).remote(**(actor_kwargs or {}))
        self._changed = threading.Condition()
        self._jobs: dict[Any, tuple[Any, Job, int]] = {}

    def submit(self, actor_fn: Any, job: Job, attempt: int = 1) -> Any:
        """Hand the job to an idle actor, or to the first that will be; returns its future."""
        with self._changed:
            while not self.pool:
                if self.num_actors == 0:
                    # Only processes died, or nobody is left: then this raises.
                    self.add_actors_to_pool(pool_size_from_resources(self.client_resources))
                else:
                    self._changed.wait()
            future = super().submit(actor_fn, job)
            self._jobs[future] = actor_fn, job, attempt
            return future

    def add_actor_back_to_pool(self, future: Any) -> None:
        """The actor is idle again; nothing for a future that is known to be lost or done."""
        with self._changed:
            if self._jobs.pop(future, None) is not None:
                super().add_actor_back_to_pool(future)
                self._changed.notify()

    def fetch_result_and_return_actor_to_pool(self, future: Any) -> tuple[Any, Any]:
        """Wait for the reply and the node's context; what was lost is asked of another actor."""
        while True:
            try:
                _, reply, context = ray.get(future)
            except ray.exceptions.RayTaskError:
                # The app's own doing.
                self.add_actor_back_to_pool(future)
                raise
            except ray.exceptions.RayError:
                actor_fn, job, attempt = self._lose(future)
                if attempt == ATTEMPTS:
                    raise
                future = self.submit(actor_fn, job, attempt + 1)
                continue
            self.add_actor_back_to_pool(future)
            return reply, context

    def _lose(self, future: Any) -> tuple[Any, Job, int]:
        """Forget the actor; returns what it was doing."""
        with self._changed:
            del self._future_to_actor[future]
            self.num_actors -= 1
            self._changed.notify_all()
            return self._jobs.pop(future)

"""Ray plays the nodes: in processes of this machine, or of a cluster.

The in-process engine, but each request is a task of Ray's, which starts its processes, ends them
with this one, and spreads tasks over the machines.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

import ray
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_shuffle._internal.plugins import load_function
from fl_shuffle.errors import FlShuffleError, RunError
from fl_shuffle.flower.client_logs import LogRecords, kept_from_disk, private_files, say_here
from fl_shuffle.flower.grid import SHOWN, InProcessGrid, NamedError, reply_of
from fl_shuffle.flower.private_api import adopt_task_identity

ATTEMPTS = 3
"""So often a request is tried: what it carries may be what kills the processes."""
CONNECT_SECONDS = 2.0
"""Who does not answer by then is not there: Ray itself would try for minutes."""


class RayGrid(InProcessGrid):
    """Plays `nodes` Flower nodes in as many processes of Ray's.

    What a process that dies was computing is asked of another one, `ATTEMPTS` times at most:
    reports are functions of seed, round and client, or were never seen by anybody. `address` is
    that of a cluster; empty: a Ray of this process's own. Raises `RunError` where none can be
    joined.
    """

    far = True

    def __init__(
        self,
        address: str,
        client_app: str,
        run_config: Mapping[str, object],
        nodes: int,
        *,
        trusted: bool,
        observer: Callable[[Any], None],
    ) -> None:
        """Start a grid for `client_app`, which is `module:attribute`."""
        if address not in ("", "auto"):
            _require_listening(address)
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, os.getcwd()]))}
        try:
            with private_files():
                ray.init(
                    address or "local",
                    num_cpus=None if address else nodes,
                    include_dashboard=None if address else False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={"env_vars": variables},
                )
        except (OSError, ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())[:SHOWN]
            raise RunError(
                f"run.ray_address = {address!r}: no Ray can be joined there: {said}"
            ) from None
        self._play = ray.remote(_played).options(
            num_cpus=1, max_retries=ATTEMPTS - 1, scheduling_strategy="SPREAD"
        )
        self._path = client_app
        super().__init__(ClientApp(), run_config, nodes, trusted=trusted, observer=observer)

    def close(self) -> None:
        """Stop threads and processes."""
        super().close()
        ray.shutdown()

    def _reply(self, message: Message, context: Context) -> Message:
        try:
            task = self._play.remote(self._path, message, context, self._trusted)
            reply, context.state, said = ray.get(task)
        except ray.exceptions.RayError as error:
            return Message(NamedError(f"died with {type(error).__name__}"), reply_to=message)
        say_here(said)
        if not isinstance(reply, Message):
            raise RunError(reply)
        return reply


def _require_listening(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError):
        raise RunError(
            f"run.ray_address (or RAY_ADDRESS) = {address!r}: no Ray cluster answers there; it "
            "must be "
            "HOST:PORT of a cluster's head (ray start --head --port=PORT), or auto"
        ) from None


def _played(
    path: str, message: Message, context: Context, trusted: bool
) -> tuple[Message | str, RecordDict, LogRecords]:
    """Return the app's reply, its new state and what it logged, in one of Ray's processes; a text
    instead of a reply says what the user has to mend."""
    torch.set_num_threads(1)
    adopt_task_identity(context.run_id)
    with kept_from_disk() as said:
        try:
            app = load_function(path, "message", "context", field="app.client")
            return reply_of(app, message, context, trusted=trusted), context.state, said
        except FlShuffleError as error:
            return str(error), context.state, said

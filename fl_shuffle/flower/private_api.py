"""Everything of Flower that its documentation does not promise, in one module.

Tried with Flower 1.40, 1.41, and 1.42, the versions that `pyproject.toml` allows. A contract test
(`tests/flower/test_private_api.py`) checks each use; execute it before a newer Flower is allowed.

- `_run_simulation` is the Simulation Runtime's entry. The public `run_simulation` takes neither an
  app's folder nor a run's settings.
- `Run`, `NOOP_FEDERATION_ID`, and `TaskIdentity` stand for what a SuperLink assigns: a message that
  is built outside of a SuperLink's process names no sender without them.
- `get_fused_config_from_dir` merges an app's settings with those of a run.
- `LocalArray` stands for an `Array` without being made as one: Flower's object store knows the kind
  of an object by the name of its class.
- `CLIENT_APP_RAISED` is Flower's code of the error reply of an app that raised.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Mapping
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, Context, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.serverapp import ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

__all__ = [
    "CLIENT_APP_RAISED",
    "LocalArray",
    "Run",
    "UserConfig",
    "adopt_task_identity",
    "new_run",
    "run_app",
    "stamp",
]

CLIENT_APP_RAISED = 2
"""Code of the error reply of a ClientApp that raised."""

_message_number = itertools.count(1)
_name_of = lru_cache(maxsize=64)(str)
"""Of a type: NumPy puts it together anew each time."""


class LocalArray(Array):
    """An `Array` that holds a NumPy array and serializes it only if its bytes are asked for.

    Inside one process a report then travels by reference: the client gives its array away. What is
    `shared` (a model that goes to many clients) is copied for each reader, so that none can change
    what another sees.
    """

    def __init__(self, values: NDArray[Any], *, shared: bool) -> None:
        self.dtype = _name_of(values.dtype)
        self.shape = tuple(values.shape)
        self.stype = "numpy.ndarray"
        self.values = values  # for who only reads
        self._shared = shared

    @cached_property
    def data(self) -> bytes:  # type: ignore[override]
        buffer = BytesIO()
        np.save(buffer, self.values, allow_pickle=False)
        return buffer.getvalue()

    def numpy(self) -> NDArray[Any]:
        """Return the array itself, or a copy of a shared one."""
        return self.values.copy() if self._shared else self.values

    def __reduce__(self) -> tuple[Any, ...]:
        return (Array, (self.dtype, self.shape, self.stype, self.data))


# The object store keys its objects by class name: this class has the name of what it stands for.
LocalArray.__qualname__ = Array.__qualname__


def new_run() -> Run:
    """Return a run with a random number, as a SuperLink would create it."""
    return Run.create_empty(run_id=secrets.randbits(62))


def adopt_task_identity(run_id: int) -> None:
    """Make this process the sender of the messages that it builds."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, 1, run_id


def stamp(message: Message) -> Message:
    """Give a message an identifier, as a SuperLink would, and return it."""
    # Not a random one: a system call would hand the interpreter to a worker that just started.
    message.metadata.__dict__["_message_id"] = f"{next(_message_number):032x}"
    return message


def run_app(
    folder: Path,
    client_app: str,
    server_app: ServerApp,
    settings: Mapping[str, str],
    backend: dict[str, Any],
    nodes: int,
) -> None:
    """Execute the app in `folder` on Flower's Simulation Runtime, in this process.

    Parameters
    ----------
    folder : Path
        Folder of the app, which holds its `pyproject.toml`.
    client_app : str
        The ClientApp as `module:attribute`.
    server_app : ServerApp
        The ServerApp, called in a thread of this process.
    settings : mapping
        Settings of this run, over those of the app.
    backend : dict
        Arguments of Ray, and the resources of a client.
    nodes : int
        Number of simulated SuperNodes.
    """
    # The runtime imports Ray, which the in-process engine does without.
    from flwr.common.config import get_fused_config_from_dir
    from flwr.simulation.run_simulation import _run_simulation
    from flwr.supercore import telemetry
    from flwr.supercore.constant import NOOP_FEDERATION_ID

    # A run needs no network, unless the user has asked for telemetry. This process has read the
    # variable already; the runtime's other processes read it when they start.
    telemetry.FLWR_TELEMETRY_ENABLED = os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    run = new_run()
    run.primary_task_id, run.federation_id = run.run_id, NOOP_FEDERATION_ID
    run.override_config = dict(settings)
    adopt_task_identity(run.run_id)
    fused = get_fused_config_from_dir(folder, run.override_config)
    _run_simulation(
        num_supernodes=nodes,
        exit_event=telemetry.EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
        server_app=server_app,
        client_app_attr=client_app,
        server_app_context=Context(run.run_id, 0, {}, RecordDict(), fused),
        backend_config=backend,
        app_dir=str(folder),
        is_app=True,
        run=run,
    )

"""Starting a run: the configured Flower apps in this process or on Ray, or those of a folder on
Flower's Simulation Runtime."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_shuffle._internal.plugins import load_function, require_extra
from fl_shuffle.configuration.reading import parse_config, set_value
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError
from fl_shuffle.runs.directory import RunPlace
from fl_shuffle.runs.events import Observer, Preparing, unobserved

if TYPE_CHECKING:
    from fl_shuffle.flower.grid import InProcessGrid


def simulate(
    config: Config, place: RunPlace | None = None, observer: Observer = unobserved
) -> None:
    """Run the configuration to its end, by default in a new directory below `run.out`.

    `observer` is called with every event of the run; what it raises ends the run. Raises
    `FlShuffleError` for everything the user can put right.
    """
    if config.run.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("run.device = 'cuda': this machine has no usable GPU; use cpu")
    if config.run.supernodes:
        raise ConfigError(
            f"run.supernodes = {config.run.supernodes!r} has no effect: a simulation has no "
            "SuperNodes; leave it out"
        )
    if config.privacy.shuffler == "separate":
        raise ConfigError(
            "privacy.shuffler = 'separate': a simulation runs all parties in one process; use "
            "'server', or deploy it (docs/how-to/separate-shuffler.md)"
        )
    from fl_shuffle.flower.settings import with_app_config

    place = place or RunPlace()
    config = with_app_config(_absolute_paths(config), Path.cwd())
    if config.run.engine != "in-process":
        require_extra("ray", "ray", f"run.engine = {config.run.engine!r}")
        _set_up_ray(own=not _ray_address(config))
    _play(config, place, observer)


def _play(config: Config, place: RunPlace, observer: Observer) -> None:
    from flwr.app import Context, RecordDict

    from fl_shuffle.flower.settings import RESOLVED, SIMULATED

    run_config: dict[str, Any] = {
        **config.app.config, RESOLVED: config.to_json(), **place.run_config()
    }  # fmt: skip
    if config.run.engine == "flwr":
        from fl_shuffle.flower.simulation_runtime import PASSED, play_app

        settings = {key: run_config[key] for key in PASSED}
        play_app(Path.cwd(), settings, worker_count(config), observer)
        return
    server_app = load_function(config.app.server, "grid", "context", field="app.server")
    grid = _grid(config, run_config, observer)
    context = Context(grid.run.run_id, 1, {SIMULATED: True}, RecordDict(), run_config)
    clients = logging.getLogger("fl_shuffle.client")
    # If the user has configured logging, that configuration decides who receives them.
    heard = logging.NullHandler() if clients.hasHandlers() else _FirstOfAKind()
    clients.addHandler(heard)
    try:
        server_app(grid, context)
    finally:
        clients.removeHandler(heard)
        grid.close()


def _grid(config: Config, run_config: dict[str, Any], observer: Observer) -> InProcessGrid:
    """Return the nodes: on threads, or in Ray's processes."""
    path = client_app_of(config)
    client_app = load_function(path, "message", "context", field="app.client")
    nodes, trusted = worker_count(config), not config.app.custom_client
    if config.run.engine == "in-process":
        from fl_shuffle.flower.grid import InProcessGrid

        return InProcessGrid(client_app, run_config, nodes, trusted=trusted, observer=observer)
    from fl_shuffle.flower.ray_grid import RayGrid

    address = _ray_address(config)
    if address and not config.run.jobs:
        raise ConfigError(
            "run.jobs is missing: set the number of workers that run the clients on a Ray cluster, "
            "for example its number of processors"
        )
    observer(Preparing("starting Ray"))
    return RayGrid(address, path, run_config, nodes, trusted=trusted, observer=observer)


def client_app_of(config: Config) -> str:
    """Return the ClientApp of a simulation as `module:attribute`: the configured one, or that of
    clients who make no reports."""
    if config.app.custom_client or not config.run.aggregate_noise:
        return config.app.client
    from fl_shuffle.flower import aggregate_client

    return f"{aggregate_client.__name__}:app"


def _ray_address(config: Config) -> str:
    """Return the address of a cluster; empty: a Ray of this process's own."""
    joins = config.run.engine == "ray"
    return config.run.ray_address or os.environ.get("RAY_ADDRESS", "") if joins else ""


def _set_up_ray(own: bool) -> None:
    """Set what Ray reads from the environment while it is loaded and started."""
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if own:
        # Else its helpers look a minute for a head that was killed with this process.
        settings["RAY_gcs_rpc_server_reconnect_timeout_s"] = "10"
    for name, value in settings.items():
        os.environ.setdefault(name, value)


class _FirstOfAKind(logging.Handler):
    """Prints to the terminal, each kind of message once: clients repeat themselves every round.

    In a simulation their data are the user's own; nothing of it may reach the run directory.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg) not in self._said:
            self._said.add(str(record.msg))
            # Tracebacks only where they are asked for: what was raised is counted where it matters.
            if record.exc_info and logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
                traceback.print_exception(record.exc_info[1])
            print(f"{record.levelname.lower()}: {record.getMessage()}", file=sys.stderr)


def worker_count(config: Config) -> int:
    """Return `run.jobs`, or as many workers as pay: one for sequential rounds and small
    populations."""
    if config.run.jobs:
        return config.run.jobs
    if config.training.schedule == "sequential":
        return 1
    return max(1, min(os.cpu_count() or 1, config.data.clients // 8))


def _absolute_paths(config: Config) -> Config:
    """Return paths as absolute ones: Flower's engines run the apps in other working directories."""
    root = config.data.root or os.environ.get("FL_SHUFFLE_DATA", "")
    named = {"data.root": root, "budgets.file": config.budgets.file}
    tables = config.to_dict()
    for field, path in named.items():
        set_value(tables, field, str(Path(path).resolve()) if path else path)
    return parse_config(tables)

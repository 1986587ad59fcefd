"""`run.engine = "flwr"`: the Flower app in a folder on Flower's Simulation Runtime, as `flwr run .`
plays it, but in this process: with its settings, its display and its end.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, current_thread, main_thread
from types import FrameType
from typing import Any, NoReturn

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fl_shuffle._internal.plugins import load_function
from fl_shuffle.errors import ConfigError, RunError
from fl_shuffle.flower.client_logs import private_files
from fl_shuffle.flower.private_api import run_app
from fl_shuffle.flower.settings import RESOLVED, app_tables

PASSED = (RESOLVED, "run-directory", "resume")
"""What the app is told of a run: Flower takes only keys that the app's pyproject.toml has."""


def play_app(
    folder: Path, run_config: Mapping[str, str], nodes: int, observer: Callable[[Any], None]
) -> None:
    """Play the app in `folder` to its end, on `nodes` of Ray's processes, with these settings.

    `observer` gets the run's events. Raises what its ServerApp raises, `ConfigError` for a folder
    without such an app, and `RunError` where the runtime fails; on an interrupt the ServerApp ends
    first.
    """
    server_app = load_function(_component(folder), "grid", "context", field="serverapp")
    begun, interrupted, ended = Event(), Event(), Event()
    raised: list[BaseException] = []
    watched = ServerApp()

    @watched.main()
    def main(grid: Grid, context: Context) -> None:
        begun.set()
        pull = grid.pull_messages

        def pull_messages(identifiers: Iterable[str]) -> Iterable[Message]:
            found = pull(identifiers)
            # After it: replies may be those of nodes that the interrupt has ended.
            if interrupted.is_set():
                raise KeyboardInterrupt
            return found

        grid.pull_messages = pull_messages  # type: ignore
        grid.observer = observer  # type: ignore[attr-defined]
        try:
            server_app(grid, context)
        except BaseException as error:
            raised.append(error)
        finally:
            ended.set()

    try:
        with _set_on_interrupt(interrupted):
            _simulate(folder, run_config, nodes, watched)
    except KeyboardInterrupt:
        interrupted.set()
        if begun.is_set():
            ended.wait()
        raise (raised or [KeyboardInterrupt()])[0] from None
    except Exception as error:
        if not raised:
            raise RunError(f"Flower's Simulation Runtime failed: {error}") from error
    if raised:
        raise raised[0]


@contextmanager
def _set_on_interrupt(interrupted: Event) -> Iterator[None]:
    """Set `interrupted` at Ctrl-C within it, before anything else ends; other threads never get
    it."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or current_thread() is not main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        interrupted.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _simulate(folder: Path, run_config: Mapping[str, str], nodes: int, server: ServerApp) -> None:
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.ERROR)
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    backend: dict[str, Any] = {
        "init_args": {"address": "local", "num_cpus": nodes, **quiet},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    try:
        with private_files():
            client_app = app_tables(folder)["components"]["clientapp"]
            run_app(folder, client_app, server, run_config, backend, nodes)
    finally:
        log.setLevel(level)


def _component(folder: Path) -> str:
    """Return the app's ServerApp; raises `ConfigError` where it would not get this run's
    settings."""
    app, file = app_tables(folder), folder / "pyproject.toml"
    if not app:
        raise ConfigError(
            f"run.engine = 'flwr' needs a Flower app, but {file} names none; go to the app's "
            "folder (`fl-shuffle new NAME` writes one), or use 'ray'"
        )
    missing = [key for key in PASSED if key not in app.get("config", {})]
    if missing:
        lines = ", ".join(f'{key} = ""' for key in missing)
        raise ConfigError(
            f"{file}: Flower takes only what [tool.flwr.app.config] has; add there: {lines}"
        )
    return str(app["components"]["serverapp"])

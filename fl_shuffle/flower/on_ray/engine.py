"""Running apps on Flower's Simulation Engine (Ray), from start to a checked end: the configured
ones (`run.engine = "ray"`), or those of the folder that one stands in, by `flwr run .` ("flwr").

`flwr run` exits with 0 even when the app failed, so the run's status is asked for. Every process
started here ends with this one, however that ends: a keeper (`keeper.py`) sees to it, and the run
itself looks after every round whether this process still holds the lease of the private folder, in
which all Flower state lives.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError, FlShuffleError, RunError
from fl_shuffle.flower.event_file import EVENTS, EventReader, append_event, lease
from fl_shuffle.flower.settings import RESOLVED, SIMULATION_VARIABLE, app_tables

OFFLINE = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
CONNECTION = "fl-shuffle"
PASSED = (RESOLVED, "run-directory", "resume")
"""What `flwr run` is told of a run: Flower takes only keys that the app's pyproject.toml has."""
APP = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "fl-shuffle-run"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fl-shuffle"
fab-include = ["*.py"]

[tool.flwr.app.components]
serverapp = "fl_shuffle_run_server:app"
clientapp = "fl_shuffle_run_client:app"

[tool.flwr.app.config]
resolved = ""
run-directory = ""
resume = ""
"""
"""An app of two lines that starts the configured ones."""
START_SECONDS = 240.0
"""A SuperLink that does not listen by then will not, however busy the machine."""
CONNECT_SECONDS = 2.0
"""What does not answer by then is not there; here it does at once."""
RAY_ADDRESS = "RAY_ADDRESS"
"""Ray's own variable. Without any address it would join whatever cluster this machine last ran."""
POLL_SECONDS = 0.5
"""Pause between two looks at what the run tells of itself."""
FIRST_QUESTION_SECONDS, LONGEST_PAUSE_SECONDS = 4.0, 10.0
"""When Flower is asked for the status: every answer costs seconds of a processor."""
SAID = re.compile(r"\bfl_shuffle\.errors\.\w+: (.+)")
"""How Flower's log ends where the user can put right what was wrong."""


def ray_address(config: Config) -> str:
    """The cluster to join: the configuration's, else `RAY_ADDRESS` of the environment; "": none.

    Raises `RunError` for one that this machine cannot be a part of, or where nobody listens.
    """
    address = config.run.ray_address or os.environ.get(RAY_ADDRESS, "")
    if address in ("", "auto", "local"):
        return "" if address == "local" else address
    host, _, port = address.rpartition(":")
    name = "run.ray_address" if config.run.ray_address else f"the environment's {RAY_ADDRESS}"
    if "://" in address or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise RunError(
            f"{name} = {address!r}: must be HOST:PORT of the cluster's head, or auto; the machine "
            "that starts the run must have joined it (ray start --address HOST:PORT)"
        )
    if not _listens(int(port), host):
        raise RunError(
            f"{name} = {address!r}: nobody listens there; start the head with "
            f"ray start --head --port={port}"
        )
    return address


def run_on_ray(
    config: Config,
    run_config: Mapping[str, str],
    directory: Path,
    *,
    nodes: int,
    observer: Callable[[Any], None],
) -> None:
    """Run to the end on `nodes` Flower nodes. `run_config` names `directory`.

    `observer` gets the run's events; what it raises ends the run. Raises `RunError` if the engine
    cannot be started or the run failed. What Flower, Ray and the clients print may quote private
    records: it goes to a private temporary folder, never to the run directory, and is kept only if
    the run failed; the error says where.
    """
    home = tempfile.mkdtemp(prefix="fl-shuffle-flwr-")
    keep = Path(tempfile.mkdtemp(prefix="fl-shuffle-log-")) / "engine.log"
    failed = False
    try:
        _run(config, run_config, directory, Path(home), keep, nodes, observer)
    except RunError:
        failed = True
        raise
    finally:
        shutil.rmtree(home, ignore_errors=True)
        if not failed:
            shutil.rmtree(keep.parent, ignore_errors=True)


def _run(
    config: Config,
    run_config: Mapping[str, str],
    directory: Path,
    home: Path,
    log_file: Path,
    nodes: int,
    observer: Callable[[Any], None],
) -> None:
    events = home / "events"
    reader = EventReader(events)

    failures: list[RunError] = []

    def tell() -> bool:
        for event in reader.unread():
            if isinstance(event, RunError):
                failures.append(event)
            else:
                observer(event)
        return (directory / "summary.json").is_file()

    with log_file.open("w", encoding="utf-8") as log:
        # Flower's programs start one another by name.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        environment = {**os.environ, **OFFLINE, "FLWR_HOME": str(home), "PATH": path}
        environment[SIMULATION_VARIABLE] = "1"
        environment["PYTHONPATH"] = _python_path()
        environment[RAY_ADDRESS] = ray_address(config) or "local"
        environment[EVENTS] = str(events)
        values = {RESOLVED: config.to_json(), **run_config}
        with lease(home), _superlink(home, environment, log):
            app = Path.cwd() if config.run.engine == "flwr" else _write_app(config, home / "app")
            run_id = _submit(app, values, home, environment, nodes, log)
            status = _wait(run_id, home, environment, tell)
            log.write(f"status: {status}\n")
            _flwr(["log", run_id, CONNECTION, "--show"], home, environment, log)
    if status != "finished:completed" or not (directory / "summary.json").is_file():
        said = [str(each) for each in failures] or SAID.findall(log_file.read_text("utf-8"))
        why = f": {said[-1]}" if said else ""
        raise RunError(f"the Ray run failed{why}; its log is in {log_file}")


@contextmanager
def _superlink(home: Path, environment: dict[str, str], log: Any) -> Iterator[None]:
    port = _free_port()
    command = [
        sys.executable,
        "-I",
        str(Path(__file__).with_name("keeper.py")),
        str(os.getpid()),
        str(home),
        _program("flower-superlink"),
        "--insecure",
        "--simulation",
        "--disable-runtime-dependency-installation",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    (home / "config.toml").write_text(
        f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n',
        encoding="utf-8",
    )
    # In a session of its own: what ends this process and its terminal leaves it the time it needs.
    process = subprocess.Popen(
        command, env=environment, stdout=log, stderr=log, start_new_session=True
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RunError(f"Flower's SuperLink did not start; see {log.name}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def _submit(
    app: Path,
    run_config: Mapping[str, str],
    home: Path,
    environment: dict[str, str],
    nodes: int,
    log: Any,
) -> str:
    settings = home / "run-config.toml"
    settings.write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in run_config.items()),
        encoding="utf-8",
    )
    answer = _flwr(
        [
            "run",
            str(app),
            CONNECTION,
            "--run-config",
            str(settings),
            "--federation-config",
            f"num-supernodes={nodes} client-resources-num-cpus=1",
            "--format",
            "json",
        ],
        home,
        environment,
        log,
    )
    try:
        return str(json.loads(answer[answer.index("{") :])["run-id"])
    except (ValueError, KeyError):
        raise RunError(f"Flower did not accept the run: {answer.strip()[:300]}") from None


def _write_app(config: Config, folder: Path) -> Path:
    """An app folder for `flwr run` whose components are the configured apps."""
    folder.mkdir()
    own = "".join(f"{json.dumps(k)} = {json.dumps(v)}\n" for k, v in config.app.config.items())
    (folder / "pyproject.toml").write_text(APP + own, encoding="utf-8")
    # The client's side is loaded before the engine makes its actors.
    pool = "from fl_shuffle.flower.on_ray.pool import install\n\ninstall()\n"
    heard = (
        "from fl_shuffle.flower.on_ray.engine import that_says_why\n\napp = that_says_why(app)\n"
    )
    for side, path, before, after in (
        ("server", config.app.server, "", heard),
        ("client", config.app.client, pool, ""),
    ):
        (folder / f"fl_shuffle_run_{side}.py").write_text(
            f"from fl_shuffle.plugins import load_attribute\n{before}\n"
            f"app = load_attribute({path!r}, field='app.{side}')\n{after}",
            encoding="utf-8",
        )
    return folder


def require_app(folder: Path) -> None:
    """Raise `ConfigError` if `flwr run` of the folder would not get this run's settings."""
    app = app_tables(folder)
    if not app:
        raise ConfigError(
            f"run.engine = 'flwr' is `flwr run .`, and {folder / 'pyproject.toml'} names no Flower "
            "app; go to the app's folder (`fl-shuffle new NAME` writes one), or use 'ray'"
        )
    missing = [key for key in PASSED if key not in app.get("config", {})]
    if missing:
        lines = ", ".join(f'{key} = ""' for key in missing)
        raise ConfigError(
            f"{folder / 'pyproject.toml'}: `flwr run` takes only settings that "
            f"[tool.flwr.app.config] has; add there: {lines}"
        )


def that_says_why(app: Callable[[Grid, Context], None]) -> ServerApp:
    """The ServerApp, which tells who reads its events what the user can put right."""
    heard = ServerApp()

    @heard.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            app(grid, context)
        except FlShuffleError as error:
            append_event(Path(os.environ[EVENTS]), RunError(str(error)))
            raise

    return heard


def _python_path() -> str:
    """Where the engine's processes find this package and the user's own modules."""
    package = str(Path(__file__).resolve().parents[3])
    parts = [package, os.environ.get("PYTHONPATH", ""), os.getcwd()]
    return os.pathsep.join(part for part in parts if part)


def _wait(
    run_id: str,
    home: Path,
    environment: dict[str, str],
    ended: Callable[[], bool] = lambda: False,
) -> str:
    """Poll until the run has finished; returns its status, for example `finished:completed`.

    `ended` is called all the while, and once more at the end. Flower is asked when it says that the
    run has ended, and now and then: a run that fails says nothing.
    """
    pause = FIRST_QUESTION_SECONDS
    while True:
        deadline = time.monotonic() + pause
        time.sleep(POLL_SECONDS)
        while not ended() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        answer = _flwr(
            ["ls", CONNECTION, "--run-id", run_id, "--format", "json"], home, environment, None
        )
        try:
            status = str(json.loads(answer[answer.index("{") :])["runs"][0]["status"])
        except (ValueError, KeyError, IndexError):
            raise RunError(f"Flower's answer cannot be read: {answer.strip()[:300]}") from None
        if status.startswith("finished"):
            ended()
            return status
        pause = min(2.0 * pause, LONGEST_PAUSE_SECONDS)


def _flwr(arguments: list[str], home: Path, environment: dict[str, str], log: Any) -> str:
    done = subprocess.run(
        [_program("flwr"), *arguments],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    if log is not None:
        log.write(done.stdout + done.stderr)
        log.flush()
    return done.stdout


def _program(name: str) -> str:
    """A console script of the environment this Python runs in."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int, host: str = "127.0.0.1") -> bool:
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS):
            return True
    except OSError:
        return False

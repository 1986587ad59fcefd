"""A SuperLink and its SuperNodes on free ports of this machine, always ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fl_shuffle.flower.settings import APP_ROOT
from tests.apps import forked
from tests.apps.programs import OFFLINE, free_port, listens, program

PROGRAMS = ("flower-superlink", "flower-supernode", "flwr")
APP = ("pyproject.toml", ".gitignore", "README.md", "fl_shuffle", "server", "clients", "configs")


def app_folder(place: Path, *more: str) -> Path:
    """What of the repository the app is made of, and `more`: Flower reads every file beside it,
    an environment of tens of thousands too, before it leaves them out."""
    copy = place / "fl-shuffle"
    copy.mkdir()
    for name in (*APP, *more):
        if (APP_ROOT / name).is_dir():
            shutil.copytree(
                APP_ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(APP_ROOT / name, copy)
    return copy


class Federation:
    """Processes by name, and `flwr` talking to them.

    `ready`: programs of the sites are forked (`tests.apps.forked`).
    """

    def __init__(self, home: Path, *, ready: bool) -> None:
        self.home = home
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._finished = 0
        (home / "flwr").mkdir(parents=True)
        self.app = app_folder(home)
        (home / "flwr" / "config.toml").write_text(
            f'[superlink.lab]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self._address = home / "socket" if ready else None
        if self._address is not None:
            forked.callers(home / "programs", self._address)
            file = str(forked.__file__)
            self.start("ready", sys.executable, "-P", file, str(self._address))

    def environment(self, name: str) -> dict[str, str]:
        programs = [str(self.home / "programs"), str(Path(sys.executable).parent)]
        path = os.pathsep.join([*programs, os.environ.get("PATH", "")])
        home = str(self.home / name)
        return {**os.environ, **OFFLINE, "FLWR_HOME": home, "PATH": path, "OMP_NUM_THREADS": "1"}

    def start(self, name: str, *command: str) -> None:
        with (self.home / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [program(command[0]), *command[1:]],
                env=self.environment(name),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_superlink(self) -> None:
        deadline = time.monotonic() + 180
        while self._address is not None and not self._address.exists():
            assert time.monotonic() < deadline, self.log("ready")
            time.sleep(0.2)
        self.start(
            "link", "flower-superlink", "--insecure", "--host", "127.0.0.1",
            "--port", str(self.port),
        )  # fmt: skip
        while not listens(self.port):
            assert self.processes["link"].poll() is None, self.log("link")
            assert time.monotonic() < deadline, self.log("link")
            time.sleep(0.2)

    def start_supernode(self, name: str, node_config: str) -> None:
        node = "flower-supernode"
        if self._address is not None:
            node = str(self.home / "programs" / node)
        self.start(
            name, node, "--insecure", "--superlink", f"127.0.0.1:{self.port}",
            "--host", "127.0.0.1", "--port", str(free_port()), "--node-config", node_config,
        )  # fmt: skip

    def wait_for_supernodes(self, count: int) -> None:
        deadline = time.monotonic() + 180
        while self.log("link").count("[Fleet.ActivateNode] Activated") < count:
            assert time.monotonic() < deadline, self.log("link")
            time.sleep(0.2)

    def node_ids(self) -> list[str]:
        """Those of the SuperNodes, in the order in which they came."""
        return re.findall(r"Activated node_id=(\d+)", self.log("link"))

    def kill(self, name: str) -> None:
        """End a process and what it started."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")

    def flwr(self, *arguments: str) -> str:
        return self.flwr_prints(*arguments, "--format", "json")

    def flwr_prints(self, *arguments: str) -> str:
        done = subprocess.run(
            [program("flwr"), *arguments],
            env=self.environment("flwr"),
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        return done.stdout + done.stderr

    def submit(self, config: Path, out: Path, **more: str) -> str:
        """Start the framework's own app; `more` as for `run`."""
        return self.run(self.app, config=str(config), run_directory=str(out), **more)

    def run(self, app: Path, **settings: str) -> str:
        """Start an app; `settings` of the run configuration have `_` for `-`."""
        self._finished = self._count()
        chosen = self.home / "run.toml"
        lines = [f"{k.replace('_', '-')} = {json.dumps(v)}\n" for k, v in settings.items()]
        chosen.write_text("".join(lines))
        answer = self.flwr("run", str(app), "lab", "--run-config", str(chosen))
        return str(json.loads(answer[answer.index("{") :])["run-id"])

    def _count(self) -> int:
        return self.log("link").count("Finished task")

    def wait(self, run_id: str, seconds: float) -> str:
        """The status the run ends with."""
        deadline = time.monotonic() + seconds
        while self._count() == self._finished:
            assert time.monotonic() < deadline, self.log("link")[-3000:]
            time.sleep(0.5)
        while True:
            answer = self.flwr("ls", "lab", "--run-id", run_id)
            status = str(json.loads(answer[answer.index("{") :])["runs"][0]["status"])
            if status.startswith("finished"):
                return status
            assert time.monotonic() < deadline, self.log("link")[-3000:]
            time.sleep(1.0)


@contextlib.contextmanager
def federation(home: Path, *, ready: bool = False) -> Iterator[Federation]:
    running = Federation(home, ready=ready)
    try:
        yield running
    finally:
        for name in list(running.processes):
            running.kill(name)

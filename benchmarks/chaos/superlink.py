"""Flower's SuperLink with two SuperNodes, as processes, and runs on them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from benchmarks.chaos.federation import CONFIG, ROUNDS, lost

ROOT = Path(__file__).resolve().parents[2]
NODES, FEW_ROUNDS = 2, 2
START_SECONDS, RUN_SECONDS = 180.0, 300.0


class SuperLink:
    """On free ports of this machine, without TLS, until it is left."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._processes = folder, list[subprocess.Popen[bytes]]()
        self.host, self.port = "127.0.0.1", _free_port()
        (folder / "flwr").mkdir(parents=True)
        address = f"{self.host}:{self.port}"
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink.lab]\naddress = "{address}"\ninsecure = true\n', encoding="utf-8"
        )
        # The reference apps, and few rounds: each takes 10 to 20 s on a SuperLink.
        plain = CONFIG.split("[app]")[0].replace(f"rounds = {ROUNDS}", f"rounds = {FEW_ROUNDS}")
        (folder / "run.toml").write_text(plain, encoding="utf-8")

    def __enter__(self) -> SuperLink:
        address = f"{self.host}:{self.port}"
        common = ["--insecure", "--host", self.host, "--port"]
        self._start("link", "flower-superlink", *common, str(self.port))
        for number in range(NODES):
            config = f"partition-id={number} num-partitions={NODES}"
            node = ["flower-supernode", *common, str(_free_port()), "--superlink", address]
            self._start(f"node-{number}", *node, "--node-config", config)
            self._until(number + 1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._processes:
            process = self._processes.pop()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def play(self, run: Path) -> str:
        """Play a run; what is wrong with it, in words."""
        chosen = f"config='{self._folder / 'run.toml'}' run-directory='{run}'"
        command = ["flwr", "run", str(ROOT), "lab", "--run-config", chosen, "--stream"]
        try:
            done = subprocess.run(
                command, env=self._environment("flwr"), cwd=self._folder, capture_output=True,
                text=True, timeout=RUN_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"the run did not end within {RUN_SECONDS:.0f} s"
        missing = lost(run, FEW_ROUNDS)
        return (
            f"{missing} rounds lost: {done.stdout[-600:]} {done.stderr[-600:]}" if missing else ""
        )

    def _until(self, nodes: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        log = self._folder / "link.log"
        while len(re.findall(r"Activated node_id=\d+", log.read_text(errors="replace"))) < nodes:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the SuperLink did not start: {log.read_text()[-600:]}")
            time.sleep(0.1)

    def _start(self, name: str, *command: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command, env=self._environment(name), cwd=self._folder, stdout=log,
                    stderr=log, start_new_session=True,
                )
            )  # fmt: skip

    def _environment(self, name: str) -> dict[str, str]:
        programs = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        return {
            **os.environ,
            "PATH": os.pathsep.join(programs),
            "PYTHONPATH": str(ROOT),
            "FLWR_HOME": str(self._folder / name),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
        }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

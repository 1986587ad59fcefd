"""Flower's Deployment Engine: what `flwr run .` sends, and a SuperLink and SuperNodes that do what
one process does; in one test the shuffler and the analyzer are processes of their own, too.

Kills, and what may be seen of whom: `tests/benchmarks/test_chaos.py`.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID
from safetensors.torch import load_file

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.runs.console_messages import METRICS_STAY
from tests.apps import test_strangers as strangers
from tests.apps.test_same_bits import NETWORK
from tests.processes import environment, free_port, linux, printed, wait_until
from tests.repository import FILES, ROOT
from tests.small_federation import Play, model_bytes, rows, summary

pytestmark = pytest.mark.slow

START_SECONDS = 180.0

CLIENTS = 12
PARTS = [f"partition-id={index} num-partitions=2" for index in range(2)]


class SuperLink:
    """With its SuperNodes on free ports of this machine, and `flwr` talking to it."""

    def __init__(self, home: Path, *, tls: bool = False) -> None:
        """`tls`: with a certificate of its own, and SuperNodes whose keys are registered alone."""
        self.home, self.address = home, f"127.0.0.1:{free_port()}"
        self.processes: list[subprocess.Popen[bytes]] = []
        (home / "flwr").mkdir(parents=True)
        secured, options = "insecure = true", ["--insecure"]
        if tls:
            key, certificate = write_certificate(home)
            secured = f'root-certificates = "{certificate}"'
            options = ["--ssl-ca-certfile", certificate, "--ssl-certfile", certificate]
            options += ["--ssl-keyfile", key, "--enable-supernode-auth"]
        (home / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "{self.address}"\n'
            f"{secured}\n"
        )
        host, port = self.address.split(":")
        self.start("link", "flower-superlink", *options, "--host", host, "--port", port)

    def start(self, name: str, *command: str) -> None:
        own, said = environment(FLWR_HOME=str(self.home / name)), self.home / f"{name}.log"
        with said.open("wb") as log:
            process = subprocess.Popen(
                command, env=own, cwd=self.home, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)

    def listens(self) -> bool:
        """Whether somebody answers at the address."""
        host, port = self.address.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    def start_supernodes(self, *node_configs: str) -> list[str]:
        """One after the other, so configured; the identifiers of all that were started."""
        for number, node_config in enumerate(node_configs, start=len(self._activated())):
            self.start(
                f"node{number}", "flower-supernode", "--insecure", "--superlink", self.address,
                "--host", "127.0.0.1", "--port", str(free_port()), "--node-config", node_config,
            )  # fmt: skip
            wait_until(lambda: len(self._activated()) == number + 1, START_SECONDS, self.said)  # noqa: B023
        return self._activated()

    def _activated(self) -> list[str]:
        return re.findall(r"Activated node_id=(\d+)", self.said())

    def said(self, name: str = "link") -> str:
        return (self.home / f"{name}.log").read_text(errors="replace")

    def play(self, app: Path, **settings: str) -> str:
        """Run an app to its end; what its log says. `settings` of the run configuration have `_`
        for `-`."""
        chosen = " ".join(f"{name.replace('_', '-')}='{text}'" for name, text in settings.items())
        said, completed = self.ended(self._flwr("run", str(app), "lab", "--run-config", chosen))
        assert completed, said
        return said

    def ended(self, started: str) -> tuple[str, bool]:
        """What the log of a run says at its end, and whether it ended well; `started` is what
        `flwr run` printed."""
        found = re.search(r"started run (\d+)", started)
        assert found, started
        said = self._flwr("log", found[1], "lab", "--stream")
        listed = self._flwr("ls", "lab", "--run-id", found[1], "--format", "json")
        assert '"status": "finished:' in listed, listed
        return said, '"status": "finished:completed"' in listed

    def end(self) -> None:
        """Kill every process, and what it started."""
        while self.processes:
            process = self.processes.pop()
            with suppress(ProcessLookupError):  # one that has ended with all that it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _flwr(self, *arguments: str) -> str:
        return printed("flwr", *arguments, folder=self.home, FLWR_HOME=str(self.home / "flwr"))


def write_certificate(folder: Path) -> tuple[str, str]:
    """A key and its own certificate for this machine: their files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now, address = datetime.now(UTC), x509.IPAddress(IPv4Address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "server.key", folder / "server.crt"
    files[0].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    files[1].write_bytes(made.public_bytes(Encoding.PEM))
    return str(files[0]), str(files[1])


@pytest.fixture
def superlink(tmp_path: Path) -> Iterator[SuperLink]:
    running = SuperLink(tmp_path / "flower")
    try:
        yield running
    finally:
        running.end()


def test_every_module_and_every_data_file_is_in_the_bundle(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    printed("flwr", "build", "--app", str(ROOT), folder=tmp_path, FLWR_HOME=home)
    (packed,) = tmp_path.glob("*.fab")
    with zipfile.ZipFile(packed) as archive:
        held = set(archive.namelist())
    needed = {path.relative_to(ROOT).as_posix() for path in FILES}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shipped = project["tool"]["setuptools"]["package-data"]["fl_shuffle"]
    data = {f"fl_shuffle/{name}" for name in shipped if name != "py.typed"}
    assert "fl_shuffle/data/sources/digits.json" in data and len(needed) > 100
    assert needed | data <= held
    assert {name.split("/")[0] for name in held if name.endswith(".py")} == {
        "fl_shuffle", "clients", "server"
    }  # fmt: skip


def test_flower_installs_nothing_before_it_runs(tmp_path: Path) -> None:
    """`uv sync` as Flower calls it, and offline: torch and all stay those of whoever runs it."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    command = [sys.executable, "-m", "uv", "sync", "--python", sys.executable, "--offline"]
    command += ["--no-install-project", "--no-install-package", "flwr", "--inexact"]
    made = tmp_path / "environment"
    printed(*command, folder=tmp_path, UV_PROJECT_ENVIRONMENT=str(made))
    assert made.is_dir() and not list(made.rglob("*.dist-info"))


def billed(run: Path) -> tuple[Any, ...]:
    """What the ledger says of rounds (but for the time they took), classes and each client."""
    ledger = fs.Result(run).ledger
    rounds = [{**row, "seconds": 0.0} for row in ledger.record.rows]
    clients = [repr(ledger.client(number)) for number in range(CLIENTS)]
    return rounds, clients, ledger.record.classes, ledger.record.notes


def test_supernodes_that_play_any_client_give_the_in_process_bits(
    superlink: SuperLink, small: Path, play: Play, tmp_path: Path
) -> None:
    settings, there = (*NETWORK, "privacy.unit=record"), tmp_path / "there"
    here = play("here", *settings)
    superlink.start_supernodes("index=0", "index=1")
    overrides = ";".join(settings)
    superlink.play(ROOT, config=str(small), run_directory=str(there), overrides=overrides)
    assert model_bytes(here) == model_bytes(there)


def test_supernodes_that_hold_clients_give_the_in_process_values(
    superlink: SuperLink, small: Path, play: Play, tmp_path: Path
) -> None:
    """A hostile SuperNode that claims a part first is not asked: a file says who plays which."""
    here, there, listed = play("here"), tmp_path / "there", tmp_path / "nodes.csv"
    _, *honest = superlink.start_supernodes(PARTS[0], *PARTS)
    rows = [f"{name},{index},2\n" for index, name in enumerate(honest)]
    listed.write_text("supernode,partition-id,num-partitions\n" + "".join(rows))
    overrides = f"run.supernodes={listed}"
    superlink.play(ROOT, config=str(small), run_directory=str(there), overrides=overrides)
    assert {path.name for path in here.iterdir()} == {path.name for path in there.iterdir()}
    assert {path.stat().st_mode & 0o777 for path in there.iterdir()} == {0o600}
    # Blocks are cut within each holder's clients: means are equal to rounding, reports to the grid.
    ours, theirs = (load_file(run / "model.safetensors") for run in (here, there))
    for name, values in ours.items():
        torch.testing.assert_close(theirs[name], values, rtol=0.0, atol=1e-4)
    assert billed(here) == billed(there)
    said = (there / "run.log").read_text()
    played = sorted(re.findall(r" plays (clients .*\d)", said))
    assert played == ["clients 0 to 5", "clients 6 to 11"]
    assert re.search(r"\(key SHA256:\S{43}\) has no line .* it holds no client", said)


def test_the_server_gets_what_the_shuffler_releases(
    superlink: SuperLink, small: Path, tmp_path: Path
) -> None:
    key, store, passes = tmp_path / "analyzer.key", tmp_path / "store", tmp_path / "passes"
    assert main(["shuffler", "key", str(key)]) == 0
    made = ["--credentials", str(passes), "--address", f"127.0.0.1:{free_port()}"]
    made += ["--clients", str(CLIENTS), "--min-reports", "4", "--sites", "2"]
    assert main(["shuffler", "init", str(store), *made]) == 0
    superlink.start("shuffler", "fl-shuffle", "shuffler", "serve", str(store))
    own = (f'shuffler="{passes}/site-{site}.json" analyzer-key="{key}.pub"' for site in (0, 1))
    superlink.start_supernodes(*map(" ".join, zip(PARTS, own, strict=True)))
    common = "privacy.shuffler=separate;privacy.min_reports=4;run.entropy=system"
    for release, rounds, analyzer_key, headline, told in (
        ("reports", 2, str(key), "shuffled", "`shuffled` holds towards the server's operator"),
        ("sum", 1, "", "sum", "the server gets the sum alone"),
    ):
        superlink.play(
            ROOT,
            config=str(small),
            overrides=f"{common};privacy.release={release};run.rounds={rounds}",
            run_directory=str(tmp_path / release),
            shuffler=str(passes / "analyzer.json"),
            analyzer_key=analyzer_key,
        )
        said_of = summary(tmp_path / release)
        assert said_of["headline"] == headline and told in json.dumps(said_of["assumptions"])
    said = superlink.said("shuffler")
    assert said.count(f"closed with {CLIENTS} reports") == 3 and "node" not in said
    superlink.end()
    # Nothing is left with the shuffler once the steps are durable.
    with sqlite3.connect(store / "shuffler.sqlite") as database:
        for table in ("reports", "batch", "seen"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    assert store.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in store.iterdir()} == {0o600}


def test_deployed_run_goes_on_with_the_printed_line(
    superlink: SuperLink, small: Path, tmp_path: Path
) -> None:
    """A shell runs the line in the app's folder, as it was printed. The other node had died."""
    superlink.start_supernodes(PARTS[0])
    run = tmp_path / "it's a run"
    chosen = {
        "config": str(small),
        "overrides": "privacy.min_reports=8;run.entropy=system;model.init=zeros",
        "run-directory": str(run),
        "data": str(tmp_path),
    }
    text = " ".join(f'{name}="{value}"' for name, value in chosen.items())
    home = str(superlink.home / "flwr")
    start = ("flwr", "run", str(ROOT), "lab", "--run-config", text)
    said, completed = superlink.ended(printed(*start, FLWR_HOME=home))
    assert not completed
    (line,) = set(re.findall(r"; continue with: (flwr run .*)", said))
    superlink.start_supernodes(PARTS[1])
    said, completed = superlink.ended(printed("sh", "-c", line, folder=ROOT, FLWR_HOME=home))
    assert completed, said
    assert [row["num_reports"] for row in rows(run)] == [str(CLIENTS)] * 3
    assert fs.Result(run).config.data.root == str(tmp_path)
    # Again: that run is finished. And with a word that there is not: each is one line.
    wrong = ("flwr", "run", str(ROOT), "lab", "--run-config", f"{text} resume='maybe'")
    for begin, told in (
        (("sh", "-c", line), "--run-config run-directory=.*run.*: that run is finished"),
        (wrong, "--run-config resume = 'maybe': must be one of no, yes, data-unchanged"),
    ):
        said, completed = superlink.ended(printed(*begin, folder=ROOT, FLWR_HOME=home))
        assert not completed and re.search(rf"raised an exception: {told}", said), said
        assert "Traceback" not in said and "--resume" not in said


LOOP = r"^until flower-supernode (\.\.\.); do sleep \d+; done$"


@linux
def test_killed_supernode_with_a_key_comes_back(tmp_path: Path) -> None:
    """The SuperLink refuses its key for as long as it takes the old one to be there: it ends. The
    loop of docs/how-to/deploy.md starts it until it is let in, and so does the unit file there."""
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    (loop,) = re.finditer(LOOP, page, re.MULTILINE)
    unit = configparser.ConfigParser()
    (text,) = re.findall(r"```ini\n(\[Unit\].*?)```", page, re.DOTALL)
    unit.read_string(text)
    # Always again after a failure, and never too often for systemd.
    assert unit["Service"]["Restart"] == "on-failure" and int(unit["Service"]["RestartSec"]) > 1
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"

    private = ec.generate_private_key(ec.SECP384R1())
    key, public = tmp_path / "key", tmp_path / "key.pub"
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public.write_bytes(private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    running = SuperLink(tmp_path / "flower", tls=True)
    try:
        wait_until(running.listens, START_SECONDS, running.said)
        printed(
            "flwr", "supernode", "register", str(public), "lab",
            folder=tmp_path, FLWR_HOME=str(running.home / "flwr"),
        )  # fmt: skip
        options = (
            f"--root-certificates {running.home}/server.crt --superlink {running.address} "
            f"--host 127.0.0.1 --port {free_port()} --auth-supernode-private-key {key}"
        )
        running.start("node", "sh", "-c", loop[0].replace(loop[1], options))

        def activations() -> int:
            return running.said().count("Activated node_id")

        wait_until(lambda: activations() == 1, START_SECONDS, lambda: running.said("node"))
        (child,) = children(running.processes[-1].pid)
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: activations() == 2, START_SECONDS, lambda: running.said("node"))
        assert "Exit Code: 305" in running.said("node")
        assert len(set(re.findall(r"Activated node_id=(\d+)", running.said()))) == 1
        # Stopped in order, it stays where it is.
        (child,) = children(running.processes[-1].pid)
        os.kill(child, signal.SIGTERM)
        wait_until(lambda: running.processes[-1].poll() == 0, START_SECONDS, "the loop goes on")
    finally:
        running.end()


def children(parent: int) -> list[int]:
    """The processes that a process has started and that still run."""
    return [
        int(number)
        for task in Path(f"/proc/{parent}/task").iterdir()
        for number in (task / "children").read_text().split()
    ]


def test_flwr_run_plays_apps_of_strangers(superlink: SuperLink, tmp_path: Path) -> None:
    """On two nodes that hold eight clients each; the run directory, which the last one does not
    name, is where the log says."""
    superlink.start_supernodes(*PARTS)
    for app, kind in strangers.EVERY_APP:
        out = tmp_path / f"run-{kind}" if app == "torch_app" else None
        folder = strangers.written(app, tmp_path / kind, kind)
        said = superlink.play(folder, run_directory=str(out or ""))
        told = Path(re.findall(r"run directory: (.*\S)", said)[-1])
        assert told == out if out else told.parent == superlink.home / "runs"
        assert said.count(METRICS_STAY) == 1
        assert (
            list(fs.Result(told).metrics["num_reports"]) == [strangers.CLIENTS] * strangers.ROUNDS
        )

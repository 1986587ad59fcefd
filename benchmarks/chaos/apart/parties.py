"""The parties of runs as processes: a shuffler, nodes that witness what they send, servers."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict

from benchmarks.chaos.apart.memory import found_in_memory
from benchmarks.chaos.apart.nodes import NodeGrid, play_node
from benchmarks.chaos.children import Ended, begin, command, end
from benchmarks.chaos.federation import note, note_model
from fl_shuffle import simulate
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.flower import exchange
from fl_shuffle.flower.remote_shuffler import ANALYZER_KEY, SHUFFLER
from fl_shuffle.flower.settings import RESOLVED
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.shuffler.remote.agreement import Agreement
from fl_shuffle.shuffler.remote.client import RemoteShuffler
from fl_shuffle.shuffler.remote.link import Sender
from server import app as server

CLIENTS, NODES, ROUNDS = 6, 3, 3
RELEASES = ("reports", "sum")
PIECE = slice(40, 48)
"""Coordinates of a report whose bytes stand nowhere else."""
LOOKED_FOR = 2
"""So many of each kind of secret are looked for in a process's memory."""
PATIENCE = 120.0
"""Seconds until a server that does not end is ended."""
DIES = {"open": "close", "counted": "fetch"}
"""Where a server can be told to die in round 2: while the round is open; between counting it and
stepping. Calls of `RemoteShuffler`."""

Send = Callable[[Sender, Agreement, int, int, np.ndarray], None]
"""How a node hands a client's reports [batches, d] of a round over."""
honestly: Send = Sender.send


def tables(release: str, rounds: int) -> dict[str, dict[str, Any]]:
    """The configuration of every run here."""
    return {
        "run": {"rounds": rounds, "entropy": "system", "timeout": 60.0},
        "data": {"source": "digits", "clients": CLIENTS, "records": 20},
        "model": {"kind": "linear"},
        "privacy": {
            "unit": "client", "clip_norm": 0.5, "shuffler": "apart", "release": release,
            "min_reports": 3, "assumed_honest": 3,
        },
        "budgets": {"distribution": "constant", "epsilon": 2.0},
    }  # fmt: skip


class Parties:
    """A folder with keys, passes and a shuffler's store, and the processes that use them.

    Keys and tokens are made by a child: what this process knows its children know, too.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder, self.store = folder, folder / "store"
        self.passes, self.key = folder / "passes", folder / "analyzer.key"
        self.processes: dict[str, int] = {}
        self._begun = 0
        self._server_says = Path()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        made = ["init", str(self.store), "--passes", str(self.passes), "--address", address]
        made += ["--clients", str(CLIENTS), "--sites", str(NODES), "--min-reports", "3"]
        for arguments in (["key", str(self.key)], made):
            ended = command(["shuffler", *arguments], self._says("setting-up"))
            if ended.code:
                raise RuntimeError(f"a shuffler cannot be set up: {ended.said}")

    def start_shuffler(self) -> None:
        """Have it serve."""
        arguments = ["shuffler", "serve", str(self.store)]
        self.processes["shuffler"] = begin(lambda: main(arguments), self._says("shuffler"))

    def start_node(self, number: int, send: Send = honestly) -> None:
        """A node that plays the clients of one site."""
        self._socket(number).unlink(missing_ok=True)
        name = f"node-{number}"
        self.processes[name] = begin(lambda: self._node(number, send), self._says(name))

    def start_server(
        self, run: Path, release: str, *, resume: bool, dies: str = "", rounds: int = ROUNDS
    ) -> None:
        """Start a run, or go on with it; `dies`: one of `DIES`."""
        self._server_says = self._says("server")
        self.processes["server"] = begin(
            lambda: self._server(run, tables(release, rounds), resume, dies), self._server_says
        )

    def wait_for_server(self) -> Ended:
        """How it ended."""
        process, deadline = self.processes["server"], time.monotonic() + PATIENCE
        while not has_ended(process) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process, signal.SIGKILL)
        del self.processes["server"]
        return end(process, self._server_says)

    def kill(self, name: str) -> None:
        """End a process at once."""
        process = self.processes.pop(name)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)

    def texts(self, name: str = "") -> str:
        """What all of them have said, or those with this name."""
        return "\n".join(
            path.read_text(encoding="utf-8", errors="replace")
            for path in sorted(self.folder.glob(f"said-{name}*"))
        )

    def witnessed(self, what: str) -> list[str]:
        """Lines that processes wrote down, of one kind, in their order."""
        path = self.folder / f"witness-{what}"
        return path.read_text(encoding="ascii").splitlines() if path.exists() else []

    def forget(self) -> None:
        """Begin with new witnesses."""
        for path in self.folder.glob("witness-*"):
            path.unlink()

    def seen_in_memory(self, release: str) -> list[str]:
        """What a process has that must not have it, a few words each. Each is stopped meanwhile.

        Processes that are begun afterwards know what this one has looked for: once in a run.
        """
        reports, senders, key = self._secrets()
        # Reading is slow: the last reports, and the last sites' tokens.
        reports, senders = reports[-LOOKED_FOR:], senders[-LOOKED_FOR:]
        found = []
        for name, secrets in (
            ("shuffler", [key, *(reports if release == "reports" else [])]),
            ("server", [*senders, *(reports if release == "sum" else [])]),
        ):
            process = self.processes.get(name)
            if process is None or has_ended(process):
                continue
            os.kill(process, signal.SIGSTOP)
            with suppress(ProcessLookupError):  # it came to its end just now
                found += [f"the memory of the {name}"] * len(found_in_memory(process, secrets))
            os.kill(process, signal.SIGCONT)
        return found

    def seen_in_files(self, run: Path) -> list[str]:
        """The same for the shuffler's store and what it has said, the run's directory, and what
        nodes replied to the server."""
        reports, senders, key = self._secrets()
        kept = [path.read_bytes() for path in self.store.iterdir() if path.is_file()]
        kept.append(self.texts("shuffler").encode())
        public = [path.read_bytes() for path in run.iterdir()] if run.is_dir() else []
        return [
            *["the shuffler's files"] * _holding(kept, [key, *reports]),
            *["the run's files"] * _holding(public, [key, *reports, *senders]),
            *["a reply to the server"] * len(self.witnessed("replies")),
        ]

    def _secrets(self) -> tuple[list[bytes], list[bytes], bytes]:
        """Pieces of reports in the order they were sent, tokens of sites, the analyzer's key."""
        reports = [bytes.fromhex(line) for line in self.witnessed("reports")]
        tokens = [
            json.loads((self.passes / f"site-{i}.json").read_text())["token"] for i in range(NODES)
        ]
        senders = [form for text in tokens for form in (text.encode(), bytes.fromhex(text))]
        return reports, senders, bytes.fromhex(self.key.read_text())

    def uncounted(self, run: Path) -> int:
        """Batches the server got, or models nodes were shown (the first one tells nothing), beyond
        the releases that the ledger counts."""
        path = run / "ledger.sqlite"
        counted = len(LedgerRecord(path).attempts) if path.exists() else 0
        shown = len(set(self.witnessed("models"))) - 1
        return max(0, len(set(self.witnessed("batches"))) - counted, shown - counted)

    def _says(self, name: str) -> Path:
        self._begun += 1
        return self.folder / f"said-{name}-{self._begun:04d}"

    def _socket(self, number: int) -> Path:
        return self.folder / f"socket-{number}"

    def _witness(self, what: str) -> Path:
        return self.folder / f"witness-{what}"

    def _node(self, number: int, send: Send) -> int:
        def noted(own: Sender, facts: Agreement, now: int, who: int, reports: np.ndarray) -> None:
            for report in reports:
                piece = report[PIECE].astype("<f4").tobytes()
                assert piece  # nothing is everywhere
                note(self._witness("reports"), piece.hex())
            send(own, facts, now, who, reports)

        Sender.send = noted  # type: ignore[assignment]
        own = {
            "partition-id": number,
            "num-partitions": NODES,
            SHUFFLER: str(self.passes / f"site-{number}.json"),
            ANALYZER_KEY: f"{self.key}.pub",
        }
        models = self._witness("models")
        play_node(self._socket(number), own, lambda request: note_model(request, models))
        return 0

    def _server(
        self, run: Path, configured: dict[str, dict[str, Any]], resume: bool, dies: str
    ) -> int:
        exchange.SETTLE_SECONDS = 0.01  # nodes do not come and go
        self._note_batches()
        if dies:
            _die_at(DIES[dies])
        resolved = {RESOLVED: parse_config(configured).to_json()}
        opens = configured["privacy"]["release"] == "reports"
        settings: dict[str, Any] = {
            **resolved,
            "run-directory": str(run),
            "resume": "yes" if resume else "no",
            SHUFFLER: str(self.passes / "analyzer.json"),
            ANALYZER_KEY: str(self.key) if opens else "",
        }

        def taken(content: RecordDict) -> None:
            if list(content):
                note(self._witness("replies"), "a reply to the server holds something")

        grid = NodeGrid([self._socket(i) for i in range(NODES)], resolved, taken)
        try:
            server.main(grid, Context(grid.run.run_id, 1, {}, RecordDict(), settings))
        except FlShuffleError as error:
            print(f"fl-shuffle: error: {error}", flush=True)
            return error.exit_code
        return 0

    def _note_batches(self) -> None:
        fetch = RemoteShuffler.fetch

        def noted(own: RemoteShuffler, number: int) -> Iterator[bytes]:
            pieces = list(fetch(own, number))
            note(self._witness("batches"), f"{number} {sha256(b''.join(pieces)).hexdigest()}")
            return iter(pieces)

        RemoteShuffler.fetch = noted  # type: ignore[assignment]


@cache
def _costs() -> None:
    """Play such runs in this process, without a shuffler apart: servers forked afterwards know what
    rounds cost."""
    for release in RELEASES:
        with TemporaryDirectory() as folder:
            configured = tables(release, ROUNDS)
            configured["privacy"]["shuffler"] = "in-server"
            configured["run"]["jobs"] = 1
            simulate(configured, out=Path(folder) / "run")


@contextmanager
def parties(folder: Path) -> Iterator[Parties]:
    """A shuffler and its nodes; whatever runs at the end is ended."""
    _costs()
    found = Parties(folder)
    try:
        found.start_shuffler()
        for number in range(NODES):
            found.start_node(number)
        yield found
    finally:
        for name in list(found.processes):
            found.kill(name)


def has_ended(process: int) -> bool:
    """Whether a child has come to its end; it can still be waited for."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def begun(run: Path) -> bool:
    """Whether there is a run to go on with."""
    return (run / "ledger.sqlite").exists()


def lost(run: Path, rounds: int = ROUNDS) -> int:
    """Rounds that the run should have and has not."""
    path = run / "summary.json"
    if not path.exists() or not (known := LedgerRecord(run / "ledger.sqlite")).finished:
        return rounds
    held = int(json.loads(path.read_text(encoding="utf-8"))["rounds"])
    return rounds - min(held, len(known.rounds))


def _holding(contents: list[bytes], needles: list[bytes]) -> int:
    return sum(needle in content for content in contents for needle in needles)


def _die_at(method: str) -> None:
    whole = getattr(RemoteShuffler, method)

    def dying(own: RemoteShuffler, number: int) -> Any:
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(own, number)

    setattr(RemoteShuffler, method, dying)

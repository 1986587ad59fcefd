"""The parties of runs as processes: a shuffler, nodes that witness what they send, servers."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict

from benchmarks.chaos.apart.memory import found_in_memory
from benchmarks.chaos.apart.nodes import NodeGrid, play_node
from benchmarks.chaos.children import Ended, begin, command, end, has_ended
from benchmarks.chaos.federation import lost, note, note_model, uncounted
from benchmarks.chaos.tally import Tally
from fl_shuffle import simulate
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.flower import node_registry
from fl_shuffle.flower.remote_shuffler import ANALYZER_KEY, SHUFFLER
from fl_shuffle.flower.settings import RESOLVED
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.shuffler.remote import link
from fl_shuffle.shuffler.remote.agreement import Agreement
from fl_shuffle.shuffler.remote.client import RemoteBatch
from fl_shuffle.shuffler.remote.link import Sender
from fl_shuffle.shuffler.remote.sealing import seal
from server import app as server

CLIENTS, NODES, ROUNDS = 6, 3, 3
RELEASES = ("reports", "sum")
PIECE = slice(40, 48)
"""Coordinates of a report whose bytes stand nowhere else."""
LOOKED_FOR = 2
"""Number of secrets of each kind that are searched for in a process's memory."""
PATIENCE = 120.0
"""Seconds until a server that does not end is ended."""
FINISHED = "that run is finished"


def tables(release: str) -> dict[str, dict[str, Any]]:
    """The configuration of every run here."""
    return {
        "run": {"rounds": ROUNDS, "entropy": "system", "timeout": 60.0},
        "data": {"source": "digits", "clients": CLIENTS, "records_per_client": 20},
        "model": {"kind": "linear"},
        "privacy": {
            "unit": "client", "clip_norm": 0.5, "shuffler": "separate", "release": release,
            "min_reports": 3, "assumed_honest": 3,
        },
        "budgets": {"distribution": "constant", "epsilon": 2.0},
    }  # fmt: skip


class Party:
    """A process that plays `call`; what it says goes to files named `said`. Begun again, it goes on
    with what is there."""

    def __init__(self, call: Callable[[], int], said: Path) -> None:
        self._call, self._said = call, said
        self._begun, self.process = 0, 0

    def start(self) -> None:
        """Begin it."""
        self._begun += 1
        self.process = begin(self._call, self._says())

    def ended(self) -> bool:
        """Whether it has come to its end, or was never begun."""
        return not self.process or has_ended(self.process)

    def kill(self) -> Ended | None:
        """End it at once, if it was begun; how it ended."""
        process, self.process = self.process, 0
        if not process:
            return None
        os.kill(process, signal.SIGKILL)
        return end(process, self._says())

    def wait(self) -> Ended:
        """How it ended; it is killed when `PATIENCE` is over."""
        deadline = time.monotonic() + PATIENCE
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.01)
        ended = self.kill()
        assert ended is not None
        return ended

    def holds(self, secrets: list[bytes]) -> int:
        """How many of these are in its memory. It is stopped meanwhile."""
        if self.ended():
            return 0
        os.kill(self.process, signal.SIGSTOP)
        found = set[bytes]()
        with suppress(ProcessLookupError):  # it came to its end just now
            found = found_in_memory(self.process, secrets)
        os.kill(self.process, signal.SIGCONT)
        return len(found)

    def _says(self) -> Path:
        return self._said.with_name(f"{self._said.name}-{self._begun:04d}")


class Parties:
    """A folder with keys, passes and a shuffler's store, and the processes that use them.

    Keys and tokens are made by a child: what this process knows its children know, too.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.store = folder, folder / "store"
        self.passes, self.key = folder / "passes", folder / "analyzer.key"
        serve = ["shuffler", "serve", str(self.store)]
        self.shuffler = Party(partial(main, serve), folder / "said-shuffler")
        self.nodes = [
            Party(partial(self._node, number), folder / f"said-node-{number}")
            for number in range(NODES)
        ]
        self.server = Party(lambda: 1, folder / "said-server")
        self._spoiled = folder / "spoiled"

    def spoil(self) -> None:
        """From now on no report of the last node opens."""
        self._spoiled.touch()

    def set_up(self) -> None:
        """Make keys, passes and the store."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        made = ["init", str(self.store), "--credentials", str(self.passes), "--address", address]
        made += ["--clients", str(CLIENTS), "--sites", str(NODES), "--min-reports", "3"]
        for arguments in (["key", str(self.key)], made):
            ended = command(["shuffler", *arguments], self.folder / "said-setting-up")
            if ended.code:
                raise RuntimeError(f"a shuffler cannot be set up: {ended.said}")

    def start_server(self, run: Path, release: str) -> None:
        """Start a run, or resume it, as an operator who restarts the server does."""
        call = partial(self._server, run, tables(release))
        self.server = Party(call, self.folder / f"said-server-{run.name}")
        self.server.start()

    def texts(self, name: str = "") -> str:
        """What all of them have said, or those with this name."""
        return "\n".join(
            path.read_text(encoding="utf-8", errors="replace")
            for path in sorted(self.folder.glob(f"said-{name}*"))
        )

    def witnessed(self, what: str) -> list[str]:
        """Lines that processes wrote down, of one kind, in their order."""
        path = self._witness(what)
        return path.read_text(encoding="ascii").splitlines() if path.exists() else []

    def seen_in_memory(self, release: str) -> list[str]:
        """What a process has that must not have it, a few words each.

        Processes that are begun afterwards know what this one has looked for: once in a run.
        """
        reports, senders, key = self._secrets()
        # Reading is slow: the last reports, and the last sites' tokens.
        reports, senders = reports[-LOOKED_FOR:], senders[-LOOKED_FOR:]
        opens = release == "reports"
        kept = self.shuffler.holds([key, *(reports if opens else [])])
        got = self.server.holds([*senders, *([] if opens else reports)])
        return ["the memory of the shuffler"] * kept + ["the memory of the server"] * got

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

    def came_of(self, run: Path, tally: Tally, seen: Sequence[str] = ()) -> tuple[int, int, str]:
        """Wait for the run's end: rounds lost, releases uncounted, what else went wrong."""
        ended = self.server.wait()
        problem, missing = tally.said(self.texts()), lost(run, ROUNDS)
        # Killed after its last word to the ledger: there is nothing to continue, which is right.
        if ended.code and not (missing == 0 and FINISHED in ended.said):
            problem = problem or tally.wrong(ended, 0)
        left = [*seen, *self.seen_in_files(run)]
        tally.seen = (tally.seen or 0) + len(left)
        if left:
            problem = problem or f"seen: {', '.join(sorted(set(left)))}"
        return missing, self.uncounted(run), problem

    def uncounted(self, run: Path) -> int:
        """Batches the server got, or models nodes were shown, beyond the releases that the ledger
        counts."""
        path = run / "ledger.sqlite"
        counted = len(LedgerRecord(path).attempts) if path.exists() else 0
        batches = len(set(self.witnessed("batches"))) - counted
        return max(batches, uncounted(run, self._witness("models")))

    def _secrets(self) -> tuple[list[bytes], list[bytes], bytes]:
        """Pieces of reports in the order they were sent, tokens of sites, the analyzer's key."""
        reports = [bytes.fromhex(line) for line in self.witnessed("reports")]
        tokens = [
            json.loads((self.passes / f"site-{i}.json").read_text())["token"] for i in range(NODES)
        ]
        senders = [form for text in tokens for form in (text.encode(), bytes.fromhex(text))]
        return reports, senders, bytes.fromhex(self.key.read_text())

    def _socket(self, number: int) -> Path:
        return self.folder / f"socket-{number}"

    def _witness(self, what: str) -> Path:
        return self.folder / f"witness-{what}"

    def _node(self, number: int) -> int:
        send = Sender.send

        def noted(own: Sender, facts: Agreement, now: int, who: int, reports: np.ndarray) -> None:
            for report in reports:
                piece = report[PIECE].astype("<f4").tobytes()
                assert piece  # nothing is everywhere
                note(self._witness("reports"), piece.hex())
            send(own, facts, now, who, reports)

        def sealed(message: bytes, public: bytes, info: bytes) -> bytes:
            whole = seal(message, public, info)
            last = number == NODES - 1
            return os.urandom(len(whole)) if last and self._spoiled.exists() else whole

        link.seal = sealed  # type: ignore[attr-defined]
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

    def _server(self, run: Path, configured: dict[str, dict[str, Any]]) -> int:
        fetch = RemoteBatch.fetch

        def noted(own: RemoteBatch) -> Iterator[bytes]:
            pieces = list(fetch(own))
            digest = sha256(b"".join(pieces)).hexdigest()
            note(self._witness("batches"), f"{own.number} {digest}")
            return iter(pieces)

        def taken(content: RecordDict) -> None:
            if list(content):
                note(self._witness("replies"), "a reply to the server holds something")

        RemoteBatch.fetch = noted  # type: ignore[assignment]
        node_registry.SETTLE_SECONDS = 0.01  # nodes do not come and go
        resolved = {RESOLVED: parse_config(configured).to_json()}
        opens = configured["privacy"]["release"] == "reports"
        settings: dict[str, Any] = {
            **resolved,
            "run-directory": str(run),
            "resume": "yes" if (run / "ledger.sqlite").exists() else "no",
            SHUFFLER: str(self.passes / "analyzer.json"),
            ANALYZER_KEY: str(self.key) if opens else "",
        }
        grid = NodeGrid([self._socket(i) for i in range(NODES)], resolved, taken)
        try:
            server.main(grid, Context(grid.run.run_id, 1, {}, RecordDict(), settings))
        except FlShuffleError as error:
            print(f"fl-shuffle: error: {error}", flush=True)
            return error.exit_code
        return 0


@cache
def _costs() -> None:
    """Play such runs in this process, without a separate shuffler: servers forked afterwards know
    what rounds cost."""
    for release in RELEASES:
        with TemporaryDirectory() as folder:
            configured = tables(release)
            configured["privacy"]["shuffler"] = "server"
            configured["run"]["jobs"] = 1
            simulate(configured, out=Path(folder) / "run")


@contextmanager
def parties(folder: Path) -> Iterator[Parties]:
    """A shuffler and its nodes; whatever runs at the end is ended."""
    _costs()
    found = Parties(folder)
    found.set_up()
    try:
        for party in (found.shuffler, *found.nodes):
            party.start()
        yield found
    finally:
        for party in (found.server, found.shuffler, *found.nodes):
            party.kill()


def _holding(contents: list[bytes], needles: list[bytes]) -> int:
    return sum(needle in content for content in contents for needle in needles)

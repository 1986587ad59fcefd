"""A shuffler for six clients, on a free port of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from fl_shuffle.shuffler.remote.agreement import Agreement
from fl_shuffle.shuffler.remote.client import RemoteShuffler
from fl_shuffle.shuffler.remote.credentials import Pass, Settings, write_key
from fl_shuffle.shuffler.remote.link import Link, Sender
from fl_shuffle.shuffler.remote.sealing import new_key, public_key
from fl_shuffle.shuffler.remote.service import initialise, opened
from tests.processes import free_port

CLIENTS = 6
EVERYBODY = np.ones(CLIENTS, dtype=bool)
FACTS = Agreement("5a" * 16, "reports", CLIENTS, 4, 2, -10, 1 << 20)


class Lab:
    """A shuffler's folder, what it handed out, and the analyzer's key."""

    def __init__(self, home: Path, *, sites: int = 3, min_reports: int = 2) -> None:
        self.home, self.store, self.patience = home, home / "store", 20.0
        settings = Settings(f"127.0.0.1:{free_port()}", CLIENTS, min_reports, 1 << 16)
        initialise(self.store, home / "passes", settings, sites)
        self.private = new_key()
        write_key(home / "analyzer.key", self.private)
        write_key(home / "analyzer.key.pub", public_key(self.private))

    def given(self, name: str) -> Path:
        return self.home / "passes" / f"{name}.json"

    def held_by(self, name: str) -> Pass:
        return Pass.read(self.given(name), name.partition("-")[0])

    def sender(self, site: int, **changed: object) -> Sender:
        own = replace(self.held_by(f"site-{site}"), **changed)
        return Sender(own, public_key(self.private), self.patience)

    def analyzer(self, facts: Agreement = FACTS) -> RemoteShuffler:
        link = Link(self.held_by("analyzer"), self.patience)
        return RemoteShuffler(link, facts, self.private, int, keep=True, counted=None)

    @contextmanager
    def serving(self) -> Iterator[None]:
        with opened(self.store):
            yield

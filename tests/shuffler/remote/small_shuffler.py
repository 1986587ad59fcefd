"""A shuffler for six clients, on a free port of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fl_shuffle.shuffler.remote.agreement import Agreement
from fl_shuffle.shuffler.remote.client import RemoteShuffler
from fl_shuffle.shuffler.remote.credentials import Pass, Settings, write_key
from fl_shuffle.shuffler.remote.link import Link, Sender
from fl_shuffle.shuffler.remote.sealing import new_key, public_key
from fl_shuffle.shuffler.remote.service import initialise, opened
from tests.apps.programs import free_port

CLIENTS = 6
EVERYBODY = np.ones(CLIENTS, dtype=bool)
FACTS = Agreement("5a" * 16, "reports", CLIENTS, 4, 2, -10, 1 << 20)


@dataclass
class Lab:
    """A shuffler's folder, what it handed out, and the analyzer's key."""

    home: Path
    private: bytes
    patience: float = 20.0

    @property
    def store(self) -> Path:
        return self.home / "store"

    def given(self, name: str) -> Path:
        return self.home / "passes" / f"{name}.json"

    def sender(self, site: int, **changed: object) -> Sender:
        own = replace(Pass.read(self.given(f"site-{site}"), "site"), **changed)
        return Sender(own, public_key(self.private), self.patience)

    def analyzer(self, facts: Agreement = FACTS) -> RemoteShuffler:
        link = Link(Pass.read(self.given("analyzer"), "analyzer"), self.patience)
        return RemoteShuffler(link, facts, self.private, int, keep=True, counted=None)


def make_lab(home: Path, *, sites: int = 3, min_reports: int = 2) -> Lab:
    address = f"127.0.0.1:{free_port()}"
    settings = Settings(address, CLIENTS, min_reports, 1 << 16)
    initialise(home / "store", home / "passes", settings, sites)
    lab = Lab(home, new_key())
    write_key(home / "analyzer.key", lab.private)
    write_key(home / "analyzer.key.pub", public_key(lab.private))
    return lab


@contextmanager
def serving(lab: Lab) -> Iterator[None]:
    with opened(lab.store):
        yield

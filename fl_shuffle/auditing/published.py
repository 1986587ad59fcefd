"""Does a run publish anything of its data beside the reports?

The configured federation, server and clients as they are, runs on the data and on neighboring data
sets (one record replaced), with one seed, into the same folder one after the other. Its clients
compute their reports; these are then replaced by numbers that depend on round and client alone, so
that the model, and all that follows from it, is the same. What was published is taken apart field
by field: every file's name, mode and content, every message, and the screen. Only times and the
run's random identifier may differ, in fields that hold nothing else, and they must look like what
they are. Whatever else differs is published beside the reports.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import logging
import re
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, Context, Message
from numpy.typing import NDArray

from fl_shuffle._internal.plugins import load_attribute
from fl_shuffle.auditing.checks import NODES
from fl_shuffle.auditing.effort import Clock
from fl_shuffle.auditing.findings import Difference, Published
from fl_shuffle.configuration.conflicts import AUDIT_CLIENT
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.configuration.sections import Config, DataSection
from fl_shuffle.data import Records
from fl_shuffle.data.features import Features, make_features
from fl_shuffle.data.features.base import FeatureMap
from fl_shuffle.data.partitions import make_partition
from fl_shuffle.data.run_cache import run_cache
from fl_shuffle.data.sources import held_out, load_records
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.federation.launch import client_app_of, simulate
from fl_shuffle.flower import messages
from fl_shuffle.runs.directory import LOCK, RunPlace
from fl_shuffle.runs.display import make_display
from fl_shuffle.runs.resume import states_kept_in

ROUNDS = 2
"""The fewest with which one round follows another."""
HERE = __name__


@dataclass(frozen=True)
class Neighbour:
    """How one record differs: it is another one for `label` 0, or has this label for a negative
    number, or one so far above the largest; or its picture is of the `largest` pixels its type
    holds; or this number stands in place of its features (`feature`)."""

    name: str
    label: int | None = None
    largest: bool = False
    feature: float | None = None


AS_THEY_ARE = Neighbour("the data as they are")
NEIGHBOURS = (
    Neighbour("another record of another class", label=0),
    Neighbour("a picture of the largest pixels its type holds", largest=True),
    Neighbour("a feature that is NaN", feature=float("nan")),
    Neighbour("a feature that is infinite", feature=float("inf")),
    Neighbour("a feature of 3e38, whose gradient is not finite", feature=3e38),
    Neighbour("a label one above the largest, another class count", label=1),
    Neighbour("a label far out of range", label=1000),
    Neighbour("a label below zero", label=-1),
)


class TwinData:
    """The audited configuration's records, as its feature map makes them.

    `fitted`: the map learned from the records; known when they were made for the first time.
    """

    def __init__(self, section: DataSection) -> None:
        self._own = own = load_records(replace(section, validation_fraction=0.0))
        self._features: Features = make_features(section, own.train_images.shape[1:])
        self.fitted = False
        self._made: Records | None = None
        kept = np.arange(len(own.train_labels))
        if section.validation_fraction:
            kept = np.flatnonzero(~held_out(section, own))
        owners = None if own.train_clients is None else own.train_clients[kept]
        partition = make_partition(section, own.train_labels[kept], own.classes, owners)
        # The first client's first record.
        self._at = int(kept[partition.order[0]])

    def beside(self, neighbour: Neighbour) -> Records:
        """Return the data with that record replaced: vectors in place of pictures."""
        own, at = self._own, self._at
        images, labels = own.train_images.copy(), own.train_labels.copy()
        if neighbour.largest:
            kind: Any = images.dtype
            images[at] = np.iinfo(kind).max if np.issubdtype(kind, np.integer) else np.inf
        if neighbour.label == 0:
            other = int(np.argmax(labels != labels[at]))
            images[at] = images[at if self.fitted else other]
            labels[at] = labels[other]
        elif neighbour.label is not None:
            labels[at] = neighbour.label + (own.classes - 1 if neighbour.label > 0 else 0)
        made = self._vectors(images)
        if neighbour.feature is not None:
            made.train_images[at] = neighbour.feature
        return replace(made, train_labels=labels)

    def _vectors(self, images: NDArray[Any]) -> Records:
        """Return what the map makes of these pictures. One that looks at each alone, and learns
        nothing, is asked once for those that stay the same."""
        own, at, features = self._own, self._at, self._features
        features.fit(images)
        self.fitted = features.data_dependent
        if self._made and isinstance(features, FeatureMap) and not self.fitted:
            vectors = self._made.train_images.copy()
            vectors[at] = features.transform(images[at : at + 1])[0]
            return replace(self._made, train_images=vectors)
        vectors = features.transform(images)
        test = features.transform(own.test_images) if len(own.test_images) else vectors[:0]
        self._made = replace(own, train_images=vectors, test_images=test)
        return replace(self._made, train_images=vectors.copy())


class Twins:
    """The configured run, with this module's records and client in place of its own; `place` is its
    folder, gone after each run."""

    def __init__(self, config: Config, place: Path) -> None:
        own = {
            "run.rounds": min(ROUNDS, config.run.rounds), "run.entropy": "seeded",
            "run.engine": "in-process", "run.ray_address": "", "run.device": "cpu",
            "run.jobs": NODES, "data.source": f"{HERE}:records", "data.source_options": {},
            "data.features": "none", "data.feature_options": {}, "app.client": AUDIT_CLIENT,
            # Here no other party shuffles, and nobody has to be kept from the seeded noise.
            "privacy.shuffler": "server",
        }  # fmt: skip
        self._app: Any = load_attribute(client_app_of(config), field="app.client")
        self._config, self._place = resolve_config(config, own), place
        self.data, self.neighbour = TwinData(config.data), AS_THEY_ARE
        self._messages, self._lock = dict[str, str](), threading.Lock()

    def published(self, neighbour: Neighbour) -> dict[str, str]:
        """Run once beside the data; everything that can be seen of it."""
        self.neighbour, self._messages = neighbour, {}
        screen, found = io.StringIO(), dict[str, str]()
        log, quiet = logging.getLogger("fl_shuffle"), logging.NullHandler()
        log.addHandler(quiet)
        _going_on.append(self)
        try:
            with contextlib.redirect_stdout(screen):
                display = make_display(quiet=False, as_json=True)
                simulate(self._config, RunPlace(self._place), display)
        except Exception as error:
            if neighbour is AS_THEY_ARE:
                raise
            found[ERROR] = str(error) if isinstance(error, FlShuffleError) else repr(error)
        finally:
            _going_on.pop()
            log.removeHandler(quiet)
            run_cache.forget()
        for number, line in enumerate(screen.getvalue().splitlines()):
            found[f"screen, line {number}"] = without_times(line)
        found |= fields_of(self._place)
        shutil.rmtree(self._place, ignore_errors=True)
        return found | self._messages

    def answer(self, message: Message, context: Context) -> Message:
        """Return the configured client's; its reports are replaced, then what it got and sends is
        kept."""
        reply: Message = self._app(message, context)
        # Named by what is asked: nodes answer at the same time.
        asked = repr(dict(message.content.get(messages.REQUEST_RECORD, {})))
        name = hashlib.sha256(asked.encode()).hexdigest()[:16]
        if not reply.has_error() and messages.REPORT_RECORD in reply.content.array_records:
            arrays = reply.content.array_records[messages.REPORT_RECORD]
            own = {key: array.numpy() for key, array in arrays.items()}
            for key in {messages.REPORTS, messages.TOTAL} & own.keys():
                own[key] = _stand_in(own[key], key == messages.TOTAL, int(name, 16))
            reply.content[messages.REPORT_RECORD] = messages.array_record(own, shared=False)
        place = f"{MESSAGE}, round {message.metadata.group_id}, {name}"
        with self._lock:
            if f"{place}: node" in self._messages:
                place += ", again"
            self._messages[f"{place}: node"] = str(message.metadata.dst_node_id)
            for side, each in (("request", message), ("reply", reply)):
                self._messages |= {f"{place}: {side}: {key}": text for key, text in _seen(each)}
        return reply


# The apps find by it what they are part of: one audit at a time.
_going_on: list[Twins] = []


def records(_: DataSection) -> Records:
    """Return the data source of the run that is going on."""
    return _going_on[-1].data.beside(_going_on[-1].neighbour)


def client(message: Message, context: Context) -> Message:
    """Return the client of the run that is going on."""
    return _going_on[-1].answer(message, context)


def _stand_in(own: NDArray[Any], is_sum: bool, seed: int) -> NDArray[Any]:
    """Return numbers of the same shape that depend on the request alone; a row that could not be
    used stays so."""
    usable = np.isfinite(own).all(axis=None if is_sum else 1, keepdims=True)
    # Whole multiples of a power of two, so that sums are exact in every order, and small enough for
    # any client's honest report.
    whole = np.random.Generator(np.random.PCG64(seed)).integers(-64, 65, size=own.shape)
    return np.where(usable, whole / 2.0**20, np.nan).astype(own.dtype)


def _seen(message: Message) -> Iterator[tuple[str, str]]:
    """Yield all of a message but the times and names Flower gives it."""
    yield "type", f"{message.metadata.message_type} of {message.metadata.group_id}"
    if message.has_error():
        yield "error", f"{message.error.code}: {message.error.reason}"
        return
    for name, record in message.content.items():
        yield f"{type(record).__name__} {name}", repr(list(record))
        for key, value in record.items():
            text = repr(value)
            if isinstance(value, Array):
                text = f"{value.dtype} {tuple(value.shape)} {value.stype} {shown(value.data)}"
            yield f"{name}.{key}", text


def audit_published(
    config: Config, clock: Clock, neighbours: Sequence[Neighbour] = NEIGHBOURS
) -> Published:
    """Run the twins, as many as the clock allows (at least one), and compare what they publish:
    the run directory, every message and the screen. (The report page is made of the run directory
    alone.)

    Engine, seeds and length are the audit's own: in-process, seeded, NODES nodes, ROUNDS rounds at
    most. Raises `FlShuffleError` if the audited configuration itself cannot run.
    """
    tried, notes, differences = list[str](), list[str](), list[Difference]()
    with (
        tempfile.TemporaryDirectory(prefix="fl-shuffle-twins-") as home,
        # What the runs keep outside of their directory goes with them, too.
        states_kept_in(Path(home) / "state"),
    ):
        twins = Twins(config, Path(home) / "run")
        first = twins.published(AS_THEY_ARE)
        if config.data.validation_fraction:
            notes.append("held-out records decide accuracy and loss: that is not covered")
        if twins.data.fitted:
            # Its warning says so; what a label does must still not be seen.
            neighbours = [one for one in neighbours if not one.largest]
            notes.append("features are fitted on the records: what that fit tells is not covered")
        for neighbour in neighbours:
            if tried and not clock.left:
                left = len(neighbours) - len(tried)
                notes.append(f"the time was up: {left} neighboring data sets were not tried")
                break
            differences += compare(neighbour.name, first, twins.published(neighbour))
            tried.append(neighbour.name)
    count = sum(key.endswith(": node") for key in first)
    return Published(tuple(tried), len(first), count, tuple(differences), tuple(notes))


Fields = Mapping[str, str]
"""Where -> what stands there."""

MOMENT = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([.,]\d+)?([+-]\d\d:\d\d| UTC)?"
NUMBER = r"-?\d+(\.\d+)?(e[+-]?\d+)?"
TIMED = re.compile(
    rf'("(?:seconds|accounting_seconds|started|finished)": )(?:{NUMBER}|"(?:{MOMENT}|{NUMBER})")'
    r"(?=[,}\]]|$)"
)
"""Fields that hold a time: of day as ISO text, or seconds."""
NAMED = re.compile(r'("run": )"[0-9a-f]{32}"')
"""The field that holds a run's random identifier."""
MESSAGE = "message"
ERROR = "the run ends with an error"
# A checkpoint is written when the clock says so: of two runs the same rounds' are compared.
CHECKPOINT = "checkpoint of round"


def compare(neighbour: str, first: Fields, second: Fields) -> list[Difference]:
    """Return every field that is not the same in both. Of a run that ended with an error, what it
    did not come to write is no difference of its own."""
    found = []
    # The run's own statement, then that of a message, explains the rest best.
    for where in sorted(
        {*first, *second}, key=lambda w: (w != ERROR, not w.startswith(MESSAGE), w)
    ):
        values = first.get(where), second.get(where)
        unwritten = values[1] is None and ERROR in second
        by_the_clock = CHECKPOINT in where and None in values
        if values[0] != values[1] and not unwritten and not by_the_clock:
            found.append(Difference(neighbour, where, *values))
    return found


def fields_of(directory: Path) -> dict[str, str]:
    """Return everything in a run directory: a file's mode, and its content by places."""
    found: dict[str, str] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        found[f"{name}: mode"] = oct(path.lstat().st_mode)
        if path.is_file():
            found |= {f"{name}: {where}": text for where, text in _content(path)}
    return found


def _content(path: Path) -> Iterator[tuple[str, str]]:
    """Yield a file's rows or lines, or a digest of its bytes."""
    if path.suffix == ".sqlite":
        yield from _database(path)
    elif path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8", errors="backslashreplace") as file:
            for number, row in enumerate(csv.DictReader(file), 1):
                yield f"line {number}", without_times(row)
    elif path.suffix in (".json", ".log", ".html", ".txt"):
        text = path.read_text(encoding="utf-8", errors="backslashreplace")
        for number, line in enumerate(text.splitlines(), 1):
            timed = path.suffix == ".log"
            yield f"line {number}", re.sub(MOMENT, "a time", line) if timed else without_times(line)
    elif path.name == LOCK:
        lines = path.read_text(encoding="ascii", errors="backslashreplace").splitlines()
        for number, line in enumerate(lines, 1):
            yield f"line {number}", re.sub("^[0-9a-f]{32}$", "an identifier", line)
    else:
        yield "content", shown(path.read_bytes())


def _database(path: Path) -> Iterator[tuple[str, str]]:
    """Yield every row of every table, the schema, and how many pages hold what is in no table (how
    large the file is follows from these, and from how long its times are as text)."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        schema = database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name")
        yield "schema", repr([tuple(row) for row in schema])
        for pragma in ("freelist_count", "user_version"):
            yield pragma, repr(database.execute(f"PRAGMA {pragma}").fetchone()[0])
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            for number, row in enumerate(database.execute(f'SELECT * FROM "{name}"')):
                cells = dict(row)
                place = f"{name}[{number}]"
                if name == "meta":
                    place = cells.pop("key")
                    cells = {place: json.loads(cells["value"])}
                elif name == "checkpoint":
                    place = f"{CHECKPOINT} {cells.pop('round')}"
                yield place, without_times(cells)


def without_times(line: Any) -> str:
    """Return a line, or values as JSON, with words for the times and the identifier of a run, in
    fields that may hold one."""
    text = line if isinstance(line, str) else json.dumps(line, default=shown)
    return NAMED.sub(r"\1an identifier", TIMED.sub(r"\1a time", text))


def shown(value: bytes) -> str:
    """Return how many bytes, and a digest of them."""
    return f"{len(value)} bytes, {hashlib.sha256(value).hexdigest()}"

"""Twin runs: does a run publish anything of its data beside the reports?

The configured federation, server and clients as they are, runs on the data and on neighbouring data
sets (one record replaced), with one seed, into the same folder one after the other. Its clients
compute their reports; these are then replaced by numbers that hang on round and client alone, so
that the model, and all that follows from it, is the same. Whatever still differs is published
beside the reports: see `fl_shuffle.auditing.published` for what is compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, Context, Message, RecordDict
from numpy.typing import NDArray

from fl_shuffle.auditing.games import Clock
from fl_shuffle.auditing.published import (
    ERROR,
    MESSAGE,
    Difference,
    Published,
    compare,
    fields_of,
    leaves,
)
from fl_shuffle.configuration.sections import Config, DataSection
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.flower.records import REPORT_RECORD, REPORTS, SUM, array_record
from fl_shuffle.plugins import load_attribute
from fl_shuffle.runs import RunPlace
from fl_shuffle.runs.data_check import STATE_VARIABLE
from fl_shuffle.simulation.launch import simulate
from fl_shuffle.simulation.progress import make_display
from fl_shuffle.tasks.data import Records, load_records
from fl_shuffle.tasks.task import Features, forget_data, load_task, make_features

ROUNDS = 2
"""The fewest with which one round follows another."""
NODES = 2
"""The fewest with which who plays whom can show."""
HERE = __name__
PLACE = "run"


@dataclass(frozen=True)
class Neighbour:
    """How one record differs: its label (`label`: that of another class for 0, this one for a
    negative number, else so far above the largest), another's picture (`picture`), the largest
    pixels its type holds (`extreme`), or this number in place of its features (`feature`)."""

    name: str
    label: int | None = None
    picture: bool = False
    extreme: bool = False
    feature: float | None = None
    held_out: bool = False


NEIGHBOURS = (
    Neighbour("another record of another class", label=0, picture=True),
    Neighbour("a picture of the largest pixels its type holds", extreme=True),
    Neighbour("a feature that is NaN", feature=float("nan")),
    Neighbour("a feature that is infinite", feature=float("inf")),
    Neighbour("a feature of 3e38, whose gradient is not finite", feature=3e38),
    Neighbour("a label one above the largest, another class count", label=1),
    Neighbour("a label far out of range", label=1000),
    Neighbour("a label below zero", label=-1),
)
HELD_OUT = Neighbour("another label of a held-out record", label=0, held_out=True)


@dataclass
class _World:
    """What the run that is going on is made of, and what it was seen to send; `fitted`: its feature
    map learned from the records."""

    section: DataSection
    client_app: Any
    neighbour: Neighbour | None
    record: int
    fitted: bool = False
    messages: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


# The apps find by it what they are part of: one audit at a time.
_worlds: list[_World] = []


def _now() -> _World:
    if not _worlds:
        raise RuntimeError(f"{HERE} is for the audit's own runs")
    return _worlds[-1]


def records(section: DataSection) -> Records:
    """The audited configuration's records, one of them replaced."""
    world = _now()
    own = load_records(dataclasses.replace(section, source=world.section.source, validation=0.0))
    neighbour, record = world.neighbour, world.record
    if neighbour is None:
        return own
    images, labels = own.train_images, own.train_labels
    if neighbour.picture:
        images = images.copy()
        images[record] = images[_of_another_class(labels, record)]
    if neighbour.extreme:
        images = images.copy()
        kind: Any = images.dtype
        images[record] = np.iinfo(kind).max if np.issubdtype(kind, np.integer) else np.inf
    if neighbour.label is not None:
        labels = labels.copy()
        labels[record] = _label(neighbour.label, own, record)
    return dataclasses.replace(own, train_images=images, train_labels=labels)


def _label(shift: int, own: Records, record: int) -> int:
    if shift == 0:
        return int(own.train_labels[_of_another_class(own.train_labels, record)])
    return shift if shift < 0 else own.classes - 1 + shift


def _of_another_class(labels: NDArray[np.int64], record: int) -> int:
    return int(np.argmax(labels != labels[record]))


def numbered(section: DataSection) -> Records:
    """Every training record's image is its number: shows where records end up."""
    own = load_records(dataclasses.replace(section, source=_now().section.source, validation=0.0))
    train, test = (np.arange(len(part))[:, None] for part in (own.train_labels, own.test_labels))
    return dataclasses.replace(own, train_images=train, test_images=test)


class _Poisoned:
    """The configured features; one row of the training records' is overwritten."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._inner: Features | None = None
        self._training: NDArray[Any] | None = None
        self.data_dependent = False

    def fit(self, images: NDArray[Any]) -> None:
        """As the configured features."""
        section = dataclasses.replace(_now().section, feature_options=self._options)
        self._inner = make_features(section, images.shape[1:])
        self._inner.fit(images)
        self._training = images
        self.data_dependent = _now().fitted = self._inner.data_dependent

    def transform(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """As the configured features."""
        assert self._inner is not None
        found = self._inner.transform(images)
        neighbour = _now().neighbour
        # The records that were fitted on are the training records, the first client's first one
        # first.
        if images is self._training and neighbour is not None and neighbour.feature is not None:
            found = found.copy()
            found[0] = neighbour.feature
        return found


def features(**options: Any) -> Features:
    """See `_Poisoned`."""
    return _Poisoned(options)


def client(message: Message, context: Context) -> Message:
    """The configured client; what it got and sends is kept, its reports are replaced."""
    world = _now()
    reply: Message = world.client_app(message, context)
    seen = {f"request: {where}": value for where, value in _seen(message)}
    seen |= {f"reply: {where}": value for where, value in _seen(reply)}
    if not reply.has_error() and REPORT_RECORD in reply.content.array_records:
        arrays = reply.content.array_records[REPORT_RECORD]
        if SUM in arrays:
            own = arrays[SUM].numpy()
            usable = np.array([np.isfinite(own).all()])
            seen["reply: usable sum"] = repr(usable.tolist())
            part = _stand_in(own[None], usable, message)[0]
            reply.content[REPORT_RECORD] = array_record(
                {SUM: part.astype(np.float64)}, shared=False
            )
        if REPORTS in arrays:
            own = arrays[REPORTS].numpy()
            usable = np.asarray(np.isfinite(own.reshape(len(own), -1)).all(axis=1))
            seen["reply: usable reports"] = repr(usable.tolist())
            reply.content[REPORT_RECORD] = array_record(
                {REPORTS: _stand_in(own, usable, message)}, shared=False
            )
    # Named by what is asked: nodes answer at the same time.
    place = f"{MESSAGE}, round {message.metadata.group_id}, {_asked(message)}"
    with world.lock:
        if f"{place}: node" in world.messages:
            place += ", again"
        seen["node"] = str(message.metadata.dst_node_id)
        world.messages.update((f"{place}: {key}", value) for key, value in seen.items())
    return reply


def _asked(message: Message) -> str:
    """A short name for the request's settings: whom it asks, and for what."""
    settings = repr([(key, value) for key, value in _seen(message) if key.startswith("config")])
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def _stand_in(
    own: NDArray[np.float32], usable: NDArray[np.bool_], message: Message
) -> NDArray[np.float32]:
    """Reports of the same shape that hang on the request alone; a row that could not be used stays
    so."""
    draw = np.random.Generator(np.random.PCG64(int(_asked(message), 16)))
    # Whole multiples of a power of two, so that sums are exact in every order, and small enough for
    # any client's honest report.
    whole = draw.integers(-64, 65, size=own.shape)
    return np.asarray(np.where(usable[:, None], whole / 2.0**20, np.nan), dtype=np.float32)


def _seen(message: Message) -> Iterator[tuple[str, str]]:
    """All of a message but the numbers in its reports, and the times and names Flower gives it."""
    yield "type", message.metadata.message_type
    yield "group", message.metadata.group_id
    if message.has_error():
        yield "error", f"{message.error.code}: {message.error.reason}"
        return
    content: RecordDict = message.content
    yield "records", repr(list(content))
    for name, arrays in content.array_records.items():
        yield f"arrays {name}", repr(list(arrays))
        for key, array in arrays.items():
            yield f"array {name}.{key}", _array(array, hidden=name == REPORT_RECORD)
    for name, metrics in content.metric_records.items():
        yield f"metrics {name}", repr(dict(metrics))
    for name, configs in content.config_records.items():
        yield f"config {name}", repr(dict(configs))


def _array(array: Array, *, hidden: bool) -> str:
    kind = f"{array.dtype} {tuple(array.shape)} {array.stype}"
    return kind if hidden else f"{kind} {hashlib.sha256(array.data).hexdigest()}"


def audit_published(
    config: Config, clock: Clock, neighbours: Sequence[Neighbour] = NEIGHBOURS
) -> Published:
    """Run the twins, as many as the clock allows (at least one), and compare what they publish:
    the run directory, every message and the screen. (The report page is made of the run directory
    alone.)

    Engine, seeds and length are the audit's own: in-process, seeded, NODES nodes, ROUNDS rounds at
    most.
    Raises `FlShuffleError` if the audited configuration itself cannot run.
    """
    section = config.data
    notes = []
    audited = dataclasses.replace(
        config,
        run=dataclasses.replace(
            config.run,
            rounds=min(ROUNDS, config.run.rounds),
            entropy="seeded",
            engine="in-process",
            device="cpu",
            jobs=NODES,
        ),
        data=dataclasses.replace(section, source=f"{HERE}:records", features=f"{HERE}:features"),
        app=dataclasses.replace(config.app, client=f"{HERE}:client"),
    )
    inner = load_attribute(config.app.client, field="app.client")
    with (
        tempfile.TemporaryDirectory(prefix="fl-shuffle-twins-") as home,
        _state_in(Path(home) / "state"),
    ):
        place = Path(home) / PLACE

        def play(neighbour: Neighbour | None, record: int) -> tuple[dict[str, str], _World]:
            world = _World(section, inner, neighbour, record)
            with _living(world):
                return _published(audited, place, raising=neighbour is None), world

        first, world = play(None, 0)
        own, held = _places(config)
        tried, differences = list[str](), list[Difference]()
        neighbours = list(neighbours)
        if world.fitted:
            # Its warning says so; what a label does must still not be seen.
            neighbours = [
                dataclasses.replace(one, picture=False) for one in neighbours if not one.extreme
            ]
            notes.append("features are fitted on the records: what that fit tells is not covered")
        if held is not None and _declares(first, "validation"):
            notes.append("held-out records decide accuracy and loss: the run says so")
        elif held is not None:
            neighbours.append(HELD_OUT)
        for neighbour in neighbours:
            if tried and clock.over():
                break
            record = held if neighbour.held_out and held is not None else own
            differences += compare(neighbour.name, first, play(neighbour, record)[0])
            tried.append(neighbour.name)
    if len(tried) < len(neighbours):
        notes.append(
            f"the time was up: {len(neighbours) - len(tried)} neighbouring data sets were not tried"
        )
    return Published(
        tuple(tried),
        len(first),
        sum(key.endswith(": node") for key in first),
        tuple(differences),
        tuple(notes),
    )


def _declares(found: dict[str, str], word: str) -> bool:
    """Whether one of the run's published warnings has this word."""
    return any(
        where.startswith("summary.json: warnings[") and word in text
        for where, text in found.items()
    )


@contextlib.contextmanager
def _state_in(folder: Path) -> Iterator[None]:
    """What the runs keep outside of their directory goes with them, too."""
    before = os.environ.get(STATE_VARIABLE)
    os.environ[STATE_VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[STATE_VARIABLE]
        if before is not None:
            os.environ[STATE_VARIABLE] = before


@contextlib.contextmanager
def _living(world: _World) -> Iterator[None]:
    forget_data()
    quiet = logging.NullHandler()
    log = logging.getLogger("fl_shuffle")
    log.addHandler(quiet)
    _worlds.append(world)
    try:
        yield
    finally:
        _worlds.remove(world)
        log.removeHandler(quiet)
        forget_data()


def _published(config: Config, place: Path, *, raising: bool) -> dict[str, str]:
    """Run once; everything that can be seen of it. The folder is gone afterwards."""
    screen = io.StringIO()
    found = {}
    try:
        with contextlib.redirect_stdout(screen):
            simulate(config, RunPlace(place), make_display(quiet=False, as_json=True))
    except FlShuffleError as error:
        if raising:
            raise
        found[ERROR] = str(error)
    except Exception as error:
        if raising:
            raise
        found[ERROR] = repr(error)
    for number, line in enumerate(screen.getvalue().splitlines()):
        found.update((f"screen, line {number}: {key}", v) for key, v in leaves(json.loads(line)))
    found |= fields_of(place)
    shutil.rmtree(place, ignore_errors=True)
    return found | _now().messages


def _places(config: Config) -> tuple[int, int | None]:
    """The number of the first client's first record, and of a held-out one if there is any."""
    section = config.data
    found = dataclasses.replace(
        config,
        data=dataclasses.replace(
            section, source=f"{HERE}:numbered", features="none", feature_options={}
        ),
    )
    with _living(_World(section, None, None, 0)):
        task = load_task(found)
    held = int(task.test_inputs[0, 0]) if section.validation else None
    return int(task.inputs[0, 0]), held

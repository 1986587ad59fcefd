"""Twin runs: does a run publish anything of its data beside the reports?

The configured federation, server and clients as they are, runs on the data and on neighbouring data
sets (one record replaced), with one seed, into the same folder one after the other. Its clients
compute their reports; these are then replaced by numbers that hang on round and client alone, so
that the model, and all that follows from it, is the same. Whatever still differs is published
beside the reports: see `fl_shuffle.auditing.published` for what is compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from flwr.app import Array, Context, Message
from numpy.typing import NDArray

from fl_shuffle.auditing.effort import Clock
from fl_shuffle.auditing.file_neighbours import CELLS, holds_lines, with_cells
from fl_shuffle.auditing.findings import Difference, Published
from fl_shuffle.auditing.published import (
    ERROR,
    MESSAGE,
    compare,
    fields_of,
    without_times,
)
from fl_shuffle.configuration.sections import Config, DataSection
from fl_shuffle.data import Records
from fl_shuffle.data.features import Features, make_features
from fl_shuffle.data.features.maps import FeatureMap
from fl_shuffle.data.sources import load_records
from fl_shuffle.data.task import forget_data, load_task
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.flower.messages import (
    REPORT_RECORD,
    REPORTS,
    REQUEST_RECORD,
    SUM_OF_REPORTS,
    VALID,
    array_record,
)
from fl_shuffle.plugins import load_attribute
from fl_shuffle.runs.data_check import STATE_VARIABLE
from fl_shuffle.runs.display import make_display
from fl_shuffle.runs.place import RunPlace
from fl_shuffle.simulation.launch import simulate

ROUNDS = 2
"""The fewest with which one round follows another."""
NODES = 2
"""The fewest with which who plays whom can show."""
HERE = __name__
PLACE = "run"


@dataclass(frozen=True)
class Neighbour:
    """How one record differs: its `label` (that of another class for 0, this one for a negative
    number, else so far above the largest), its `picture` ("another" record's, or of the "largest"
    pixels its type holds), this number in place of its features (`feature`), or this text in the
    cells of its line in a file (`cells`)."""

    name: str
    label: int | None = None
    picture: str = ""
    feature: float | None = None
    cells: bytes | None = None
    held_out: bool = False


NEIGHBOURS = (
    Neighbour("another record of another class", label=0, picture="another"),
    Neighbour("a picture of the largest pixels its type holds", picture="largest"),
    Neighbour("a feature that is NaN", feature=float("nan")),
    Neighbour("a feature that is infinite", feature=float("inf")),
    Neighbour("a feature of 3e38, whose gradient is not finite", feature=3e38),
    Neighbour("a label one above the largest, another class count", label=1),
    Neighbour("a label far out of range", label=1000),
    Neighbour("a label below zero", label=-1),
)
AS_THEY_ARE = Neighbour("the data as they are")
HELD_OUT = Neighbour("another label of a held-out record", label=0, held_out=True)


@dataclass
class _World:
    """What the run that is going on is made of, and what it was seen to send; `fitted`: its feature
    map learned from the records. `kept`: the pictures of the audit's first run, and what its
    feature map made of them."""

    section: DataSection
    client_app: Any = None
    neighbour: Neighbour = AS_THEY_ARE
    record: int = 0
    fitted: bool = False
    kept: list[tuple[NDArray[Any], NDArray[np.float32]]] = field(default_factory=list)
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
    neighbour, record = _now().neighbour, _now().record
    audited = replace(section, source=_now().section.source, validation=0.0)
    if neighbour.cells is not None:
        with with_cells(audited, record, neighbour.cells) as changed:
            return load_records(changed)
    own = load_records(audited)
    images, labels = own.train_images.copy(), own.train_labels.copy()
    other = int(np.argmax(labels != labels[record]))
    if neighbour.picture == "another":
        images[record] = images[other]
    elif neighbour.picture:
        kind: Any = images.dtype
        images[record] = np.iinfo(kind).max if np.issubdtype(kind, np.integer) else np.inf
    if neighbour.label is not None:
        shift = neighbour.label
        above = shift if shift < 0 else own.classes - 1 + shift
        labels[record] = above if shift else labels[other]
    return replace(own, train_images=images, train_labels=labels)


def numbered(section: DataSection) -> Records:
    """Every training record's image is its number: shows where records end up."""
    own = load_records(replace(section, source=_now().section.source, validation=0.0))
    train, test = (np.arange(len(part))[:, None] for part in (own.train_labels, own.test_labels))
    return replace(own, train_images=train, test_images=test)


class _Poisoned:
    """The configured features; one row of the training records' is overwritten."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._inner: Features | None = None
        self._training: NDArray[Any] | None = None
        self.data_dependent = False

    def fit(self, images: NDArray[Any]) -> None:
        """As the configured features."""
        section = replace(_now().section, feature_options=self._options)
        self._inner = make_features(section, images.shape[1:])
        self._inner.fit(images)
        self._training = images
        self.data_dependent = _now().fitted = self._inner.data_dependent

    def transform(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """As the configured features."""
        assert self._inner is not None
        found, feature = _vectors(self._inner, images), _now().neighbour.feature
        # The records that were fitted on are the training records, the first client's first one
        # first.
        if images is self._training and feature is not None:
            found = found.copy()
            found[0] = feature
        return found


def _vectors(inner: Features, images: NDArray[Any]) -> NDArray[np.float32]:
    """What the map makes of these pictures. One that looks at each alone, and learns nothing, is
    asked for those that are not the first run's."""
    if not isinstance(inner, FeatureMap) or inner.data_dependent:
        return inner.transform(images)
    for pictures, vectors in _now().kept:
        if pictures.shape == images.shape:
            found = vectors.copy()
            other = np.flatnonzero((pictures != images).reshape(len(images), -1).any(axis=1))
            if len(other):
                found[other] = inner.transform(images[other])
            return found
    found = inner.transform(images)
    _now().kept.append((images, found))
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
        kept = {name: arrays[name].numpy() for name in (VALID,) if name in arrays}
        for name in (REPORTS, SUM_OF_REPORTS):
            if name in arrays:
                own = arrays[name].numpy()
                rows = own.reshape(1 if name == SUM_OF_REPORTS else len(own), -1)
                usable = np.asarray(np.isfinite(rows).all(axis=1))
                seen[f"reply: usable {name}"] = repr(usable.tolist())
                kept[name] = _stand_in(rows, usable, message).reshape(own.shape).astype(own.dtype)
        reply.content[REPORT_RECORD] = array_record(kept, shared=False)
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
    asked = [(key, value) for key, value in _seen(message) if key == f"config {REQUEST_RECORD}"]
    return hashlib.sha256(repr(asked).encode()).hexdigest()[:16]


def _stand_in(own: NDArray[Any], usable: NDArray[np.bool_], message: Message) -> NDArray[Any]:
    """Reports of the same shape that hang on the request alone; a row that could not be used stays
    so."""
    draw = np.random.Generator(np.random.PCG64(int(_asked(message), 16)))
    # Whole multiples of a power of two, so that sums are exact in every order, and small enough for
    # any client's honest report.
    whole = draw.integers(-64, 65, size=own.shape)
    return np.where(usable[:, None], whole / 2.0**20, np.nan)


def _seen(message: Message) -> Iterator[tuple[str, str]]:
    """All of a message but the numbers in its reports, and the times and names Flower gives it."""
    yield "type", message.metadata.message_type
    yield "group", message.metadata.group_id
    if message.has_error():
        yield "error", f"{message.error.code}: {message.error.reason}"
        return
    content = message.content
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
    inner = load_attribute(config.app.client, field="app.client")
    with (
        tempfile.TemporaryDirectory(prefix="fl-shuffle-twins-") as home,
        # What the runs keep outside of their directory goes with them, too.
        patch.dict(os.environ, {STATE_VARIABLE: str(Path(home) / "state")}),
    ):
        kept = list[Any]()

        def play(neighbour: Neighbour | None, record: int = 0) -> tuple[dict[str, str], _World]:
            world = _World(config.data, inner, neighbour or AS_THEY_ARE, record, kept=kept)
            with _living(world):
                return _published(_audited(config), Path(home) / PLACE), world

        first, world = play(None)
        own, held = _places(config)
        wanted, notes = _wanted(config, neighbours, first, world, held)
        tried, differences = list[str](), list[Difference]()
        for neighbour in wanted:
            if tried and clock.over():
                left = len(wanted) - len(tried)
                notes.append(f"the time was up: {left} neighbouring data sets were not tried")
                break
            record = held if neighbour.held_out and held is not None else own
            differences += compare(neighbour.name, first, play(neighbour, record)[0])
            tried.append(neighbour.name)
    messages = sum(key.endswith(": node") for key in first)
    return Published(tuple(tried), len(first), messages, tuple(differences), tuple(notes))


def _audited(config: Config) -> Config:
    run = replace(
        config.run,
        rounds=min(ROUNDS, config.run.rounds),
        entropy="seeded",
        engine="in-process",
        device="cpu",
        jobs=NODES,
    )
    data = replace(config.data, source=f"{HERE}:records", features=f"{HERE}:features")
    app = replace(config.app, client=f"{HERE}:client")
    return replace(config, run=run, data=data, app=app)


def _wanted(
    config: Config, neighbours: Sequence[Neighbour], first: dict[str, str], world: _World,
    held: int | None,
) -> tuple[list[Neighbour], list[str]]:  # fmt: skip
    """The neighbouring data sets that say something of this configuration, and what is not
    covered."""
    wanted, notes = list(neighbours), []
    if holds_lines(config.data):
        wanted = [*(Neighbour(name, cells=cells) for name, cells in CELLS.items()), *wanted]
    if world.fitted:
        # Its warning says so; what a label does must still not be seen.
        wanted = [replace(one, picture="") for one in wanted if one.picture != "largest"]
        notes.append("features are fitted on the records: what that fit tells is not covered")
    warned = any(place.startswith("summary.json") and "data.validation = " in text
                 for place, text in first.items())  # fmt: skip
    if held is not None and warned:
        notes.append("held-out records decide accuracy and loss: the run says so")
    elif held is not None:
        wanted.append(HELD_OUT)
    return wanted, notes


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


def _published(config: Config, place: Path) -> dict[str, str]:
    """Run once; everything that can be seen of it. The folder is gone afterwards."""
    screen, found = io.StringIO(), dict[str, str]()
    try:
        with contextlib.redirect_stdout(screen):
            simulate(config, RunPlace(place), make_display(quiet=False, as_json=True))
    except Exception as error:
        if _now().neighbour is AS_THEY_ARE:
            raise
        found[ERROR] = str(error) if isinstance(error, FlShuffleError) else repr(error)
    for number, line in enumerate(screen.getvalue().splitlines()):
        found[f"screen, line {number}"] = without_times(line)
    found |= fields_of(place)
    shutil.rmtree(place, ignore_errors=True)
    return found | _now().messages


def _places(config: Config) -> tuple[int, int | None]:
    """The number of the first client's first record, and of a held-out one if there is any."""
    section = config.data
    plain = replace(section, source=f"{HERE}:numbered", features="none", feature_options={})
    with _living(_World(section)):
        task = load_task(replace(config, data=plain))
    held = int(task.test_inputs[0, 0]) if section.validation else None
    return int(task.inputs[0, 0]), held

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
from flwr.app import Context, Message
from numpy.typing import NDArray

from fl_shuffle.auditing.effort import Clock
from fl_shuffle.auditing.findings import Difference, Published
from fl_shuffle.auditing.published import ERROR, MESSAGE, compare, fields_of, shown, without_times
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.configuration.sections import Config, DataSection
from fl_shuffle.data import Records
from fl_shuffle.data.features import Features, make_features
from fl_shuffle.data.features.maps import FeatureMap
from fl_shuffle.data.partitions import make_partition
from fl_shuffle.data.sources import held_out, load_records
from fl_shuffle.data.task import forget_data
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.flower import messages
from fl_shuffle.plugins import load_attribute
from fl_shuffle.runs.data_check import STATE_VARIABLE
from fl_shuffle.runs.directory import RunPlace
from fl_shuffle.runs.display import make_display
from fl_shuffle.simulation.launch import simulate

ROUNDS = 2
"""The fewest with which one round follows another."""
NODES = 2
"""The fewest with which who plays whom can show."""
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
        self._own = own = load_records(replace(section, validation=0.0))
        self._features: Features = make_features(section, own.train_images.shape[1:])
        self.fitted = False
        self._made: Records | None = None
        kept = np.arange(len(own.train_labels))
        if section.validation:
            kept = np.flatnonzero(~held_out(section, own))
        owners = None if own.train_clients is None else own.train_clients[kept]
        partition = make_partition(section, own.train_labels[kept], own.classes, owners)
        # The first client's first record.
        self._at = int(kept[partition.order[0]])

    def beside(self, neighbour: Neighbour) -> Records:
        """With that record replaced: vectors in place of pictures."""
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
        """What the map makes of these pictures. One that looks at each alone, and learns nothing,
        is asked once for those that stay the same."""
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


@dataclass
class _Twin:
    """The run that is going on: its data, its client, and what this was seen to send."""

    data: TwinData
    client_app: Any
    neighbour: Neighbour
    messages: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


# The apps find by it what they are part of: one audit at a time.
_twins: list[_Twin] = []


def records(_: DataSection) -> Records:
    """The data source of the run that is going on."""
    return _twins[-1].data.beside(_twins[-1].neighbour)


def client(message: Message, context: Context) -> Message:
    """The configured client; its reports are replaced, then what it got and sends is kept."""
    twin = _twins[-1]
    reply: Message = twin.client_app(message, context)
    asked = dict(_seen(message)).get(messages.REQUEST_RECORD, "")
    # Named by what is asked: nodes answer at the same time.
    name = hashlib.sha256(asked.encode()).hexdigest()[:16]
    if not reply.has_error() and messages.REPORT_RECORD in reply.content.array_records:
        arrays = reply.content.array_records[messages.REPORT_RECORD]
        own = {key: array.numpy() for key, array in arrays.items()}
        for key in {messages.REPORTS, messages.TOTAL} & own.keys():
            own[key] = _stand_in(own[key], key == messages.TOTAL, int(name, 16))
        reply.content[messages.REPORT_RECORD] = messages.array_record(own, shared=False)
    place = f"{MESSAGE}, round {message.metadata.group_id}, {name}"
    with twin.lock:
        if f"{place}: node" in twin.messages:
            place += ", again"
        twin.messages[f"{place}: node"] = str(message.metadata.dst_node_id)
        for side, each in (("request", message), ("reply", reply)):
            twin.messages |= {f"{place}: {side}: {key}": text for key, text in _seen(each)}
    return reply


def _stand_in(own: NDArray[Any], is_sum: bool, seed: int) -> NDArray[Any]:
    """Numbers of the same shape that hang on the request alone; a row that could not be used stays
    so."""
    usable = np.isfinite(own).all(axis=None if is_sum else 1, keepdims=True)
    # Whole multiples of a power of two, so that sums are exact in every order, and small enough for
    # any client's honest report.
    whole = np.random.Generator(np.random.PCG64(seed)).integers(-64, 65, size=own.shape)
    return np.where(usable, whole / 2.0**20, np.nan).astype(own.dtype)


def _seen(message: Message) -> Iterator[tuple[str, str]]:
    """All of a message but the times and names Flower gives it."""
    yield "type", f"{message.metadata.message_type} of {message.metadata.group_id}"
    if message.has_error():
        yield "error", f"{message.error.code}: {message.error.reason}"
        return
    content = message.content
    yield "records", repr([(name, type(each).__name__) for name, each in content.items()])
    for records in (content.metric_records, content.config_records):
        for name, each in records.items():
            yield name, repr(dict(each))
    for name, arrays in content.array_records.items():
        yield f"names of {name}", repr(list(arrays))
        for key, array in arrays.items():
            kind = f"{array.dtype} {tuple(array.shape)} {array.stype}"
            yield f"{name}.{key}", f"{kind} {shown(array.data)}"


def audit_published(
    config: Config, clock: Clock, neighbours: Sequence[Neighbour] = NEIGHBOURS
) -> Published:
    """Run the twins, as many as the clock allows (at least one), and compare what they publish:
    the run directory, every message and the screen. (The report page is made of the run directory
    alone.)

    Engine, seeds and length are the audit's own: in-process, seeded, NODES nodes, ROUNDS rounds at
    most. Raises `FlShuffleError` if the audited configuration itself cannot run.
    """
    app = load_attribute(config.app.client, field="app.client")
    tried, notes, differences = list[str](), list[str](), list[Difference]()
    with (
        tempfile.TemporaryDirectory(prefix="fl-shuffle-twins-") as home,
        # What the runs keep outside of their directory goes with them, too.
        patch.dict(os.environ, {STATE_VARIABLE: str(Path(home) / "state")}),
    ):
        data = TwinData(config.data)
        first = _published(config, _Twin(data, app, AS_THEY_ARE), Path(home) / "run")
        if config.data.validation:
            notes.append("held-out records decide accuracy and loss: that is not covered")
        if data.fitted:
            # Its warning says so; what a label does must still not be seen.
            neighbours = [one for one in neighbours if not one.largest]
            notes.append("features are fitted on the records: what that fit tells is not covered")
        for neighbour in neighbours:
            if tried and clock.over():
                left = len(neighbours) - len(tried)
                notes.append(f"the time was up: {left} neighbouring data sets were not tried")
                break
            second = _published(config, _Twin(data, app, neighbour), Path(home) / "run")
            differences += compare(neighbour.name, first, second)
            tried.append(neighbour.name)
    count = sum(key.endswith(": node") for key in first)
    return Published(tuple(tried), len(first), count, tuple(differences), tuple(notes))


def _audited(config: Config) -> Config:
    own = {
        "run.rounds": min(ROUNDS, config.run.rounds), "run.entropy": "seeded",
        "run.engine": "in-process", "run.ray_address": "", "run.device": "cpu", "run.jobs": NODES,
        "data.source": f"{HERE}:records", "data.source_options": {}, "data.features": "none",
        "data.feature_options": {}, "app.client": f"{HERE}:client",
    }  # fmt: skip
    return resolve_config(config, own)


def _published(config: Config, twin: _Twin, place: Path) -> dict[str, str]:
    """Run once; everything that can be seen of it. The folder is gone afterwards."""
    screen, found = io.StringIO(), dict[str, str]()
    log, quiet = logging.getLogger("fl_shuffle"), logging.NullHandler()
    log.addHandler(quiet)
    _twins.append(twin)
    forget_data()
    try:
        with contextlib.redirect_stdout(screen):
            simulate(_audited(config), RunPlace(place), make_display(quiet=False, as_json=True))
    except Exception as error:
        if twin.neighbour is AS_THEY_ARE:
            raise
        found[ERROR] = str(error) if isinstance(error, FlShuffleError) else repr(error)
    finally:
        _twins.pop()
        log.removeHandler(quiet)
        forget_data()
    for number, line in enumerate(screen.getvalue().splitlines()):
        found[f"screen, line {number}"] = without_times(line)
    found |= fields_of(place)
    shutil.rmtree(place, ignore_errors=True)
    return found | twin.messages

"""What parties send one another: nothing is read that is not what it says of itself."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message, RecordDict

from fl_shuffle.flower.messages import (
    PACKED,
    REPORTS,
    SENT,
    TrainRequest,
    array_record,
    bytes_array,
    float32_array,
    read_answer,
)
from fl_shuffle.flower.private_api import adopt_task_identity
from fl_shuffle.shuffler.levels import Levels
from fl_shuffle.shuffler.local import Reports


def saved(values: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
WHOLE: dict[str, Any] = {
    "dtype": "float32", "shape": (2, 3), "stype": "numpy.ndarray", "data": saved(VALUES)
}  # fmt: skip


@pytest.mark.parametrize("shape", [(2, 3), (6,), (1, 2, 3), (0, 3), ()])
def test_whole_float32_arrays_are_read(shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    found = float32_array(Array(**{**WHOLE, "shape": shape, "data": saved(values)}))
    assert found is not None and found.dtype == np.float32 and np.array_equal(found, values)
    found[...] = 7.0  # a copy: the message stays as it came


@pytest.mark.parametrize(
    "lie",
    [
        {"shape": (3, 2)},
        {"shape": (6,)},
        {"shape": (2, 3, 1)},
        {"shape": (200, 300)},
        {"dtype": "float64"},
        {"stype": "pickle"},
        {"data": saved(VALUES)[:-1]},
        {"data": saved(VALUES) + b"\0"},
        {"data": saved(VALUES.astype(np.float64))},
        {"data": saved(VALUES.astype(">f4"))},
        {"data": saved(np.asfortranarray(VALUES))},
        {"data": b""},
    ],
    ids=" ".join,
)
def test_an_array_that_is_not_what_it_says_is_none(lie: dict[str, Any]) -> None:
    """Shape, type, order, and length agree in what is declared, in the header, and in the bytes."""
    assert float32_array(Array(**{**WHOLE, **lie})) is None


def test_bytes_are_read_by_the_same_rules() -> None:
    values = np.arange(6, dtype=np.uint8).reshape(2, 3)
    whole = {**WHOLE, "dtype": "uint8", "data": saved(values)}
    found = bytes_array(Array(**whole))
    assert found is not None and found.dtype == np.uint8 and np.array_equal(found, values)
    assert bytes_array(Array(**WHOLE)) is None and float32_array(Array(**whole)) is None
    for lie in ({"dtype": "float32"}, {"shape": (3, 2)}, {"data": saved(values)[:-1]}):
        assert bytes_array(Array(**{**whole, **lie})) is None


LEVELS = Levels(4, np.array([1.0, 2.0, 4.0, 8.0]))
ASKED = TrainRequest(1, np.array([1, 3]))
CODES = np.arange(12, dtype=np.uint16).reshape(4, 3)
SENDERS = np.array([1, 3, 1, 3])
"""Of two batches: the clients' reports of one stand together."""


@pytest.fixture
def identity() -> None:
    """Messages have a sender."""
    adopt_task_identity(1)


def packed_reply(**changed: Any) -> Message:
    """A reply as it comes from elsewhere, with two batches of packed reports."""
    given = {PACKED: LEVELS.packed(LEVELS.levels(CODES, SENDERS), SENDERS)}
    given = {**given, SENT: np.array([1, 0], np.uint8), **changed}
    request = ASKED.message(array_record({"w": VALUES}, shared=True), 2)
    arrays = {name: Array(values) for name, values in given.items() if values is not None}
    record = array_record({}, shared=False)
    for name, array in arrays.items():
        record[name] = array
    return Message(RecordDict({"report": record}), reply_to=request)


@pytest.mark.usefixtures("identity")
def test_packed_reports_are_their_clients_levels_and_none_where_none_was_sent() -> None:
    reasons = Counter[str]()
    found = read_answer(packed_reply(), ASKED, 3, reasons, 2, LEVELS)
    assert isinstance(found, Reports) and not reasons
    levels = LEVELS.levels(CODES, SENDERS)
    levels[[1, 3]] = np.nan
    assert np.array_equal(found.rows, levels, equal_nan=True)


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({SENT: None}, "does not say whose reports it sent"),
        ({SENT: np.array([1, 2], np.uint8)}, "wrong shape"),
        ({SENT: np.array([1], np.uint8)}, "wrong shape"),
        ({SENT: np.array([1.0, 0.0], np.float32)}, "wrong shape"),
        ({PACKED: np.zeros((4, 3), np.uint8)}, "not packed as few bits"),
        ({PACKED: np.zeros((2, 2), np.uint8)}, "not packed as few bits"),
        ({PACKED: np.ones((4, 2), np.uint8)}, "not packed as few bits"),
        ({PACKED: np.zeros((4, 2), np.float32)}, "wrong shape"),
        ({PACKED: None}, "sent no report"),
        ({PACKED: None, REPORTS: np.zeros((4, 2), np.float32)}, "wrong shape"),
    ],
)
def test_what_is_not_packed_right_is_no_report(changed: dict[str, Any], reason: str) -> None:
    reasons = Counter[str]()
    assert read_answer(packed_reply(**changed), ASKED, 3, reasons, 2, LEVELS) is None
    assert reasons == {reason: 4}

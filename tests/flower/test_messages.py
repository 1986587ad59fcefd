"""What parties send one another: nothing is read that is not what it says of itself."""

from __future__ import annotations

import io
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, RecordDict

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.flower.messages import (
    PACKED,
    REPORTS,
    SENT,
    TOTAL,
    VALID,
    ArrayLayout,
    TrainRequest,
    array_record,
    bytes_array,
    expired,
    float32_array,
    read_answer,
    reply_with,
    trained_in,
)
from fl_shuffle.flower.private_api import adopt_task_identity
from fl_shuffle.shuffler.levels import Levels
from fl_shuffle.shuffler.local import PartialSum, Reports


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


MODEL = array_record({"w": VALUES}, shared=True)


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize("first", [0, 1, 7])
@pytest.mark.parametrize("span", [1, 2, 7, 8, 9, 16, 17, 65])
def test_a_request_is_read_as_it_was_sent(first: int, span: int) -> None:
    """For every length of its bitmap: the first and the last client, and some between."""
    clients = np.array([each for each in range(first, first + span) if (each - first) % 3 == 0])
    clients = np.union1d(clients, [first + span - 1])
    for summed in (False, True):
        message = TrainRequest(5, clients, summed).message(MODEL, 2, timeout=9.0)
        found = TrainRequest.of(message, first + span)
        assert found.round_number == 5 and found.summed is summed
        assert found.clients.tolist() == clients.tolist()
        metadata = message.metadata
        assert (metadata.dst_node_id, metadata.ttl, metadata.group_id) == (2, 9.0, "5")
        assert set(message.content) == {"arrays", "request"}
        with pytest.raises(InvalidValueError, match="span of requested clients"):
            TrainRequest.of(message, first + span - 1)


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"round": 0}, "requested round = 0"),
        ({"round": "1"}, "requested round = '1'"),
        ({"first": -1}, "first requested client = -1"),
        ({"span": 0}, "span of requested clients = 0"),
        ({"span": 9}, "bitmap of requested clients"),
        ({"bitmap": b""}, "bitmap of requested clients"),
        ({"bitmap": b"\x00"}, "bitmap of requested clients"),
        ({"bitmap": b"\xa0\x00"}, "bitmap of requested clients"),
        ({"bitmap": "a"}, "bitmap of requested clients"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(changed: dict[str, Any], told: str) -> None:
    message = ASKED.message(MODEL, 2)
    request = message.content["request"]
    assert isinstance(request, ConfigRecord)
    assert dict(request) == {
        "round": 1, "first": 1, "span": 3, "bitmap": b"\xa0", "summed": False
    }  # fmt: skip
    for name, value in changed.items():
        request[name] = value
    with pytest.raises(InvalidValueError, match=told):
        TrainRequest.of(message)


@pytest.mark.parametrize(("late", "over"), [(-200.0, False), (50.0, False), (70.0, True)])
def test_a_request_expires_a_minute_after_its_time(late: float, over: bool) -> None:
    """Of 100 s: clocks of nodes may be a minute apart."""
    metadata = SimpleNamespace(created_at=time.time() - 100.0 - late, ttl=100.0)
    message: Any = SimpleNamespace(metadata=metadata)
    assert expired(message) is over


def test_trained_arrays_are_the_only_ones_or_those_of_the_model() -> None:
    first, second = (array_record({"w": VALUES + k}, shared=True) for k in range(2))
    config = ConfigRecord({"lr": 1.0})
    assert trained_in(RecordDict({"mine": first, "config": config})) is first
    assert trained_in(RecordDict({"mine": first, "arrays": second})) is second
    for content in (RecordDict({"a": first, "b": second}), RecordDict({"arrays": config})):
        with pytest.raises(InvalidValueError, match="must be an ArrayRecord, 'arrays'"):
            trained_in(content)


def test_a_layout_cuts_a_vector_as_it_joined_it() -> None:
    """In the layout's order, whatever that of the record, and into the vector that is given."""
    arrays = {
        "b": np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float64),
        "a": np.array([5.0], dtype=np.float32),
        "c": np.array([6.0, 7.0], dtype=np.float16),
    }
    layout = ArrayLayout.of(array_record(arrays, shared=True))
    assert layout == ArrayLayout(
        ("b", "a", "c"), ((2, 2), (1,), (2,)), ("float64", "float32", "float16")
    )
    given = array_record({name: arrays[name] for name in "cab"}, shared=True)
    out = np.zeros(7, dtype=np.float32)
    assert layout.flatten(given, out) is out
    wanted = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert out.tolist() == layout.flatten(given).tolist() == wanted
    back = layout.record(out)
    for name, values in arrays.items():
        found = back[name].numpy()
        assert found.dtype == values.dtype and np.array_equal(found, values)
    with pytest.raises(KeyError):
        layout.flatten(array_record({"b": arrays["b"], "a": arrays["a"]}, shared=True))
    longer = array_record({**arrays, "a": np.zeros(2, np.float32)}, shared=True)
    with pytest.raises(InvalidValueError, match="arrays = 8: must be the model's 7 numbers"):
        layout.flatten(longer)


ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def answer(request: TrainRequest, **arrays: np.ndarray[Any, Any]) -> Message:
    return reply_with(request.message(MODEL, 2), **arrays)


@pytest.mark.usefixtures("identity")
def test_whole_reports_are_taken_and_others_are_counted_as_missing() -> None:
    """Two clients' reports to two batches: of one that fits there is no reason, of others four."""
    reasons = Counter[str]()
    found = read_answer(answer(ASKED, reports=ROWS), ASKED, 3, reasons, 2)
    assert isinstance(found, Reports) and np.array_equal(found.rows, ROWS) and not reasons
    for arrays, reason in (
        ({"reports": ROWS[:3]}, "wrong shape"),
        ({"reports": ROWS.reshape(3, 4)}, "wrong shape"),
        ({"reports": ROWS.astype(np.float64)}, "not a whole float32 array"),
        ({"other": ROWS}, "sent no report"),
        ({TOTAL: ROWS[0].astype(np.float64), VALID: np.ones(2, np.bool_)}, "sent no report"),
    ):
        reasons.clear()
        assert read_answer(answer(ASKED, **arrays), ASKED, 3, reasons, 2) is None
        assert reasons == {reason: 4}


@pytest.mark.usefixtures("identity")
def test_a_sum_counts_where_it_was_asked_for_and_fits() -> None:
    asked, reasons = TrainRequest(1, np.array([1, 3]), summed=True), Counter[str]()
    total, valid = np.array([1.0, 2.0, 3.0]), np.array([True, False])
    found = read_answer(answer(asked, total=total, valid=valid), asked, 3, reasons)
    assert isinstance(found, PartialSum) and not reasons
    assert found.total.tolist() == [1.0, 2.0, 3.0] and found.valid.tolist() == [True, False]
    lies: tuple[dict[str, Any], ...] = (
        {"total": total[:2]},
        {"total": total.astype(np.float32)},
        {"valid": valid[:1]},
        {"valid": valid.astype(np.uint8)},
    )
    for lie in lies:
        arrays = {"total": total, "valid": valid, **lie}
        reasons.clear()
        assert read_answer(answer(asked, **arrays), asked, 3, reasons) is None
        assert reasons == {"wrong shape": 2}

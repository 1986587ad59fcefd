"""Nodes in this process and elsewhere: every client is asked at the node that holds it, and only
there; what is raised where, and who is waited for how long."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.app import app
from fl_shuffle._internal.refusal_log import RefusalLog
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.flower import answers, node_registry
from fl_shuffle.flower import grid as grid_module
from fl_shuffle.flower.grid import InProcessGrid, exchange, reply_of
from fl_shuffle.flower.messages import TrainRequest, array_record
from fl_shuffle.flower.node_registry import NodeRegistry
from fl_shuffle.flower.nodes import Nodes
from fl_shuffle.flower.private_api import adopt_task_identity, stamp
from fl_shuffle.flower.settings import RESOLVED
from tests.one_node import App, nodes

CLIENTS = 50  # the default configuration's
EVERYBODY = np.ones(CLIENTS, dtype=bool)
# Made with `ssh-keygen -t ecdsa -b 384`; the fingerprint is what `ssh-keygen -lf` printed.
KEY = b"""-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE3WctrDiVY6328l8TXTR3IDGiia7N6fIm
qc0WKufMlLAK/QsedLcZSyH9CRoTB6PlP54jeFEMwRNQLMzOIoeUH/lppUDdOA2z
U/HSkXTgrBUXYZHI8QwURHjXhqcXhwLd
-----END PUBLIC KEY-----
"""
PRINT = "SHA256:zosS/5CSr/TQ43Z23CmO4utDQ0uCovoQtEcdGfNc/GU"
TIMEOUT = 30.0
HEAD = "supernode,partition-id,num-partitions\n"


@pytest.fixture(autouse=True)
def a_run_whose_nodes_have_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_registry, "SETTLE_SECONDS", 0.0)
    adopt_task_identity(1)


@dataclass
class SuperNodes:
    """Nodes with a configuration each (None: one that is gone), as a Flower `Grid` shows them, and
    their keys. By their clock they answer `delay` seconds after they are asked, or `never`."""

    configs: dict[int, Any]
    app: App = app
    delay: float = 0.0
    never: Collection[int] = ()
    now: float = 0.0
    asked: list[int] = field(default_factory=list)
    keys: dict[int, bytes] = field(default_factory=dict)
    replies: dict[str, tuple[float, Message]] = field(default_factory=dict)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def get_node_ids(self) -> list[int]:
        return list(self.configs)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=n, public_key=self.keys.get(n, b"")) for n in self.configs]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        due = self.now + self.delay
        pushed = {stamp(each).metadata.message_id: (due, self.reply(each)) for each in messages}
        self.replies |= pushed
        return list(pushed)

    def pull_messages(self, identifiers: Iterable[str]) -> list[Message]:
        asked = [self.replies[each] for each in identifiers]
        replies = [reply for due, reply in asked if due <= self.now]
        return [each for each in replies if each.metadata.src_node_id not in self.never]

    def reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        self.asked.append(node)
        config = self.configs[node]
        if config is None:
            return Message(Error(code=5), reply_to=message)
        run = {RESOLVED: Config().to_json()}
        context = Context(1, node, config, RecordDict(), run)  # type: ignore[arg-type]
        return reply_of(self.app, message, context, trusted=True)


def part(index: object, count: object) -> dict[str, object]:
    return {"partition-id": index, "num-partitions": count}


def asked_where(grid: SuperNodes, allowed: np.ndarray = EVERYBODY) -> dict[int, list[int]]:
    """Node id -> the clients it is asked for, ascending."""
    found: dict[int, list[int]] = {}
    turns = Nodes(len(allowed), 20.0).assignments(grid, 1, allowed, 3)  # type: ignore[arg-type]
    for request, node in turns:
        found[node] = sorted([*found.get(node, []), *request.clients.tolist()])
    return found


def played(registry: NodeRegistry, grid: SuperNodes) -> dict[int, list[int]]:
    """Node -> its clients; every owner is one node here."""
    owner, nodes = registry.partition(grid)  # type: ignore[arg-type]
    return {own[0]: np.flatnonzero(owner == of).tolist() for of, own in nodes.items() if own}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 40))
def test_partitions_cover_all_clients_once_and_evenly(clients: int, count: int) -> None:
    parts = [node_registry.held_clients(part(index, count), clients) for index in range(count)]
    assert [client for held in parts for client in held] == list(range(clients))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    "config",
    [part(3, 3), part(-1, 3), part(0, 0), part(0.5, 3), part("0", 3), part(float("nan"), 3),
     {"partition-id": 0}, {"num-partitions": 3}],
)  # fmt: skip
def test_a_partition_that_makes_no_sense_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(InvalidValueError, match=r"partition"):
        node_registry.held_clients(config, 10)


def test_each_client_is_asked_at_its_own_node_in_every_round() -> None:
    grid = SuperNodes({11: part(2, 3), 5: part(0, 3), 2**64 - 9: part(1, 3)})
    expected = {5: list(range(17)), 2**64 - 9: list(range(17, 34)), 11: list(range(34, 50))}
    assert asked_where(grid) == expected
    dropped = [0, 20, 40, 49]
    some = ~np.isin(np.arange(CLIENTS), dropped)
    assert asked_where(grid, some) == {
        node: [client for client in held if client not in dropped]
        for node, held in expected.items()
    }
    # Nodes without a partition share all clients, or the rest; one that is gone gets none.
    assert asked_where(SuperNodes({1: {}, 2: {}})) == {1: list(range(25)), 2: list(range(25, 50))}
    mixed = asked_where(SuperNodes({1: {}, 2: part(0, 5), 3: {}, 4: None}))
    assert mixed == {2: list(range(10)), 1: list(range(10, 30)), 3: list(range(30, 50))}
    assert asked_where(SuperNodes({2: None})) == {}


def test_nodes_are_asked_once_and_newcomers_when_they_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = list(range(25)), list(range(25, 50))
    grid, registry = SuperNodes({1: part(0, 2), 2: part(1, 2)}), NodeRegistry(CLIENTS, 20.0)
    for _ in range(3):
        assert played(registry, grid) == {1: first, 2: second}
    assert sorted(grid.asked) == [1, 2]
    # SuperNode 2 comes back under another id while the server still believes in the old one.
    grid.configs[3] = part(1, 2)
    with caplog.at_level("WARNING", logger="fl_shuffle.run"):
        for _ in range(2):
            assert played(registry, grid) == {1: first, 2: second}
    assert sorted(grid.asked) == [1, 2, 3]
    assert caplog.messages == [
        "node 3 claims clients 25 to 49, of which node 2 plays some: refused while that node is "
        "connected"
    ]
    del grid.configs[2]
    assert played(registry, grid) == {1: first, 3: second}
    del grid.configs[1]
    assert played(registry, grid) == {3: second}
    # A node that claims all clients but one, there from the start, displaces nobody.
    assert asked_where(SuperNodes({1: part(0, 25), 7: part(1, 2), 8: part(0, 2)})) == {
        1: [0, 1], 7: second,
    }  # fmt: skip


def test_a_silent_node_is_asked_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = SuperNodes({1: part(0, 2), 2: None})
    monkeypatch.setattr(node_registry, "time", grid)
    registry, asked = NodeRegistry(CLIENTS, 20.0), []
    for second in range(0, 1000, 10):
        grid.now, before = float(second), len(grid.asked)
        registry.partition(grid)  # type: ignore[arg-type]
        asked += [second] * grid.asked[before:].count(2)
    assert asked == [0, 60, 180, 420, 900]
    grid.configs[2], grid.now = part(1, 2), 2000.0
    assert played(registry, grid) == {1: list(range(25)), 2: list(range(25, 50))}


@pytest.mark.parametrize(
    "claim", [{"first": -1, "count": 2}, {"first": 5, "count": 46}, {"first": "0", "count": 1}, {}]
)
def test_an_impossible_claim_is_not_believed(claim: dict[str, object]) -> None:
    liar = ClientApp()

    @liar.query()
    def query(message: Message, context: Context) -> Message:
        record = ConfigRecord(claim)  # type: ignore[arg-type]
        return Message(RecordDict({node_registry.HOLDING_RECORD: record}), reply_to=message)

    assert asked_where(SuperNodes({1: {}}, liar)) == {}


def test_a_node_refuses_clients_it_does_not_hold(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "refusals", RefusalLog(logging.getLogger("fl_shuffle.client")))
    grid = SuperNodes({1: part(1, 5)})
    model = array_record({"p": np.zeros(650, np.float32)}, shared=True)
    asked = [
        TrainRequest(1, np.arange(first, first + 2)).message(model, 1) for first in (9, 19, 10, 18)
    ]
    replies = grid.pull_messages(grid.push_messages(asked))
    assert [reply.has_error() for reply in replies] == [True, True, False, False]
    assert replies[0].error.reason == replies[1].error.reason == "InvalidValueError"
    assert caplog.text.count("this node holds clients 10 to 19") == 1  # once for each kind


def written(folder: Path, *lines: str) -> node_registry.SuperNodeFile:
    path = folder / "nodes.csv"
    path.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return node_registry.read_supernodes(path, CLIENTS)


def test_fingerprints_are_those_of_ssh_keygen() -> None:
    assert node_registry.fingerprint(KEY) == PRINT
    for nothing in (b"", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", b"\0"):
        assert node_registry.fingerprint(nothing) is None


@pytest.mark.parametrize("claim", [part(0, 2), part(0, 1), {}, part(7, 3)], ids=str)
def test_the_operator_s_file_says_who_plays_what_whatever_nodes_claim(
    claim: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The stranger is there before the honest nodes; nobody is even asked."""
    registry = NodeRegistry(CLIENTS, 20.0, written(tmp_path, f"{PRINT},0,2", "5,1,2"))
    stranger = ec.generate_private_key(ec.SECP384R1()).public_key()
    grid = SuperNodes({99: claim})
    grid.keys = {3: KEY}
    grid.keys[99] = stranger.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert played(registry, grid) == {}
    grid.configs |= {3: {}, 5: claim}
    for _ in range(3):
        assert played(registry, grid) == {3: list(range(25)), 5: list(range(25, 50))}
    assert not grid.asked
    assert [text for text in caplog.messages if "holds no client" in text] == [
        f"node 99 (key {node_registry.fingerprint(grid.keys[99])}) has no line in "
        f"{tmp_path / 'nodes.csv'}: it holds no client"
    ]
    # When the honest one is gone, nobody inherits its clients; the names of two parts give none.
    del grid.configs[3]
    grid.keys[5] = KEY
    assert played(registry, grid) == {5: list(range(25, 50))}
    del grid.configs[5]
    assert played(registry, grid) == {}
    grid.configs[5] = {}
    assert played(registry, grid) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: columns must be supernode,partition-id,num-partitions, got an empty file"),
        (HEAD, "has no lines below its header; add lines"),
        (HEAD + "5,0\n", "line 2: expected 3 values, got 2"),
        (HEAD + "five,0,2\n", "line 2: supernode = 'five' must be a key's fingerprint"),
        (HEAD + "5,2,2\n", r"line 2: partition-id = '2' must be a whole number in \[0, 1\]"),
        (HEAD + "5,0,51\n", r"num-partitions = '51' must be a whole number in \[1, 50\]"),
        (HEAD + "5,0,2\n6,1,3\n", "line 3: num-partitions = 3, and 2 above"),
        (HEAD + "5,0,2\n6,0,2\n", "line 3: part 0 is given to two SuperNodes"),
        (HEAD + "5,0,2\n5,1,2\n", "line 3: 5 appears twice"),
    ],
)
def test_what_is_wrong_with_the_file_is_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text, encoding="utf-8-sig")
    with pytest.raises(ConfigError, match=said) as raised:
        node_registry.read_supernodes(path, CLIENTS)
    assert "\n" not in str(raised.value)


def empty(message: Message, context: Context) -> Message:
    return Message(RecordDict(), reply_to=message)


def asked(count: int, node_of: Callable[[int], int]) -> list[Message]:
    return [Message(RecordDict(), node_of(i), "train", ttl=TIMEOUT) for i in range(count)]


def test_replies_of_several_pushes_wait_for_whoever_pulls_them() -> None:
    """As Flower's grid has it: each is there once, whatever was pushed in between."""
    with nodes(empty, 2) as grid:
        first, second = ([*grid.push_messages(asked(2, lambda i: 2 + i))] for _ in range(2))
        for identifiers in (first[1:], second, first[:1]):
            found = [each.metadata.reply_to_message_id for each in grid.pull_messages(identifiers)]
            assert found == identifiers
        assert not list(grid.pull_messages(first + second))


def test_what_goes_wrong_while_a_reply_is_taken_is_raised() -> None:
    taken: list[int] = []

    def take(position: int, reply: Message) -> None:
        taken.append(position)
        if position == 3:
            raise RuntimeError("of the server's own making")

    with nodes(empty, 2) as grid:
        with pytest.raises(RuntimeError, match="of the server's own making"):
            grid.exchange(asked(6, lambda i: 2 + i % 2), take)
        assert 3 in taken
        taken.clear()
        grid.exchange(asked(3, lambda i: 2 + i % 2), take)
        assert sorted(taken) == [0, 1, 2]


def test_a_node_s_state_is_one_request_s_at_a_time() -> None:
    """Two threads play six requests to one node: each counts on from what the one before left."""
    seen = []

    def client(message: Message, context: Context) -> Message:
        count = context.state.get("count") or MetricRecord({"n": 0})
        seen.append(count["n"])
        time.sleep(0.01)
        context.state["count"] = MetricRecord({"n": count["n"] + 1})
        return empty(message, context)

    with closing(InProcessGrid(client, {}, nodes=2, trusted=False)) as grid:  # type: ignore[arg-type]
        replies = list(grid.send_and_receive(asked(6, lambda _: 2)))
    assert not any(reply.has_error() for reply in replies) and seen == list(range(6))


@pytest.mark.parametrize("hangs", [False, True])
def test_its_threads_end_with_it(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gave back torch's memory while the interpreter ended aborted the process; one that
    hangs in a user's code is not waited for."""
    monkeypatch.setattr(grid_module, "JOIN_SECONDS", 0.1 if hangs else 60.0)
    begun, left, before = Event(), Event(), threading.active_count()

    def call() -> None:
        begun.set()
        left.wait(60.0 if hangs else 0.3)

    grid = InProcessGrid(ClientApp(), {}, nodes=2)
    grid._calls.put(call)
    assert begun.wait(60.0)
    grid.close()
    assert threading.active_count() == before + hangs
    left.set()


def test_what_was_begun_ends_before_the_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles: a process that left meanwhile ended in a crash, now and then."""
    monkeypatch.setattr(grid_module, "JOIN_SECONDS", 0.0)
    begun, ended, late = Event(), Event(), Event()

    def call() -> None:
        begun.set()
        Event().wait(0.3)
        ended.set()

    grid = InProcessGrid(ClientApp(), {}, nodes=1)
    grid.begin(call)
    grid.begin(late.set)
    assert begun.wait(60.0)
    grid.close()
    assert ended.is_set() and not late.is_set()


def test_threads_read_arrays_while_garbage_is_collected() -> None:
    """Of CPython 3.11 before 3.11.8 they disturbed each other's parsing of NumPy's headers."""
    record = ArrayRecord([np.zeros((3, 4))])

    def client(message: Message, context: Context) -> Message:
        for _ in range(600):
            record.to_numpy_ndarrays()
        return empty(message, context)

    def python(phase: str, info: dict[str, int]) -> None:
        """As Hypothesis and finalizers do: other threads get their turn."""
        for _ in range(50):
            len(info)

    before, threshold = sys.getswitchinterval(), gc.get_threshold()
    gc.callbacks.append(python)
    try:
        with nodes(client, 4) as grid:
            sys.setswitchinterval(1e-6)
            gc.set_threshold(5)
            replies = list(grid.send_and_receive(asked(4, lambda i: 2 + i)))
    finally:
        gc.callbacks.remove(python)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(before)
    assert len(replies) == 4 and not any(reply.has_error() for reply in replies)


@pytest.mark.parametrize("slow", [set(), {3}, {2, 9}])
def test_slow_nodes_cost_one_timeout_and_nobody_else(
    slow: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    grid: Any = SuperNodes({node: {} for node in range(1, 13)}, empty, 1.0, slow)
    monkeypatch.setattr(grid_module, "time", grid)
    taken: dict[int, Message] = {}
    exchange(grid, asked(12, lambda i: i + 1), taken.__setitem__, window=4, timeout=TIMEOUT)
    assert {position + 1 for position in taken} == set(range(1, 13)) - slow
    assert grid.now <= (TIMEOUT if slow else 6.0) + grid_module.LONGEST_POLL_SECONDS

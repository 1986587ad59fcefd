"""Every client is asked at the node that holds it, and only there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.app import app
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.flower import exchange
from fl_shuffle.flower import node_registry as registry_module
from fl_shuffle.flower.grid import InProcessGrid, stamp
from fl_shuffle.flower.messages import TrainRequest, array_record
from fl_shuffle.flower.node import Node
from fl_shuffle.flower.node_registry import HOLDING_RECORD, NodeRegistry, held_clients
from fl_shuffle.flower.nodes import Nodes as AskedNodes
from fl_shuffle.flower.settings import RESOLVED

CLIENTS = 50  # the default configuration's


@pytest.fixture(autouse=True)
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "SETTLE_SECONDS", 0.0)


class Nodes(InProcessGrid):
    """Separate nodes with a configuration each; a `None` is a node that is gone."""

    def __init__(
        self, configs: Mapping[int, dict[str, object] | None], client_app: ClientApp = app
    ) -> None:
        super().__init__(client_app, {RESOLVED: Config().to_json()}, nodes=1)
        self._pool.close()  # nothing is played there
        self.configs = dict(configs)
        self.asked: list[int] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.configs)

    def _answered(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        self.asked.append(node)
        config = self.configs[node]
        if config is None:
            return Message(Error(code=5), reply_to=message)
        self._contexts[node] = Context(
            run_id=1,
            node_id=node,
            node_config=config,  # type: ignore[arg-type]
            state=RecordDict(),
            run_config={RESOLVED: Config().to_json()},
        )
        return super()._answered(message)


class Remote:
    """What `Nodes` looks like when it is not known to be in this process."""

    def __init__(
        self, configs: Mapping[int, dict[str, object] | None], client_app: ClientApp = app
    ) -> None:
        self.inner = Nodes(configs, client_app)
        self.get_node_ids = self.inner.get_node_ids
        self.push_messages = self.inner.push_messages
        self.pull_messages = self.inner.pull_messages


def part(index: object, count: object) -> dict[str, object]:
    return {"partition-id": index, "num-partitions": count}


def asked_where(grid: Remote, allowed: np.ndarray) -> dict[int, list[int]]:
    """Node id -> the clients it is asked for, ascending."""
    found: dict[int, list[int]] = {}
    turns = AskedNodes(len(allowed), 20.0).assignments(grid, 1, allowed, 3)  # type: ignore[arg-type]
    for request, node in turns:
        found[node] = sorted([*found.get(node, []), *request.clients.tolist()])
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 40))
def test_partitions_cover_all_clients_once_and_evenly(clients: int, count: int) -> None:
    parts = [held_clients(part(index, count), clients) for index in range(count)]
    assert [client for held in parts for client in held] == list(range(clients))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    "config",
    [
        part(3, 3),
        part(-1, 3),
        part(0, 0),
        part(0.5, 3),
        part("0", 3),
        part(float("nan"), 3),
        {"partition-id": 0},
        {"num-partitions": 3},
    ],
)
def test_a_partition_that_makes_no_sense_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(InvalidValueError, match=r"partition"):
        held_clients(config, 10)


def test_each_client_is_asked_at_its_own_node_in_every_round() -> None:
    grid = Remote({11: part(2, 3), 5: part(0, 3), 2**64 - 9: part(1, 3)})
    everyone = np.ones(CLIENTS, dtype=bool)
    expected = {5: list(range(17)), 2**64 - 9: list(range(17, 34)), 11: list(range(34, 50))}
    assert asked_where(grid, everyone) == expected
    some = everyone.copy()
    some[[0, 20, 40, 49]] = False
    dropped = {0, 20, 40, 49}
    assert asked_where(grid, some) == {
        node: [client for client in held if client not in dropped]
        for node, held in expected.items()
    }


def test_nodes_are_asked_once_and_newcomers_when_they_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = Remote({1: part(0, 2), 2: part(1, 2)})
    registry = NodeRegistry(CLIENTS, 20.0)
    for _ in range(3):
        partitions = registry.partitions(grid)  # type: ignore[arg-type]
    assert sorted(grid.inner.asked) == [1, 2]
    # SuperNode 2 comes back under another id while the server still believes in the old one.
    grid.inner.configs[3] = part(1, 2)
    with caplog.at_level("WARNING", logger="fl_shuffle.run"):
        for _ in range(2):
            partitions = registry.partitions(grid)  # type: ignore[arg-type]
    assert sorted(grid.inner.asked) == [1, 2, 3]
    assert {tuple(nodes) for _, nodes in partitions} == {(1,), (2,)}
    refusals = [text for text in caplog.messages if "refused" in text]
    assert refusals == ["node 3 claims clients 25 to 49, of which node 2 plays some: refused while "
                        "that node is connected"]  # fmt: skip
    del grid.inner.configs[2]
    partitions = registry.partitions(grid)  # type: ignore[arg-type]
    assert {tuple(nodes) for _, nodes in partitions} == {(1,), (3,)}
    del grid.inner.configs[1]
    partitions = registry.partitions(grid)  # type: ignore[arg-type]
    assert [nodes for _, nodes in partitions] == [[3]]
    mask = partitions[0][0]
    assert mask is not None
    assert mask.tolist() == [False] * 25 + [True] * 25


def test_who_claims_much_displaces_nobody() -> None:
    """A node that claims all clients but one, there from the start, against honest ones."""
    grid = Remote({1: part(0, 25), 7: part(1, 2), 8: part(0, 2)})
    everyone = np.ones(CLIENTS, dtype=bool)
    found = asked_where(grid, everyone)
    assert found == {1: [0, 1], 7: list(range(25, 50))}


def test_a_silent_node_is_asked_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now, grid = [0.0], Remote({1: part(0, 2), 2: None})
    # The registry's own clock: pytest and its workers keep theirs.
    monkeypatch.setattr(registry_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    registry = NodeRegistry(CLIENTS, 20.0)
    asked = []
    for second in range(0, 1000, 10):
        now[0] = float(second)
        before = len(grid.inner.asked)
        registry.partitions(grid)  # type: ignore[arg-type]
        if 2 in grid.inner.asked[before:]:
            asked.append(second)
    assert asked == [0, 60, 180, 420, 900]


def test_nodes_without_a_partition_share_all_clients_or_the_rest() -> None:
    everyone = np.ones(CLIENTS, dtype=bool)
    free = asked_where(Remote({1: {}, 2: {}}), everyone)
    assert free == {1: list(range(25)), 2: list(range(25, 50))}
    mixed = asked_where(Remote({1: {}, 2: part(0, 5), 3: {}}), everyone)
    assert mixed == {2: list(range(10)), 1: list(range(10, 30)), 3: list(range(30, 50))}


def test_a_node_that_is_gone_is_not_given_clients() -> None:
    everyone = np.ones(CLIENTS, dtype=bool)
    assert asked_where(Remote({1: part(0, 2), 2: None}), everyone) == {1: list(range(25))}
    assert asked_where(Remote({2: None}), everyone) == {}


@pytest.mark.parametrize(
    "claim", [{"first": -1, "count": 2}, {"first": 5, "count": 46}, {"first": "0", "count": 1}, {}]
)
def test_an_impossible_claim_is_not_believed(claim: dict[str, object]) -> None:
    liar = ClientApp()

    @liar.query()
    def query(message: Message, context: Context) -> Message:
        record = ConfigRecord(claim)  # type: ignore[arg-type]
        return Message(RecordDict({HOLDING_RECORD: record}), reply_to=message)

    assert asked_where(Remote({1: {}}, liar), np.ones(CLIENTS, dtype=bool)) == {}


def test_a_node_refuses_clients_it_does_not_hold() -> None:
    grid = Nodes({1: part(1, 5)})
    model = array_record({"parameters": np.zeros(650, dtype=np.float32)}, shared=True)
    with pytest.raises(InvalidValueError, match="clients 10 to 19"):
        grid._answered(stamp(TrainRequest(1, 9, 2).message(model, 1)))
    reply = grid._answered(stamp(TrainRequest(1, 10, 2).message(model, 1)))
    assert not reply.has_error()
    node = Node(held_clients(part(1, 5), CLIENTS), None, None)
    node.require_held(TrainRequest(1, 10, 10))
    with pytest.raises(InvalidValueError):
        node.require_held(TrainRequest(1, 19, 2))

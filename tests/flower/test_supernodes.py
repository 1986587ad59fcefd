"""The operator says which key plays which part; nobody else is asked for anything."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

import fl_shuffle as fs
from fl_shuffle.configuration.supernodes import SuperNodeFile, read_supernodes
from fl_shuffle.errors import ConfigError
from fl_shuffle.flower.node_registry import NodeRegistry, fingerprint
from tests.flower.test_node_registry import CLIENTS, Remote, part, settled_at_once

__all__ = ["settled_at_once"]

# Made with `ssh-keygen -t ecdsa -b 384`; the fingerprint is what `ssh-keygen -lf` printed.
KEY = b"""-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE3WctrDiVY6328l8TXTR3IDGiia7N6fIm
qc0WKufMlLAK/QsedLcZSyH9CRoTB6PlP54jeFEMwRNQLMzOIoeUH/lppUDdOA2z
U/HSkXTgrBUXYZHI8QwURHjXhqcXhwLd
-----END PUBLIC KEY-----
"""
PRINT = "SHA256:zosS/5CSr/TQ43Z23CmO4utDQ0uCovoQtEcdGfNc/GU"
HEAD = "supernode,partition-id,num-partitions\n"
HOSTILE = 99


class Signed(Remote):
    """Nodes whose keys the server is told, as Flower's SuperLink does."""

    keys: dict[int, bytes]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=node, public_key=self.keys.get(node, b""))
            for node in self.get_node_ids()
        ]


def signed(nodes: dict[int, dict[str, object] | None], keys: dict[int, bytes]) -> Signed:
    grid = Signed(nodes)
    grid.keys = keys
    return grid


def written(folder: Path, *lines: str) -> SuperNodeFile:
    path = folder / "nodes.csv"
    path.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return read_supernodes(path, CLIENTS)


def new_key() -> bytes:
    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def played(registry: NodeRegistry, grid: Signed) -> dict[int, list[int]]:
    """Node -> its clients; every pool has one node here."""
    partitions = registry.partitions(grid)  # type: ignore[arg-type]
    return {
        nodes[0]: list(range(CLIENTS)) if held is None else np.flatnonzero(held).tolist()
        for held, nodes in partitions
    }


def test_fingerprints_are_those_of_ssh_keygen() -> None:
    assert fingerprint(KEY) == PRINT
    for nothing in (b"", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", b"\0"):
        assert fingerprint(nothing) is None
    assert hasattr(Grid, "get_nodes")


@pytest.mark.parametrize(
    "claim",
    [part(0, 2), part(1, 2), part(0, 1), {}, part(0, 50), part(3, 4), part(7, 3)],
    ids=str,
)
def test_a_stranger_plays_nobody_whatever_it_claims(
    claim: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is there before the honest nodes, and it is not even asked."""
    registry = NodeRegistry(CLIENTS, 20.0, written(tmp_path, f"{PRINT},0,2", "5,1,2"))
    keys = {3: KEY, HOSTILE: new_key()}
    grid = signed({HOSTILE: claim}, keys)
    assert played(registry, grid) == {}
    grid.inner.configs |= {3: part(0, 2), 5: part(1, 2)}
    for _ in range(3):
        assert played(registry, grid) == {3: list(range(25)), 5: list(range(25, 50))}
    assert sorted(grid.inner.asked) == [3, 5]
    said = [text for text in caplog.messages if "plays nobody" in text]
    assert said == [
        f"node 99 (key {fingerprint(keys[HOSTILE])}) has no part of its own in "
        f"{tmp_path / 'nodes.csv'}: it plays nobody"
    ]
    # When the honest one is gone, nobody inherits its clients.
    del grid.inner.configs[3]
    assert played(registry, grid) == {5: list(range(25, 50))}


def test_a_listed_node_plays_its_own_part_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = NodeRegistry(CLIENTS, 20.0, written(tmp_path, f"{PRINT},0,2", "5,1,2"))
    grid = signed({3: {}, 5: part(0, 2)}, {3: KEY})
    # A node that would play anybody is content with its part; one that wants another's is refused.
    assert played(registry, grid) == {3: list(range(25))}
    assert (
        f"node 5 claims clients 0 to 24, and {tmp_path / 'nodes.csv'} gives it clients 25 to 49: "
        "refused" in caplog.messages
    )


def test_a_node_with_the_names_of_two_parts_plays_none(tmp_path: Path) -> None:
    registry = NodeRegistry(CLIENTS, 20.0, written(tmp_path, f"{PRINT},0,2", "5,1,2"))
    assert played(registry, signed({5: part(1, 2)}, {5: KEY})) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: columns must be supernode,partition-id,num-partitions, got an empty file"),
        (HEAD, "names no SuperNode"),
        (HEAD + "5,0\n", "line 2: expected 3 values, got 2"),
        (HEAD + "five,0,2\n", "line 2: supernode = 'five' must be a key's fingerprint"),
        (HEAD + "5,2,2\n", r"line 2: partition-id = '2' must be a whole number in \[0, 1\]"),
        (HEAD + "5,0,51\n", r"num-partitions = '51' must be a whole number in \[1, 50\]"),
        (HEAD + "5,0,1_0\n", "num-partitions"),
        (HEAD + "5,0,2\n6,1,3\n", "line 3: num-partitions = 3, and 2 above"),
        (HEAD + "5,0,2\n6,0,2\n", "line 3: part 0 is given to two SuperNodes"),
        (HEAD + "5,0,2\n5,1,2\n", "line 3: 5 appears twice"),
    ],
)
def test_what_is_wrong_with_the_file_is_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text, encoding="utf-8-sig")
    with pytest.raises(ConfigError, match=said) as raised:
        read_supernodes(path, CLIENTS)
    assert "\n" not in str(raised.value)


def test_a_simulation_has_no_supernodes() -> None:
    with pytest.raises(ConfigError, match=r"run.supernodes = 'nodes.csv' has no effect"):
        fs.simulate(overrides={"run.supernodes": "nodes.csv", "run.rounds": 1})

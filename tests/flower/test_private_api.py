"""Each use of something that Flower does not document still fits the Flower that is installed.

`scripts/check_flower VERSION ...` checks other versions.
"""

from __future__ import annotations

import inspect
import pickle
import re

import flwr
import numpy as np
import pytest
import yaml
from flwr.app import Array, Message, RecordDict
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from fl_shuffle.flower import private_api
from tests.architecture.test_repository import PROJECT
from tests.repository import ROOT

TRIED = ("1.40", "1.41", "1.42")


def test_module_names_every_version_that_is_allowed() -> None:
    (asked,) = [text for text in PROJECT["dependencies"] if text.startswith("flwr")]
    allowed = SpecifierSet(asked.removeprefix("flwr"))
    around = [Version(f"1.{minor}.0") for minor in range(30, 60)]
    assert [str(v)[:4] for v in around if v in allowed] == list(TRIED)
    text = private_api.__doc__ or ""
    assert re.findall(r"1\.\d\d", text) == list(TRIED)
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    played = workflow["jobs"]["flower"]["strategy"]["matrix"]["flower"]
    assert [version.removesuffix(".0") for version in played] == list(TRIED)


def test_private_names_are_imported_in_one_module() -> None:
    private = re.compile(
        r"from flwr\S* import .*\b_\w|flwr\.(supercore|common|simulation)\b|\._message_id"
    )
    users = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "fl_shuffle").rglob("*.py")
        if private.search(path.read_text(encoding="utf-8"))
    }
    assert users == {"fl_shuffle/flower/private_api.py"}


def test_message_of_this_process_has_sender_and_identifier() -> None:
    private_api.adopt_task_identity(5)
    message = private_api.stamp(
        Message(RecordDict(), dst_node_id=2, message_type="train", group_id="1")
    )
    other = private_api.stamp(
        Message(RecordDict(), dst_node_id=2, message_type="train", group_id="1")
    )
    assert message.metadata.run_id == 5 and message.metadata.src_node_id == 1
    assert message.metadata.message_id and message.metadata.message_id != other.metadata.message_id
    reply = Message(RecordDict(), reply_to=message)
    assert reply.metadata.reply_to_message_id == message.metadata.message_id


def test_run_has_what_the_runtime_asks_of_it() -> None:
    run = private_api.new_run()
    run.primary_task_id, run.federation_id, run.override_config = run.run_id, "x", {"a": "b"}
    assert 0 <= run.run_id < 2**62


def test_runtime_takes_the_arguments_that_are_given() -> None:
    runtime = pytest.importorskip("flwr.simulation.run_simulation")
    given = set(
        re.findall(r"^        (\w+)=", inspect.getsource(private_api.run_app), flags=re.MULTILINE)
    )
    assert len(given) == 9
    assert given <= inspect.signature(runtime._run_simulation).parameters.keys()
    telemetry = pytest.importorskip("flwr.supercore.telemetry")
    assert telemetry.FLWR_TELEMETRY_ENABLED in ("0", "1")
    config = pytest.importorskip("flwr.common.config")
    assert len(inspect.signature(config.get_fused_config_from_dir).parameters) == 2
    assert Version(flwr.__version__) >= Version("1.40")


def test_local_array_is_an_array_to_flowers_object_store_and_pickles() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    local, theirs = private_api.LocalArray(values, shared=False), Array(values)
    assert local.data == theirs.data and local.object_id == theirs.object_id
    assert local.deflate() == theirs.deflate()
    found = Array.inflate(local.deflate(), local.children)
    assert found.numpy().tolist() == values.tolist()
    back = pickle.loads(pickle.dumps(local))
    assert type(back) is Array and back == theirs
    assert local.numpy() is values
    assert not np.shares_memory(private_api.LocalArray(values, shared=True).numpy(), values)


def test_error_code_is_flowers_own() -> None:
    constant = pytest.importorskip("flwr.common.constant")
    assert constant.ErrorCode.CLIENT_APP_RAISED_EXCEPTION == private_api.CLIENT_APP_RAISED

"""Every test's apps are its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.apps.strangers import written


@pytest.fixture(autouse=True)
def _apps_of_its_own(tmp_path: Path) -> Iterator[None]:
    loaded, path, threads = set(sys.modules), list(sys.path), torch.get_num_threads()
    yield
    for name in set(sys.modules) - loaded:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.path[:] = path
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def torch_app(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changed app, of the module's KIND, whose folder is the current one."""
    monkeypatch.chdir(written("torch_app", tmp_path, getattr(request.module, "KIND", "updates")))

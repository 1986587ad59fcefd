"""What every test shares: Ctrl-C, and folders of their own for what is kept of data outside of
runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.small_federation import launch, small

__all__ = ["launch", "small"]


def pytest_configure() -> None:
    # A shell has what it starts in the background ignore Ctrl-C, and so would all its children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FL_SHUFFLE_STATE", str(tmp_path_factory.mktemp("state")))
        patch.setenv("FL_SHUFFLE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield

"""What every test shares: folders of the tests' own for what is kept of data outside of runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.small_federation import launch, small

__all__ = ["launch", "small"]


@pytest.fixture(scope="session", autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FL_SHUFFLE_STATE", str(tmp_path_factory.mktemp("state")))
        patch.setenv("FL_SHUFFLE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield

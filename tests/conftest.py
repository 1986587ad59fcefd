"""What every test shares: Ctrl-C, and folders of their own for what is kept of data outside of
runs."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.crashes import crash, refused
from tests.small_federation import launch, play, small

__all__ = ["crash", "launch", "play", "refused", "small"]


def pytest_configure() -> None:
    # A shell has what it starts in the background ignore Ctrl-C, and so would all its children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Cases that are not marked slow, and take more than two seconds."""
    seconds: dict[str, float] = defaultdict(float)
    for report in (each for kind in terminalreporter.stats.values() for each in kind):
        if hasattr(report, "duration") and "slow" not in report.keywords:
            seconds[report.nodeid] += report.duration
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        if spent > 2.0:
            terminalreporter.write_line(f"{spent:5.1f} s, not marked slow: {name}")


@pytest.fixture
def coarse_pairs() -> Iterator[None]:
    """Rounds are certified at a third of the points: as proven, a little larger, and sooner.

    For tests of what is done with such numbers, which are kept in a folder of their own.
    """
    from fl_shuffle.accounting.rounds import equal_rounds

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FL_SHUFFLE_CACHE", os.environ["FL_SHUFFLE_CACHE"] + "-coarse")
        patch.setattr(equal_rounds, "ROUND_NODES_PER_SD", 2.0)
        patch.setitem(equal_rounds.shuffled_pair.__kwdefaults__, "per_sd", 2.0)
        patch.setattr(equal_rounds, "ROUND_ENOUGH_DELTA", 1e-8)
        yield


@pytest.fixture(scope="module")
def halving_shuffles() -> Iterator[None]:
    """A shuffle hides a client as twice its noise would: a formula, instead of seconds for a round.

    Nothing of it is kept for other tests.
    """

    import numpy as np

    from fl_shuffle.accounting.rounds import round_library
    from fl_shuffle.accounting.rounds.local_guarantees import local_delta, local_epsilon, own_pair

    def half(law: Any) -> Any:
        return law._replace(exposure=0.5 * law.exposure)

    def curve(kind: Any) -> SimpleNamespace:
        law = half(kind.law)
        return SimpleNamespace(
            credit=True, delta=lambda epsilon: float(local_delta(law, 1, np.array([epsilon]))[0])
        )

    def alone(single: Any) -> float:
        return local_epsilon(half(single.played.law), 1, single.delta)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(round_library, "curve_of", curve)
        patch.setattr(round_library, "_certified_pair", lambda kind: own_pair(half(kind.law)))
        patch.setattr(round_library, "_alone_epsilon", alone)
        yield


@pytest.fixture(scope="session", autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FL_SHUFFLE_STATE", str(tmp_path_factory.mktemp("state")))
        # One for all of a session's processes: each little federation is certified once.
        base = tmp_path_factory.getbasetemp()
        shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        patch.setenv("FL_SHUFFLE_CACHE", str(shared / "kept"))
        yield

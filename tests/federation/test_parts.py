"""Parts of a run that a process keeps are that run's own."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fl_shuffle.federation import Federation, RunParts
from fl_shuffle.flower.settings import RESOLVED, SIMULATED
from tests.federation.small_tasks import configured


@pytest.mark.parametrize("kind", [RunParts, Federation])
@pytest.mark.parametrize("entropy", ["system", "seeded"])
def test_two_runs_of_one_configuration_share_nothing(entropy: str, kind: type[RunParts]) -> None:
    """A process that plays one after the other would release the second one's reports in the orders
    of the first, and its clients' mistakes would count together."""
    config = configured(entropy, unit="client")

    def of(run: int) -> RunParts:
        run_config: dict[str, Any] = {RESOLVED: config.to_json()}
        context = Context(run, 1, {SIMULATED: True}, RecordDict(), run_config)
        return kind.of(context)

    first, again, second = of(1), of(1), of(2)
    assert first is again and first is not second
    assert first.first_trainings is not second.first_trainings
    draws = [
        parts.seeds.numpy_generator(1, purpose).random()
        for parts in (first, again, second)
        for purpose in ("permutation", "participation")
    ]
    assert draws[:2] == draws[2:4]
    assert len(set(draws)) == (2 if entropy == "seeded" else 4)

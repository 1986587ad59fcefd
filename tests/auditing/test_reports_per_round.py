"""The audit sees it if the reports of one round share their noise."""

from __future__ import annotations

import pytest
from torch import Tensor

from fl_shuffle.auditing.canaries import Canaries
from fl_shuffle.auditing.noise import noise_checks
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.randomizers.personal import NoiseSource

LEVEL = 1e-6
"""Of each check, for a fresh seed."""


@pytest.mark.parametrize("shared", [False, True])
def test_shared_noise_is_seen(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = NoiseSource.stream

    def stream(self: NoiseSource, number: int, rows: Tensor, batch: int = 0) -> NoiseStream:
        return honest(self, number, rows, 0 if shared else batch)

    monkeypatch.setattr(NoiseSource, "stream", stream)
    tables = {
        "data": {"source": "digits", "clients": 20, "records": 4},
        "privacy": {"unit": "client", "reports_per_round": 3},
    }
    checks = noise_checks(Canaries(parse_config(tables), dimension=30), LEVEL)
    assert any(check.refuted for check in checks) == shared

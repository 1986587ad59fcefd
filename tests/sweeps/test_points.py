"""What a grid means, and which grids are refused before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fl_shuffle.errors import ConfigError
from fl_shuffle.sweeps.points import Sweep, parse_grid

BASE = {"run": {"rounds": 2, "seed": 7}}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("privacy.clip_norm=0.01,0.02", [0.01, 0.02]),
        ("data.partition=iid,shards", ["iid", "shards"]),
        ("model.hidden=[10],[20, 30]", [[10], [20, 30]]),
    ],
)
def test_values_are_read_as_toml_or_text(text: str, values: list[object]) -> None:
    assert list(parse_grid([text]).values()) == [values]
    with pytest.raises(ConfigError, match="section.key=value"):
        parse_grid([text.replace(".", "")])
    with pytest.raises(ConfigError, match="given twice"):
        parse_grid([text, text])


def test_every_combination_meets_every_seed() -> None:
    grid = {"privacy.clip_norm": [0.1, 0.2, 0.3], "run.rounds": [3, 4]}
    points = Sweep.of(BASE, grid, 2).points
    assert len(points) == len({point.name for point in points}) == 12
    seen = {(p.config.privacy.clip_norm, p.config.run.rounds, p.config.run.seed) for p in points}
    assert seen == {(c, r, s) for c in (0.1, 0.2, 0.3) for r in (3, 4) for s in (7, 8)}
    assert [point.name[:3] for point in points] == [f"{i:03d}" for i in range(6) for _ in range(2)]


@pytest.mark.parametrize(
    ("grid", "seeds", "message"),
    [
        ({"privacy.clip_norm": [1.0, -1.0]}, 1, "clip_norm = -1"),
        ({"privacy.clop": [1.0]}, 1, "did you mean"),
        ({"privacy.clip_norm": [1.0, 1.0]}, 1, "twice"),
        ({"privacy.clip_norm": []}, 1, "no value"),
        ({"run.out": ["a"]}, 1, "cannot be swept"),
        ({"run.seed": [1, 2]}, 2, "--seeds already"),
        ({"run.rounds": range(1, 200), "run.seed": range(100)}, 1, "19,900"),
    ],
)
def test_grids_refused(grid: dict[str, Sequence[object]], seeds: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sweep.of(BASE, grid, seeds)

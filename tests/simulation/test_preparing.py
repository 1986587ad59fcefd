"""What a user sees before the first round; and that the run directory knows nothing of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fl_shuffle.cli import main
from fl_shuffle.data import Records, task
from fl_shuffle.gradients import packing_of
from tests.gradients.tuning import small_blocks
from tests.small_federation import Launch, model_bytes

HOG = ("data.features=hog", "data.feature_options={cells = [2]}")


def shown(small: Path, run: Path, *options: str) -> list[str]:
    """The arguments of a small run with costly features."""
    settings = [part for setting in HOG for part in ("--set", setting)]
    return ["simulate", str(small), "--out", str(run), *settings, *options]


def test_every_run_says_what_it_reads_and_whether_it_computed_that_before(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FL_SHUFFLE_CACHE", str(tmp_path / "cache"))
    runs = [tmp_path / name for name in ("first", "second", "quiet", "json")]
    said = []
    for run, option in zip(runs, ([], [], ["--quiet"], ["--json"]), strict=True):
        task.forget_data()
        assert main(shown(small, run, *option)) == 0
        said.append(capsys.readouterr())
    first, second, quiet, machine = (
        *(each.err.splitlines() for each in said[:3]),
        said[3].out.splitlines(),
    )
    assert first[0] == second[0] == "reading digits ..."
    assert first[1].startswith("features hog of 1,")
    assert second[1] == first[1].replace(" ...", ", computed before ...")
    assert not any(line.startswith(("reading ", "features ")) for line in quiet)
    assert json.loads(machine[0])["event"] == "start"
    # The same run, to the bit, and no trace of where its features come from.
    assert len({model_bytes(run) for run in runs}) == 1
    for run in runs:
        for path in run.iterdir():
            content = path.read_bytes()
            assert b"computed before" not in content
            assert b"features hog of" not in content
            assert str(tmp_path / "cache").encode() not in content
    task.forget_data()


def pictures(_section: object) -> Records:
    generator = np.random.default_rng(3)
    images = generator.random((70, 6, 6)).astype(np.float32)
    labels = generator.integers(0, 3, 70)
    return Records(images[:60], labels[:60], images[60:], labels[60:], classes=3)


def network(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, shape[0])),
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, classes),
    )


@pytest.mark.parametrize("unit", ["record", "client"])
def test_a_network_trains_to_the_same_bits_with_any_number_of_jobs(
    unit: str, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a few clients, so that the server and two workers have something to disagree on."""
    small_blocks(monkeypatch, 1 << 13)
    settings = (
        f"data.source={__name__}:pictures",
        "data.features=none",
        f"model.kind={__name__}:network",
        f"privacy.unit={unit}",
        "training.participation=0.8",
    )
    assert 5 < packing_of(network((6, 6), 3), (6, 6)).records < 30
    for jobs in ("1", "3"):
        assert launch(jobs, *settings, f"run.jobs={jobs}") == 0
    assert model_bytes(tmp_path / "1") == model_bytes(tmp_path / "3")

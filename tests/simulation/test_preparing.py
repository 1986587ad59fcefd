"""What a user sees before the first round; and that the run directory knows nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl_shuffle.data.task import forget_data
from tests.small_federation import Launch, model_bytes


def test_every_run_says_what_it_reads_whether_it_is_kept_or_not(
    launch: Launch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("FL_SHUFFLE_CACHE", str(tmp_path / "cache"))
    said, names = [], ("first", "second")
    for name in names:
        forget_data()
        hog = "data.features=hog", "data.feature_options={cells = [2]}", "run.rounds=1"
        assert launch(name, *hog, quiet=False) == 0
        said.append(capsys.readouterr().err.splitlines()[:2])
    assert said[0] == said[1] and said[0][0] == "reading digits ..."
    assert said[0][1].startswith("features hog of 1,")
    # The same run, to the bit, and no trace of where its features come from.
    assert len({model_bytes(tmp_path / name) for name in names}) == 1
    for path in (path for name in names for path in (tmp_path / name).iterdir()):
        for trace in ("features hog of", str(tmp_path / "cache")):
            assert trace.encode() not in path.read_bytes()
    forget_data()

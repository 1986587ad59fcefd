"""What a user sees before the first round; and that the run directory knows nothing of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fl_shuffle.data.task import forget_data
from tests.small_federation import Launch, model_bytes

HOG = ("data.features=hog", "data.feature_options={cells = [2]}")


def test_every_run_says_what_it_reads_whether_it_is_kept_or_not(
    launch: Launch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FL_SHUFFLE_CACHE", str(tmp_path / "cache"))
    said = {}
    for name, options in (("first", ()), ("second", ()), ("quiet", ("--quiet",)),
                          ("json", ("--json",))):  # fmt: skip
        forget_data()
        assert launch(name, *HOG, options=options, quiet=False) == 0
        said[name] = capsys.readouterr()
    first, second, quiet = (said[name].err.splitlines() for name in ("first", "second", "quiet"))
    assert first[0] == second[0] == "reading digits ..."
    assert first[1].startswith("features hog of 1,")
    assert second[1] == first[1]
    assert not any(line.startswith(("reading ", "features ")) for line in quiet)
    assert json.loads(said["json"].out.splitlines()[0])["event"] == "start"
    # The same run, to the bit, and no trace of where its features come from.
    assert len({model_bytes(tmp_path / name) for name in said}) == 1
    for path in (path for name in said for path in (tmp_path / name).iterdir()):
        content = path.read_bytes()
        for trace in ("features hog of", str(tmp_path / "cache")):
            assert trace.encode() not in content
    forget_data()

"""Files and folders that no user means: one line, exit code 2, whatever is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_mistakes import code_of

FILES = {
    "deep.toml": "x = " + "[" * 50_000,
    "long.toml": "[run]\nseed = " + "9" * 5000,
    "binary.toml": "\0\1\2",
    "list/config.json": "[1, 2]",
    "deep/config.json": "[" * 50_000,
    "number/config.json": '{"run": 3}',
    "budgets.csv": "client_id,epsilon,delta\n" + "9" * 5000 + ",1,1\n",
}
ODD = ("/proc/x", "/dev/null")
NEW = ["--quiet", "--out", "run", "--rounds", "1"]


@pytest.mark.parametrize(
    "arguments",
    [
        *(["simulate", name.removesuffix("/config.json"), *NEW] for name in FILES),
        *(["simulate", name, *NEW] for name in ("folder.toml", "none.toml", "/dev/zero")),
        *(
            ["simulate", "--set", setting, *NEW]
            for setting in ("run.seed=" + "9" * 5000, "run.seed=" + "[" * 50_000, "run",
                            "app.client=os:getcwd", "app.client=no.such:app",
                            "data.source=os:getcwd", "model.kind=os:getcwd")
        ),
        *(["simulate", "--budgets", name, *NEW] for name in ("budgets.csv", "/dev/zero", ".")),
        *(["simulate", "--quiet", "--rounds", "1", "--out", out] for out in ODD),
        ["simulate", "--quiet", "--set", "run.out=/proc", "--rounds", "1"],
        *(["simulate", "--resume", name] for name in ("/proc", ".")),
        *(["report", name] for name in ("/proc", ".")),
        ["bound", "--matrix", "/dev/zero", "--clients", "9", "--delta", "1e-6"],
        *([*words, "a\0b"] for words in (["simulate"], ["report"], ["sweep", "--resume"],
                                         ["shuffler", "serve"], ["verify"], ["new"])),
    ],
    ids=lambda arguments: " ".join(arguments)[:50].replace("\0", "NUL"),
)  # fmt: skip
def test_it_is_one_line(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    Path("folder.toml").mkdir()
    assert code_of(arguments) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not Path("run").exists()

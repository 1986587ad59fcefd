"""The page in a real browser: what is above the fold, how wide it is, what it logs, its colors."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import fl_shuffle as fs
from fl_shuffle.report.page import write_report
from fl_shuffle.report.record import read_run

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
WIDTHS = {390: 844, 1280: 800}
"""Of a telephone and of a small notebook, and how much of the page each shows at first."""
READABLE = 4.5
"""Contrast of text to what is behind it that WCAG 2.1 AA asks for."""
PROBES = Path(__file__).with_name("probes.js")
DARK = "@media (prefers-color-scheme: dark)"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "run"
    settings = {"run.rounds": 2, "data.clients": 120, "run.jobs": 1}
    fs.simulate("configs/digits_record.toml", overrides=settings, out=folder)
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return write_report([read_run(run)]).read_text(encoding="utf-8")


def opened(text: str, folder: Path) -> tuple[str, str]:
    """The page after its scripts, and what the browser logged of its console."""
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    command = [
        str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom",
        "--enable-logging=stderr", "--v=0", "--virtual-time-budget=30000",
        f"--user-data-dir={folder / 'profile'}", file.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def probed(text: str, probe: str, folder: Path) -> dict[str, Any]:
    """What a probe of `probes.js` says of the page on a screen of each width."""
    asked = f"measure({json.dumps(text)}, {json.dumps(list(WIDTHS.items()))}, {probe})"
    script = f"{PROBES.read_text()} addEventListener('load', () => {asked});".replace("</", "<\\/")
    frames = f'<!doctype html><body><pre id="found"></pre><script>{script}</script>'
    shown, console = opened(frames, folder)
    assert not console
    (answer,) = re.findall(r'<pre id="found">(.*?)</pre>', shown, re.DOTALL)
    found: dict[str, Any] = json.loads(unescape(answer))
    assert list(map(int, found)) == list(WIDTHS)
    return found


def test_the_console_stays_empty_and_a_mistake_would_show(page: str, tmp_path: Path) -> None:
    assert opened(page, tmp_path)[1] == ""
    broken = page.replace("</main>", "</main><script>nobody.knows()</script>")
    assert "nobody is not defined" in opened(broken, tmp_path)[1]


def test_the_two_numbers_are_above_the_fold(page: str, tmp_path: Path) -> None:
    for width, answer in probed(page, "layout", tmp_path).items():
        assert answer["places"].keys() >= {"headline", "local", "accuracy"}
        for name in ("headline", "local", "accuracy"):
            assert 0 < answer["places"][name] <= WIDTHS[int(width)], answer


def test_nothing_is_wider_than_the_screen(page: str, run: Path, tmp_path: Path) -> None:
    # The same run twice: both halves of the page say the same, and must be told apart by name.
    together = write_report([read_run(run)] * 2, tmp_path / "together.html")
    for text in (page, together.read_text(encoding="utf-8")):
        for answer in probed(text, "layout", tmp_path).values():
            assert answer["beyond"] == 0
    wide = page.replace("<h2>", '<div style="width: 1400px">wide</div><h2>', 1)
    assert all(answer["beyond"] > 0 for answer in probed(wide, "layout", tmp_path).values())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_is_readable(page: str, tmp_path: Path, scheme: str) -> None:
    assert page.count(DARK) == 1
    page = page.replace(DARK, "@media all" if scheme == "dark" else "@media not all")
    for answer in probed(page, "contrast", tmp_path).values():
        assert answer["dark"] == (scheme == "dark") and answer["texts"] > 200
        assert answer["worst"][0] >= READABLE, answer["worst"]
        # The grid alone is faint.
        assert answer["faintest"] > 1.2


def test_the_table_of_clients_is_turned_over_sorted_and_searched(page: str, tmp_path: Path) -> None:
    for answer in probed(page, "turned", tmp_path).values():
        rows, told, back, on = answer["start"]
        assert len(rows) == 50 and (told, back, on) == ("1 to 50 of 120", True, False)
        # As in the page before its script ran.
        static = re.findall(r'<table class="paged".*?<tbody>\s*<tr>(.*?)</tr>', page, re.DOTALL)
        assert answer["row"] == re.findall(r">([^<>]+)</t[hd]>", static[0])
        more, told, back, on = answer["on"]
        assert len(set(more) | set(rows)) == 100
        assert (told, back, on) == ("51 to 100 of 120", False, False)
        assert answer["sorted"][0] == [str(client) for client in range(119, 69, -1)]
        assert answer["searched"][0] == [str(c) for c in (*range(119, 109, -1), 11)]
        assert answer["searched"][1:] == ["1 to 11 of 11", True, True]
        assert answer["none"] == [[], "none", True, True]

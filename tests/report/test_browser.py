"""The page in a real browser: what is above the fold, how wide it is, what it logs, its colours."""

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
# In frames: headless windows cannot be narrower than 500 px.
FRAMES = """
<pre id="found"></pre><script>
addEventListener('load', async () => {
  const found = {};
  for (const [width, height] of WIDTHS) {
    const frame = document.createElement('iframe');
    frame.style.width = width + 'px';
    frame.style.height = height + 'px';
    frame.style.border = 0;
    frame.srcdoc = PAGE;
    await new Promise(done => { frame.onload = done; document.body.append(frame); });
    found[width] = (PROBE)(frame.contentDocument, frame.contentWindow);
  }
  document.getElementById('found').textContent = JSON.stringify(found);
});
</script>
"""
LAYOUT = """(page, view) => {
  const root = page.documentElement, places = {};
  for (const each of page.querySelectorAll('data'))
    places[each.dataset.key] ??= each.getBoundingClientRect().bottom;
  for (const each of page.querySelectorAll('details')) each.open = true;
  return {beyond: root.scrollWidth - root.clientWidth, places};
}"""
# Every text that is seen, against the nearest colour behind it.
CONTRAST = """(page, view) => {
  for (const each of page.querySelectorAll('details')) each.open = true;
  const box = Object.assign(page.createElement('canvas'), {width: 1, height: 1});
  const pen = box.getContext('2d', {willReadFrequently: true});
  const light = colour => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    const linear = [r, g, b].map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return [0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2], a];
  };
  const behind = each => {
    for (let at = each; at; at = at.parentElement) {
      const [found, opaque] = light(view.getComputedStyle(at).backgroundColor);
      if (opaque === 255) return found;
    }
    return light('white')[0];
  };
  let worst = [99, ''], texts = 0;
  const back = light(view.getComputedStyle(page.body).backgroundColor)[0];
  for (const each of page.querySelectorAll('main *')) {
    const own = [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || !each.getClientRects().length) continue;
    if (['TITLE', 'DESC', 'SCRIPT'].includes(each.tagName.toUpperCase())) continue;
    const style = view.getComputedStyle(each);
    const [front] = light(each.ownerSVGElement ? style.fill : style.color), rear = behind(each);
    const ratio = (Math.max(front, rear) + 0.05) / (Math.min(front, rear) + 0.05);
    texts++;
    if (ratio < worst[0]) worst = [ratio, each.outerHTML.slice(0, 200)];
  }
  const lines = [...page.querySelectorAll('svg.figure path')]
    .map(path => view.getComputedStyle(path).stroke).filter(stroke => stroke !== 'none')
    .map(stroke => light(stroke)[0])
    .map(front => (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05));
  return {worst, texts, dark: back < 0.2, faintest: Math.min(...lines)};
}"""
TURNED = """(page, view) => {
  const table = page.querySelector('table.paged');
  const pager = page.getElementById(table.id + '-pager');
  const [back, on] = pager.querySelectorAll('button'), input = pager.querySelector('input');
  const shown = () => [[...table.tBodies[0].rows].map(row => row.cells[0].textContent),
                       pager.querySelector('output').textContent, back.disabled, on.disabled];
  const cells = () => [...table.tBodies[0].rows[0].cells].map(cell => cell.textContent);
  const found = {start: shown(), row: cells()};
  on.click();
  found.on = shown();
  table.tHead.rows[0].cells[0].querySelector('button').click();
  found.sorted = shown();
  input.value = '11';
  input.dispatchEvent(new view.Event('input'));
  found.searched = shown();
  input.value = 'x';
  input.dispatchEvent(new view.Event('input'));
  found.none = shown();
  return found;
}"""
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


@pytest.fixture(scope="module")
def together(run: Path) -> str:
    # The same run twice: both halves of the page say the same, and must be told apart by name.
    path = write_report([read_run(each) for each in (run, run)], run.parent / "page.html")
    return path.read_text(encoding="utf-8")


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


def found(text: str, folder: Path) -> Any:
    """What the page's script leaves in the element `found`, as JSON."""
    shown, console = opened(text, folder)
    assert not console
    (answer,) = re.findall(r'<pre id="found">(.*?)</pre>', shown, re.DOTALL)
    return json.loads(unescape(answer))


def probed(text: str, probe: str, folder: Path) -> dict[str, Any]:
    """What `probe` says of the page on a screen of each width."""
    frames = FRAMES.replace("WIDTHS", json.dumps(list(WIDTHS.items()))).replace("PROBE", probe)
    inside = json.dumps(text).replace("</", "<\\/")
    answer = found("<!doctype html><body>" + frames.replace("PAGE", inside), folder)
    assert isinstance(answer, dict) and list(map(int, answer)) == list(WIDTHS)
    return answer


def test_the_console_stays_empty_and_a_mistake_would_show(page: str, tmp_path: Path) -> None:
    assert opened(page, tmp_path)[1] == ""
    broken = page.replace("</main>", "</main><script>nobody.knows()</script>")
    assert "nobody is not defined" in opened(broken, tmp_path)[1]


def test_the_two_numbers_are_above_the_fold(page: str, tmp_path: Path) -> None:
    for width, answer in probed(page, LAYOUT, tmp_path).items():
        assert answer["places"].keys() == {"headline", "accuracy"}
        assert all(0 < place <= WIDTHS[int(width)] for place in answer["places"].values()), answer


def test_nothing_is_wider_than_the_screen(page: str, together: str, tmp_path: Path) -> None:
    for text in (page, together):
        for answer in probed(text, LAYOUT, tmp_path).values():
            assert answer["beyond"] == 0
    wide = page.replace("<h2>", '<div style="width: 1400px">wide</div><h2>', 1)
    assert all(answer["beyond"] > 0 for answer in probed(wide, LAYOUT, tmp_path).values())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_is_readable(page: str, tmp_path: Path, scheme: str) -> None:
    assert page.count(DARK) == 1
    page = page.replace(DARK, "@media all" if scheme == "dark" else "@media not all")
    for answer in probed(page, CONTRAST, tmp_path).values():
        assert answer["dark"] == (scheme == "dark") and answer["texts"] > 200
        assert answer["worst"][0] >= READABLE, answer["worst"]
        # The grid alone is faint.
        assert answer["faintest"] > 1.2


def test_the_table_of_clients_is_turned_over_sorted_and_searched(page: str, tmp_path: Path) -> None:
    for answer in probed(page, TURNED, tmp_path).values():
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

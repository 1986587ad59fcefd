"""The page in a real browser: nothing is cut off at any width, and axe finds nothing wrong.

Wants Chromium, and for the accessibility check a copy of axe-core (`npm install axe-core`), whose
axe.min.js the variable FL_SHUFFLE_AXE names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

import fl_shuffle as fs
from fl_shuffle.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
AXE = Path(os.environ.get("FL_SHUFFLE_AXE", "axe.min.js"))
# On a screen of each width, in frames: headless windows cannot be narrower than 500 px.
PROBE = """
<pre id="found"></pre><script>
addEventListener('load', async () => {
  const widths = {};
  for (const width of [390, 768, 1280]) {
    const frame = document.createElement('iframe');
    frame.style.width = width + 'px';
    frame.srcdoc = PAGE;
    await new Promise(done => { frame.onload = done; document.body.append(frame); });
    const root = frame.contentDocument.documentElement;
    widths[width] = root.scrollWidth - root.clientWidth;
  }
  document.getElementById('found').textContent = JSON.stringify(widths);
});
</script>
"""
CHECK = """
<script>for (const each of document.querySelectorAll('details')) each.open = true;
axe.run(document.querySelector('main')).then(found => {
  const box = document.createElement('pre');
  box.id = 'found';
  box.textContent = JSON.stringify(found.violations.map(each => [each.id, each.nodes[0].html]));
  document.body.append(box);
});</script></body>
"""

DARK = "@media (prefers-color-scheme: dark)"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("browser") / "run"
    settings = {"run.rounds": 2, "data.clients": 60, "run.jobs": 1}
    fs.simulate("configs/digits_record.toml", overrides=settings, out=folder)
    # The same run twice: both halves of the page say the same, and must be told apart by name.
    path = write_report([folder, folder], folder.parent / "page.html")
    return path.read_text(encoding="utf-8")


def found(text: str, folder: Path) -> object:
    """What the page's script leaves in the element `found`, as JSON."""
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    command = [
        str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom",
        "--virtual-time-budget=30000", f"--user-data-dir={folder / 'profile'}", file.as_uri(),
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (answer,) = re.findall(r'<pre id="found">(.*?)</pre>', shown, re.DOTALL)
    return json.loads(unescape(answer))


@pytest.mark.slow
def test_nothing_is_wider_than_the_screen(page: str, tmp_path: Path) -> None:
    text = json.dumps(page).replace("</", "<\\/")
    widths = found("<!doctype html><body>" + PROBE.replace("PAGE", text), tmp_path)
    assert widths == {"390": 0, "768": 0, "1280": 0}


@pytest.mark.slow
@pytest.mark.skipif(not AXE.is_file(), reason="FL_SHUFFLE_AXE names no axe.min.js")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: str, tmp_path: Path, scheme: str) -> None:
    if scheme == "dark":
        assert DARK in page
        page = page.replace(DARK, "@media all")
    script = f"<script>{AXE.read_text(encoding='utf-8')}</script>"
    assert found(page.replace("</body>", script + CHECK), tmp_path) == []

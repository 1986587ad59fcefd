"""The report page: what ran, what it cost whom, and which of the numbers are guarantees."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from fl_shuffle.errors import ConfigError
from fl_shuffle.report import sections
from fl_shuffle.report.comparison import side_by_side
from fl_shuffle.report.markup import page, write_page
from fl_shuffle.report.meaning import Policy
from fl_shuffle.report.record import RunRecord, read_run


def write_report(
    directories: Path | Sequence[Path],
    out: Path | None = None,
    *,
    policy: Policy | None = None,
    purpose: str | None = None,
) -> Path:
    """Write the page of one run, or of several side by side; returns where it is.

    By default that is RUN/report.html for one run; several need `out`. Every epsilon is recomputed
    from the ledgers' classes and attendance, and a disagreement with what is recorded is printed.
    `policy` grades the headline, `purpose` is printed as it is. Raises `RunError` if a run cannot
    be read or the page not be written, `ConfigError` for several runs without `out`.
    """
    folders = [directories] if isinstance(directories, Path) else list(directories)
    path = report_path(folders, out)
    runs = [read_run(folder) for folder in folders]
    return write_page(render(runs, policy=policy, purpose=purpose), path)


def report_path(folders: Sequence[Path], out: Path | None) -> Path:
    """Where the page of these runs goes. Raises `ConfigError` for several runs without `out`."""
    if out is None and len(folders) != 1:
        raise ConfigError("a report over several runs is no run's own; say where with --out FILE")
    return folders[0] / "report.html" if out is None else out


def render(
    runs: Sequence[RunRecord], *, policy: Policy | None = None, purpose: str | None = None
) -> str:
    """The whole page as text."""
    if len(runs) == 1:
        name = runs[0].name
        head = f"<h1>Privacy report: {escape(name)}</h1>"
        body = [head, *_one(runs[0], "", policy, purpose)]
        title = f"Privacy report: {name}"
    else:
        title = f"Privacy report: {len(runs)} runs"
        body = [f"<h1>{title}</h1>", side_by_side(runs, policy)]
        for number, run in enumerate(runs, start=1):
            parts = "\n".join(_one(run, f"run{number}-", policy, purpose))
            body.append(
                f'<details class="printed" id="run{number}"><summary>Run {number}: '
                f"{escape(run.name)}</summary>\n{parts}</details>"
            )
    return page(title, [*body, sections.signature(list(runs))])


def _one(run: RunRecord, prefix: str, policy: Policy | None, purpose: str | None) -> list[str]:
    parts = [sections.what_was_done(run, purpose)]
    if run.spend is None:
        parts += [
            "<p>No round has been released: nothing has been spent.</p>",
            *(f'<p class="warning">{escape(text)}</p>' for text in sections.disagreements(run)),
            sections.not_covered(run),
        ]
    else:
        parts += [
            sections.headline(run, policy),
            sections.not_covered(run),
            sections.spend_section(run, prefix),
            sections.bounds(run, prefix),
            sections.clients(run, prefix),
            sections.curves(run, prefix),
            sections.accuracy(run, prefix),
        ]
    return [*parts, sections.remarks(run), sections.again(run)]

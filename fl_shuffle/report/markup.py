"""What every page shares: its style, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

CSS = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #111827; background: #fff;
  max-width: 68rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
.headline { font-size: 1.9rem; font-weight: 600; margin: 1.25rem 0 .25rem; color: #1553b6; }
.quiet { color: #4b5563; } .warning { border-left: 4px solid #c2410c; background: #fff7ed;
  padding: .5rem .9rem; margin: .6rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; padding: .35rem .7rem .35rem 0; border-bottom: 1px solid #e5e7eb;
  vertical-align: top; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.charts { display: grid; gap: 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(28rem, 100%), 1fr)); }
figure { margin: 0; } figure svg { width: 100%; height: auto; }
figcaption { font-size: .88rem; color: #4b5563; } .scroll { overflow-x: auto; }
pre { font-size: .82rem; background: #f8fafc; padding: .8rem; overflow-x: auto; }
"""


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are text, escaped here; no head row if `heads` are empty."""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads) if any(heads) else ""
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'

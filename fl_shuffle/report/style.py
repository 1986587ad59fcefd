"""How the pages look, in the light, in the dark and on paper; and the tables' search and sorting.

Colours are variables: text and lines keep a contrast of at least 4.5 to 1 in both schemes.
"""

from __future__ import annotations

CSS = """
:root { color-scheme: light dark; --back: #ffffff; --panel: #f6f7f9; --ink: #1a1f2b;
  --quiet: #4b5563; --rule: #d5d9e0; --accent: #1553b6; --warn: #9a3412; --warn-back: #fff4ec;
  --good: #166534; --shade: #0003; --proven: #1553b6; --sum: #7c3aed; --local: #475569;
  --gspa: #b4400a; --specific: #8a5a00; --lower: #15803d; --sum_lower: #0f766e;
  --target: #111827; }
@media (prefers-color-scheme: dark) { :root { --back: #14171d; --panel: #1d222b; --ink: #e7e9ee;
  --quiet: #aeb6c4; --rule: #3a4250; --accent: #8ab6ff; --warn: #ffb27a; --warn-back: #2e2119;
  --good: #7ddb9c; --shade: #000a; --proven: #7fb0ff; --sum: #c3a6ff; --local: #a3afc2;
  --gspa: #ffa56b; --specific: #e3c05c; --lower: #6fd796; --sum_lower: #5eead4;
  --target: #e7e9ee; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 70rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.75rem 0 .6rem; border-top: 1px solid var(--rule);
  padding-top: 1.2rem; } h3 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
p { margin: .5rem 0; } p, li { max-width: 50rem; } a { color: var(--accent); }
.headline { font-size: 1.9rem; line-height: 1.3; font-weight: 650; margin: .6rem 0 .25rem;
  color: var(--accent); } .quiet, figcaption, caption { color: var(--quiet); }
.warning { border-left: 4px solid var(--warn); background: var(--warn-back); padding: .5rem .9rem;
  margin: .6rem 0; max-width: none; }
.verdict { display: inline-block; border: 2px solid currentColor; border-radius: .4rem;
  padding: .1rem .7rem; font-weight: 650; } .strong { color: var(--good); }
.moderate { color: var(--accent); } .weak { color: var(--warn); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
caption { text-align: left; padding: .2rem 0 .4rem; max-width: calc(100vw - 2.5rem); }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; } thead th { border-bottom-width: 2px; }
th[scope=row] { font-weight: 600; }
td.n, th.n { padding-left: .8rem; text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.scroll { overflow-x: auto;
  background: linear-gradient(to right, var(--back) 50%, transparent) left,
    linear-gradient(to left, var(--back) 50%, transparent) right,
    linear-gradient(to right, var(--shade), transparent) left,
    linear-gradient(to left, var(--shade), transparent) right;
  background-size: 2rem 100%, 2rem 100%, .6rem 100%, .6rem 100%; background-repeat: no-repeat;
  background-attachment: local, local, scroll, scroll; }
.scroll thead th { white-space: nowrap; }
.scroll th[scope=row]:not(.n) { min-width: 9rem; } .scroll td:not(.n) { min-width: 7rem; }
.tall { max-height: 30rem; overflow-y: auto; }
.tall thead th { position: sticky; top: 0; background: var(--back); }
.scroll:focus-visible, button:focus-visible, input:focus-visible, summary:focus-visible {
  outline: 3px solid var(--accent); outline-offset: 2px; }
th button { font: inherit; font-weight: inherit; color: inherit; background: none; border: 0;
  padding: .1rem 0; cursor: pointer; text-decoration: underline dotted; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.search { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center;
  margin: .6rem 0; } .search[hidden] { display: none; }
input { font: inherit; color: var(--ink); background: var(--back); padding: .25rem .5rem;
  border: 1px solid var(--quiet); border-radius: .3rem; }
.charts { display: grid; gap: 2rem 1.75rem; margin: 1.2rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(27rem, 100%), 1fr)); }
figure { margin: 0; min-width: 0; max-width: 40rem; }
figure h3 { margin-top: 0; } figcaption { font-size: .9rem; }
svg.figure { display: block; width: 100%; height: auto; } svg text { fill: var(--quiet);
  font: 14px system-ui, sans-serif; } svg text.name { fill: var(--ink); font-size: 15px; }
svg .grid { stroke: var(--rule); stroke-width: 1; } svg .axis { stroke: var(--quiet); fill: none; }
svg .line { fill: none; stroke: var(--ink); stroke-width: 2.5; stroke-linejoin: round; }
svg .spread { fill: none; stroke: var(--ink); stroke-width: 1.5; } svg .dot { fill: var(--ink); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .4rem 0;
  padding: 0; font-size: .9rem; } .legend li { display: flex; }
.key { flex: none; width: 34px; height: 10px; margin: .45rem .45rem 0 0; }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--accent); }
pre { font-size: .82rem; background: var(--panel); padding: .8rem; overflow-x: auto; }
code { font-size: .9em; background: var(--panel); padding: .05rem .3rem; border-radius: .2rem; }
.sign { display: grid; gap: 1.4rem 2rem; grid-template-columns: repeat(auto-fit,
  minmax(min(15rem, 100%), 1fr)); margin-top: 2rem; }
.sign div { border-bottom: 1px solid var(--ink); height: 3rem; color: var(--quiet);
  font-size: .9rem; }
.paper { display: none; }
@page { margin: 16mm 14mm; }
@media screen and (max-width: 44rem) { .scroll table { font-size: .82rem; }
  .scroll td.n, .scroll th.n { padding: .35rem .2rem; }
  .scroll th[scope=row]:not(.n), .scroll td:not(.n) { min-width: 0; padding-right: .25rem;
    white-space: nowrap; }
  .cards thead { position: absolute; clip-path: inset(50%);
    width: 1px; height: 1px; overflow: hidden; }
  .cards, .cards tbody, .cards tr, .cards th, .cards td { display: block; text-align: left; }
  .cards tr { border-bottom: 1px solid var(--rule); padding: .5rem 0; }
  .cards th, .cards td { border: 0; padding: .1rem 0; white-space: normal; }
  .cards td::before { content: attr(data-head) ": "; color: var(--quiet); }
  .cards td[data-head=""]::before { content: none; } }
@media print { :root { color-scheme: light; --back: #fff; --panel: #fff; --ink: #000;
    --quiet: #333; --rule: #bbb; --accent: #000; --warn: #000; --warn-back: #fff; --good: #000;
    --proven: #1553b6; --sum: #7c3aed; --local: #475569; --gspa: #b4400a; --specific: #8a5a00;
    --lower: #15803d; --sum_lower: #0f766e; --target: #000; }
  :root { font-size: 10pt; } body { font-size: 1rem; max-width: none; padding: 0; }
  p, li, caption { max-width: none; }
  h2, h3, caption { break-after: avoid; } table, .legend, figcaption { font-size: 8pt; }
  .scroll { overflow: visible; background: none; } .scroll table { font-size: 7.5pt; }
  .scroll thead th { white-space: normal; }
  td, th { padding-right: .4rem; } td.n, th.n { padding-left: .3rem; }
  .scroll th[scope=row]:not(.n) { min-width: 6rem; } .scroll td:not(.n) { min-width: 3.8rem; }
  figure, tr, .sign, .warning { break-inside: avoid; }
  .tall { max-height: none; } .tall thead th { position: static; }
  .search, .rest, details:not(.printed) { display: none; } .paper { display: block; }
  th button { text-decoration: none; } .charts { grid-template-columns: 1fr 1fr; }
  .printed::details-content { content-visibility: visible; display: block; height: auto; }
  a { color: inherit; text-decoration: none; } }
"""


def _strokes() -> str:
    """Each column's colour and dashes; runs side by side have theirs by number."""
    named = ["proven", "sum", "local", "gspa", "specific", "lower", "sum_lower", "target"]
    rules = [f"svg .{name} {{ stroke: var(--{name}); }}" for name in named]
    rules += [f"svg .dot.{name} {{ stroke: none; fill: var(--{name}); }}" for name in named]
    rules += [
        "svg .line.gspa, svg .line.specific { stroke-dasharray: 9 5; stroke-width: 2; }",
        "svg .line.lower, svg .line.sum_lower { stroke-dasharray: 2 4; }",
        "svg .line.local { stroke-width: 1.6; }",
        "svg .line.target { stroke-width: 1.3; stroke-dasharray: 1 0; }",
        "svg .line.accuracy { stroke: var(--proven); }",
        "svg .line.guessing { stroke: var(--quiet); stroke-width: 1.4; }",
    ]
    colours = ("proven", "gspa", "lower", "sum", "specific", "local", "sum_lower", "target")
    dashes = ("1 0", "9 4", "3 3", "12 3 3 3", "1 0", "9 4", "3 3", "12 3 3 3")
    for number, (colour, dash) in enumerate(zip(colours, dashes, strict=True)):
        rules.append(
            f"svg .run-{number} {{ stroke: var(--{colour}); }} "
            f"svg .line.run-{number} {{ stroke-dasharray: {dash}; }} "
            f"svg .dot.run-{number} {{ stroke: none; fill: var(--{colour}); }}"
        )
    return "\n".join(rules)


CSS += _strokes()

JS = """
for (const table of document.querySelectorAll('table.sortable')) {
  const bodies = [...table.tBodies], first = bodies[0].rows.length;
  let rows = bodies.flatMap(body => [...body.rows]);
  const spread = () => rows.forEach((row, i) => bodies[i < first ? 0 : 1].append(row));
  const value = (row, i) => {
    const text = row.cells[i].dataset.v ?? row.cells[i].textContent;
    return text === '' || isNaN(text) ? text : Number(text);
  };
  [...table.tHead.rows[0].cells].forEach((head, i) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => {
      const down = head.getAttribute('aria-sort') !== 'descending';
      for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      rows.sort((a, b) => {
        const x = value(a, i), y = value(b, i);
        return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
      });
      spread();
    });
  });
  const box = document.getElementById(table.dataset.search);
  if (!box) continue;
  box.hidden = false;
  const input = box.querySelector('input'), count = box.querySelector('output');
  const search = () => {
    const wanted = input.value.trim();
    let found = 0;
    for (const row of rows) {
      const hit = row.cells[0].textContent.startsWith(wanted);
      row.hidden = !hit;
      found += hit;
    }
    count.textContent = wanted === '' ? '' : `${found} of ${rows.length}`;
  };
  input.addEventListener('input', search);
}
"""
"""Without it every row is there, in the order of the page."""

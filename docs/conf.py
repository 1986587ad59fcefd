"""How Sphinx makes the site: `sphinx-build -W docs site`."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from html import escape
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from fl_shuffle.cli.parsers import SUBCOMMANDS, parser_of
from fl_shuffle.configuration.reading import SECTIONS
from fl_shuffle.settings_schema import as_toml, settings_of, words_of
from fl_shuffle.version import __version__

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the page of reproductions, and notebooks

from benchmarks.reproduction.page import sections
from docs.notebooks import NotebookParser

project = "fl-shuffle"
author = "The fl-shuffle authors"
copyright = author
release = version = __version__

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid",
    "docs.formulas",
]  # fmt: skip
html_math_renderer = "mathml"
exclude_patterns = ["research/reproductions/*/*"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["own.css"]
html_js_files = ["own.js"]
html_title = "fl-shuffle"
# Docstrings and pages write code in single backticks.
default_role = "code"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80
autodoc_member_order = "bysource"
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_fence_as_directive = ["mermaid"]
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure"]


class AllCommands(Directive):
    """`{all-commands}`: what every command's parser says, so that the page cannot differ."""

    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for name in SUBCOMMANDS:
            section = nodes.section(ids=[f"command-{name}"])
            section += nodes.title(text=name)
            section += _command(parser_of(name))
            found.append(section)
        return found


def _command(parser: argparse.ArgumentParser) -> list[nodes.Node]:
    """What it does, how it is called, and a line for each of its arguments."""
    formatter = parser._get_formatter()
    usage = " ".join(parser.format_usage().split()[1:])
    listed = nodes.definition_list()
    for action in parser._actions:
        if action.help in (None, argparse.SUPPRESS):
            continue
        names = formatter._format_action_invocation(action)
        item = nodes.definition_list_item()
        item += nodes.term("", "", nodes.literal(names, names))
        item += nodes.definition("", _prose(formatter._expand_help(action)))
        listed += item
    purpose = [_prose(text) for text in (parser.description or "").split("\n\n")]
    return [*purpose, nodes.literal_block(usage, usage, language="text"), listed]


class AllSettings(Directive):
    """`{all-settings}`: what `fl_shuffle.configuration.sections` declares, a table a section."""

    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for name, declared in SECTIONS.items():
            section = nodes.section(ids=[name])
            section += nodes.title(text=name)
            rows = [("key", "default", "what")]
            for key, each in settings_of(declared).items():
                rows.append((key, as_toml(each.default), "; ".join(words_of(declared, key))))
            section += _table(rows)
            found.append(section)
        return found


def _prose(text: str) -> nodes.paragraph:
    """A paragraph in which backticks mark code."""
    paragraph = nodes.paragraph()
    for place, part in enumerate(text.split("`")):
        paragraph += (nodes.literal if place % 2 else nodes.inline)(part, part)
    return paragraph


def _table(rows: list[tuple[str, str, str]]) -> nodes.table:
    group = nodes.tgroup(cols=3)
    group += [nodes.colspec(colwidth=width) for width in (20, 20, 60)]
    bodies = nodes.thead(), nodes.tbody()
    for number, row in enumerate(rows):
        line = nodes.row()
        for column, text in enumerate(row):
            cell = nodes.entry()
            cell += _prose(f"`{text}`" if number and column < 2 else text)
            line += cell
        bodies[min(number, 1)].append(line)
    group += list(bodies)
    table = nodes.table()
    table += group
    return table


EXPECTED = re.compile(r"## What to expect\n.*?<!-- end of what", re.DOTALL)


def with_results(app: Sphinx, name: str, source: list[str]) -> None:
    """README's table on the front page; below the reproductions, what each of them found."""
    if name == "index":
        readme = (Path(app.srcdir).parent / "README.md").read_text(encoding="utf-8")
        (found,) = EXPECTED.findall(readme)
        table = re.sub("<!--.*?(-->\n|$)", "", found)
        source[0] = source[0].replace("<!-- README.md: What to expect -->", table)
    if name == "research/reproductions/README":
        folder = Path(app.srcdir) / "research" / "reproductions"
        names = re.findall(r"^- \[.*?\]\(([\w-]+)/", source[0], re.MULTILINE)
        source[0] += sections([json.loads((folder / n / "entry.json").read_text()) for n in names])


FORWARD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{project}: this page has moved</title>
<script>
  const moved = {anchors};
  const section = location.hash.slice(1);
  location.replace(moved[section] || "{target}" + location.hash);
</script>
<noscript><meta http-equiv="refresh" content="0; url={target}"></noscript>
<p>This page has moved: <a href="{target}">{target}</a></p>
</html>
"""
"""The page at an address of an older release."""


def lead_on(app: Sphinx, failure: Exception | None) -> None:
    """Write a page that leads on at every address of `redirects.toml`."""
    if failure or app.builder.format != "html":
        return
    moved = tomllib.loads((Path(app.srcdir) / "redirects.toml").read_text(encoding="utf-8"))
    for old, new in moved["pages"].items():
        up = "../" * old.count("/")
        anchors = {}
        for place, target in moved["anchors"].items():
            page, _, section = place.partition("#")
            if page == old:
                page, _, there = target.partition("#")
                anchors[section] = f"{up}{page}.html#{there}".rstrip("#")
        text = FORWARD.format(
            project=project, target=escape(f"{up}{new}.html"), anchors=json.dumps(anchors)
        )
        file = Path(app.outdir) / f"{old}.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("build-finished", lead_on)
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    app.connect("source-read", with_results)
    app.add_directive("all-commands", AllCommands)
    app.add_directive("all-settings", AllSettings)

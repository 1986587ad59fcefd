"""How Sphinx makes the site: `sphinx-build -W docs site`."""

from __future__ import annotations

import argparse
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from fl_shuffle.cli import SUBCOMMANDS, build_parser
from fl_shuffle.version import __version__

project = "fl-shuffle"
author = "The fl-shuffle authors"
copyright = author
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["reproduction/*/*"]
# Handed out beside the page it is made of.
html_extra_path = ["tutorial.ipynb"]
html_theme = "furo"
html_title = "fl-shuffle"
# Docstrings and pages write code in single backticks.
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure"]


class AllCommands(Directive):
    """`{all-commands}`: what every command's `--help` prints, so that the page cannot differ."""

    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        (subparsers,) = (
            action
            for action in build_parser()._actions
            if isinstance(action, argparse._SubParsersAction)
        )
        found: list[nodes.Node] = []
        for name in SUBCOMMANDS:
            text = subparsers.choices[name].format_help()
            section = nodes.section(ids=[f"command-{name}"])
            section += nodes.title(text=name)
            section += nodes.literal_block(text, text, language="text")
            found.append(section)
        return found


def setup(app: Sphinx) -> None:
    app.add_directive("all-commands", AllCommands)

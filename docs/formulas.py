"""Formulas of the pages as MathML, which browsers draw without scripts and without a network."""

from __future__ import annotations

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

INLINE, BLOCK = "inline", "block"


def mathml(latex: str, display: str = INLINE) -> str:
    """Return one formula as a `math` element.

    Parameters
    ----------
    latex : str
        The formula without its dollars.
    display : {"inline", "block"}
        Whether it stands in a sentence or on lines of its own.

    Raises
    ------
    ValueError
        If a command or an alignment mark remains, which a reader would see as such.
    """
    # The converter knows `align*` alone; inside dollars, LaTeX itself wants `aligned`.
    written = latex.replace("{aligned}", "{align*}")
    written = re.sub(r"\\tag\{(\w+)\}", r"\\qquad (\1)", written)
    made = convert(written, display=display)
    left = re.search(r"\\[A-Za-z]+|<mi>&</mi>", made)
    if left:
        raise ValueError(f"no MathML for {left[0]} in the formula {latex.strip()!r}")
    return made


def _in_a_sentence(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def _on_its_own(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="formula">{mathml(node.astext(), BLOCK)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_in_a_sentence, None), (_on_its_own, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

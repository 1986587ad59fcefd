"""The report's figures, as SVG text."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from fl_shuffle.report.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# name -> (colour, line style, width, label); dashes mark what is not proven.
STYLE = {
    "proven": ("#1553b6", "-", 2.4, "proven"),
    "sum": ("#7c3aed", "-", 2.0, "sum alone released, proven"),
    "local": ("#64748b", "-", 1.2, "local (no shuffling), proven"),
    "gspa": ("#c2410c", "--", 1.6, "GSPA, as published"),
    "specific": ("#a16207", "--", 1.6, "specific, as published"),
    "lower": ("#15803d", ":", 1.8, "lower bound (attack)"),
}
SIZE = (6.4, 3.7)
"""Of a figure, in inches."""
SMALLEST_DELTA = 1e-12
"""Curves of delta end here: smaller ones mean nothing to a reader."""
POINTS = 100
"""Of a curve."""


def spend_over_rounds(run: RunRecord) -> str:
    """Cumulative epsilon of the worst client after every round, in each column."""

    def draw(axes: Axes) -> None:
        shown: list[float] = []
        for name, (colour, dashes, width, label) in STYLE.items():
            values = run.ledger.epsilon[name]
            finite = np.isfinite(values) & (values > 0.0)
            if finite.any():
                axes.plot(
                    run.ledger.rounds[finite], values[finite], dashes, color=colour, lw=width,
                    label=label, marker="." if finite.sum() < 3 else None,
                )  # fmt: skip
                shown.extend(values[finite])
        if shown and max(shown) > 20.0 * min(shown):
            axes.set_yscale("log")
        target = run.config["privacy"].get("target_epsilon")
        if target is not None:
            axes.axhline(target, color="#111827", lw=1.0, label="target")
        axes.set(xlabel="round", ylabel=f"epsilon at delta = {_delta(run):g}")
        axes.locator_params(axis="x", integer=True)

    return svg_figure(draw)


def accuracy_over_rounds(run: RunRecord) -> str:
    """Test accuracy after the rounds at which it was measured."""

    def draw(axes: Axes) -> None:
        values = 100.0 * np.array(list(run.accuracy.values()))
        axes.plot(list(run.accuracy), values, color="#1553b6", lw=2.0,
                  marker="." if len(values) < 40 else None)  # fmt: skip
        axes.set(xlabel="round", ylabel="test accuracy, %")
        axes.locator_params(axis="x", integer=True)

    return svg_figure(draw)


def clients_distribution(run: RunRecord) -> str:
    """The share of clients whose own epsilon is at most x, in each proven column."""
    totals = run.totals
    columns = {"local": totals.local, "proven": totals.proven, "sum": totals.sum}

    def draw(axes: Axes) -> None:
        for name, values in columns.items():
            if np.isnan(values).any():
                continue
            colour, dashes, width, label = STYLE[name]
            finite = np.sort(values[np.isfinite(values)])
            share = 100.0 * np.arange(1, len(finite) + 1) / len(values)
            axes.step(finite, share, dashes, where="post", color=colour, lw=width, label=label)
        positive = np.concatenate(list(columns.values()))
        positive = positive[np.isfinite(positive) & (positive > 0.0)]
        if positive.size and positive.max() > 20.0 * positive.min():
            axes.set_xscale("log")
        axes.set(xlabel=f"a client's own epsilon at delta = {_delta(run):g}", ylabel="% of clients")
        axes.set_ylim(0.0, 102.0)

    return svg_figure(draw)


def privacy_profile(run: RunRecord) -> str:
    """delta against epsilon for the worst client: the headline's, and the published GSPA mu."""
    worst, spend = run.worst, run.spend
    assert worst is not None and spend is not None

    def draw(axes: Axes) -> None:
        top = max(1.5 * worst.epsilon, 1e-6)
        grid = np.linspace(0.0, top, POINTS)
        curve = worst.profile(grid)
        colour, dashes, width, label = STYLE[spend.headline_column]
        seen = curve > SMALLEST_DELTA
        axes.plot(grid[seen], curve[seen], dashes, color=colour, lw=width, label=label)
        if spend.mu_total is not None:
            published = gaussian_profile(grid, spend.mu_total)
            colour, dashes, width, label = STYLE["gspa"]
            seen = published > SMALLEST_DELTA
            axes.plot(grid[seen], published[seen], dashes, color=colour, lw=width, label=label)
        axes.axhline(_delta(run), color="#111827", lw=1.0, label="the run's delta")
        axes.set(xlabel="epsilon", ylabel="delta", yscale="log", ylim=(SMALLEST_DELTA, 1.5))

    return svg_figure(draw)


def trade_off(run: RunRecord) -> str:
    """Type II error that every test of the worst client must have, against its type I error."""
    from scipy.special import ndtr, ndtri

    worst, spend = run.worst, run.spend
    assert worst is not None and spend is not None

    def draw(axes: Axes) -> None:
        first = np.linspace(0.0, 1.0, 201)
        axes.plot(first, 1.0 - first, color="#cbd5e1", lw=1.2, label="guessing")
        second = worst.trade_off(first)
        colour, dashes, width, label = STYLE[spend.headline_column]
        axes.plot(first, second, dashes, color=colour, lw=width, label=f"{label}: at least this")
        if spend.mu_total is not None:
            colour, dashes, width, label = STYLE["gspa"]
            claimed = ndtr(ndtri(1.0 - first) - spend.mu_total)
            axes.plot(first, claimed, dashes, color=colour, lw=width, label=label)
        axes.set(xlabel="false alarms (type I error)", ylabel="misses (type II error)")
        axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))

    return svg_figure(draw)


def _delta(run: RunRecord) -> float:
    return float(run.config["privacy"]["target_delta"])


def svg_figure(draw: Callable[[Axes], None]) -> str:
    """One figure in the page's style, drawn by `draw`, as SVG text."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "fl-shuffle", "font.size": 10,
        "font.family": "sans-serif", "axes.spines.top": False, "axes.spines.right": False,
        "axes.grid": True, "grid.color": "#e5e7eb", "legend.fontsize": 9,
    }  # fmt: skip
    with rc_context(style):
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        if axes.get_legend_handles_labels()[1]:
            figure.legend(loc="outside upper left", ncols=3, frameon=False)
        text = io.StringIO()
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(text, metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]

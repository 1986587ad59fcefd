"""Figures as SVG text in the page: colours and sizes are the style sheet's, so that they follow it
in the dark and on paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from fl_shuffle.report.figures import Figure, Line, Vector

# Of the drawing, in units; the page scales it. Text stays readable on a telephone (360 px).
WIDTH, HEIGHT = 480.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 66.0, 14.0, 14.0, 52.0
CHARACTER = 8.0
"""Width of a digit of a label, in units: labels that would touch are left out."""
LABEL_GAP = 12.0
"""Between two labels of the x axis."""
MOST_TICKS = 6
"""Labels of an axis."""
HEADROOM = 0.06
"""Of an axis beyond the values, as a share of them."""
STYLES = 8
"""Runs side by side are told apart by so many dashes and colours."""


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    counts: bool = False

    def place(self, values: Vector) -> Vector:
        """Where values are drawn; those outside at the edge."""
        low, high, shown = self.low, self.high, np.clip(values, self.low, self.high)
        if self.log:
            low, high, shown = math.log(low), math.log(high), np.log(shown)
        share = (shown - low) / (high - low)
        return np.asarray(self.start + share * (self.end - self.start), dtype=np.float64)

    def ticks(self) -> list[float]:
        """Round values inside, about `MOST_TICKS` at most; whole ones on an axis that counts."""
        if self.log:
            return _log_ticks(self.low, self.high)
        return _ticks(self.low, self.high, 1.0 if self.counts else 0.0)


def svg(figure: Figure, name: str) -> str:
    """The figure, called `name` on its page; `legend` goes with it."""
    lines = figure.shown()
    x = _axis(
        [line.x for line in lines],
        LEFT,
        WIDTH - RIGHT,
        log=figure.log_x,
        counts=figure.counts,
        headroom=HEADROOM if figure.scattered else 0.0,
    )
    y = _axis(
        [*(line.y for line in lines), *(_ends(line) for line in lines)],
        HEIGHT - BOTTOM,
        TOP,
        log=figure.log_y,
        low=figure.low,
        high=figure.high,
        headroom=HEADROOM,
    )
    parts = [
        f'<svg class="figure" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg" aria-labelledby="{name}-title {name}-text">',
        f'<title id="{name}-title">{escape(figure.title)}</title>',
        f'<desc id="{name}-text">{escape(_described(figure, lines))}</desc>',
        *_grid(figure, x, y),
    ]
    # The highest in the legend lies on top.
    for line in reversed(lines):
        parts.append(_drawn(line, x, y))
    return "".join(parts) + "</svg>"


def legend(figure: Figure) -> str:
    """The figure's lines, in the order in which they end, from the top."""
    lines = figure.shown()
    if len(lines) < 2:
        return ""
    entries = "".join(
        '<li><svg class="key" viewBox="0 0 34 10" aria-hidden="true" focusable="false">'
        f'<line class="line {escape(line.kind)}" x1="1" y1="5" x2="33" y2="5"/></svg>'
        f"{escape(line.label)}</li>"
        for line in lines
    )
    return f'<ul class="legend">{entries}</ul>'


def _drawn(line: Line, x: Axis, y: Axis) -> str:
    across, up = x.place(line.x), y.place(line.y)
    found = ""
    if line.spread is not None:
        top, low = y.place(line.y + line.spread), y.place(line.y - line.spread)
        found += "".join(
            f'<path class="spread {line.kind}" d="M{a:.1f} {b:.1f}V{c:.1f}'
            f'M{a - 4:.1f} {b:.1f}h8M{a - 4:.1f} {c:.1f}h8"/>'
            for a, b, c in zip(across, top, low, strict=True)
        )
    if len(across) < 3 and not line.steps and line.kind != "target":
        found += "".join(
            f'<circle class="dot {line.kind}" cx="{a:.1f}" cy="{b:.1f}" r="3.5"/>'
            for a, b in zip(across, up, strict=True)
        )
    if line.steps:
        # A share holds from its value on, up to the next one and to the right edge.
        across = np.append(np.repeat(across, 2), WIDTH - RIGHT)
        up = np.insert(np.repeat(up, 2), 0, HEIGHT - BOTTOM)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, up, strict=True))
    return found + f'<polyline class="line {escape(line.kind)}" points="{points}"/>'


def _grid(figure: Figure, x: Axis, y: Axis) -> list[str]:
    parts = []
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value, place in zip(y.ticks(), y.place(np.array(y.ticks())), strict=True):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{place:.1f}" '
                     f'y2="{place:.1f}"/>')  # fmt: skip
        parts.append(f'<text x="{LEFT - 7:g}" y="{place + 5:.1f}" text-anchor="end">'
                     f"{_label(value)}</text>")  # fmt: skip
    last = -math.inf
    for value, place in zip(x.ticks(), x.place(np.array(x.ticks())), strict=True):
        half = 0.5 * CHARACTER * len(_label(value))
        parts.append(f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" '
                     f'y2="{bottom}"/>')  # fmt: skip
        if place - half < last + LABEL_GAP:
            continue
        shown = min(place, WIDTH - half)
        last = shown + half
        parts.append(f'<text x="{shown:.1f}" y="{bottom + 19:g}" text-anchor="middle">'
                     f"{_label(value)}</text>")  # fmt: skip
    middle = 0.5 * (TOP + bottom)
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
    parts.append(f'<text class="name" x="{0.5 * (LEFT + right):g}" y="{HEIGHT - 8:g}" '
                 f'text-anchor="middle">{escape(figure.x_label)}</text>')  # fmt: skip
    parts.append(f'<text class="name" transform="translate(14 {middle:g}) rotate(-90)" '
                 f'text-anchor="middle">{escape(figure.y_label)}</text>')  # fmt: skip
    return parts


def _axis(
    values: Sequence[Vector],
    start: float,
    end: float,
    *,
    log: bool,
    counts: bool = False,
    low: float | None = None,
    high: float | None = None,
    headroom: float = 0.0,
) -> Axis:
    every = np.concatenate([np.ravel(each) for each in values]) if values else np.empty(0)
    if log:
        every = every[every > 0.0]
    least = float(every.min()) if every.size else 0.0
    most = float(every.max()) if every.size else 1.0
    if log:
        least, most = (least, most) if every.size else (1.0, 10.0)
        if most < 2.0 * least:
            least, most = least / 1.5, most * 1.5
        return Axis(least * (1.0 - headroom), most * (1.0 + headroom), start, end, log, counts)
    if headroom and low is None and 0.0 <= least <= 0.6 * most:
        least = 0.0
    if most - least < 1e-9 * max(abs(most), 1e-300):
        least, most = least - 0.5 * (abs(least) or 1.0), most + 0.5 * (abs(most) or 1.0)
    room = headroom * (most - least)
    bottom = least - (room if least > 0.0 else 0.0) if low is None else low
    return Axis(bottom, most + room if high is None else high, start, end, log, counts)


def _ends(line: Line) -> Vector:
    if line.spread is None:
        return np.empty(0)
    return np.concatenate([line.y - line.spread, line.y + line.spread])


def _ticks(low: float, high: float, least: float = 0.0) -> list[float]:
    """Multiples of a round step, of `least` or more."""
    rough = max((high - low) / MOST_TICKS, least)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1.0, 2.0, 5.0, 10.0) if power * each >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [step * index for index in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    decades = [10.0**power for power in range(first, last + 1)]
    if len(decades) > MOST_TICKS:
        every = math.ceil(len(decades) / MOST_TICKS)
        return decades[::every]
    if len(decades) > 2:
        return decades
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    between = [each * 10.0**power for power in powers for each in (1.0, 2.0, 5.0)]
    found = [value for value in between if low <= value <= high]
    return found if len(found) > 1 else _ticks(low, high)


def _label(value: float) -> str:
    if value == 0.0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}"
    mantissa, power, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if power else mantissa


def _described(figure: Figure, lines: Sequence[Line]) -> str:
    ends = "; ".join(
        f"{line.label}: from {line.y[0]:.4g} at {line.x[0]:.4g} to {line.y[-1]:.4g} at "
        f"{line.x[-1]:.4g}"
        for line in lines
    )
    return f"{figure.y_label} against {figure.x_label}. {ends}. All numbers: the table below it."

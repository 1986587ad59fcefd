"""What doubles lose, and what is added for it: one place for all bounds and searches.

Where the operations of a step are counted its error is a number of `UNIT`s. Everything else is
moved to the safe side by one of two shares, far above what was measured and far below what is read.
"""

from __future__ import annotations

UNIT = 2.0**-53
"""Half an ulp of one."""
LONG_SUM_ULPS = 2.0**14
"""This number covers sums of some hundreds of terms whose total is one."""
ROUND_OFF = 1e-9
"""Relative, of results: sums and products of positive terms, powers and exponentials with exponents
up to some hundreds, closed formulas. The largest that was measured, against 50 digits: 1.8e-11 of a
Gaussian delta, over all mu, epsilon up to 700 and delta down to 1e-290."""
ROUND_UP, ROUND_DOWN = 1.0 + ROUND_OFF, 1.0 - ROUND_OFF
INVERSE_ERROR = 1e-10
"""Relative, of the answer of a search: it ends within 2e-12 of the crossing, where round-off of the
function decides the rest."""

"""E(sum)_+ with certified error: the numbers under every bound.

The stop-loss transform of a random number of independent terms by Fourier integral, saddle
point and convex rounding; compositions of many rounds on a grid; searches on monotone curves.
Numerical error only pushes an upper bound up and a lower bound down.
"""

"""Bounds from partial shuffles: swap client 1's report with one other, then compare
distributions."""

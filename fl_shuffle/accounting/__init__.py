"""Shuffle-model privacy accounting: pure mathematics on NumPy and SciPy, usable without a federation."""

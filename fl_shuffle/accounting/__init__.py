"""Shuffle-model privacy accounting: pure mathematics, usable without a federation."""

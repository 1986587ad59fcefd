"""Softmax regression, compiled: one pass over the records, where numba is installed."""

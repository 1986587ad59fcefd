"""Discrete Gaussian and discrete Laplace noise on the public grid, drawn exactly.

`words` has uniform integers from a cryptographic stream, `samplers` the two laws in integer
arithmetic alone, `reports` turns clipped means into reports.
"""

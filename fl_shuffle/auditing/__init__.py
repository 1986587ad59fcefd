"""Empirical lower bounds: distinguishing games that try to break what the accountant claims."""

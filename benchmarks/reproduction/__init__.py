"""The tables and figures of the founding papers, recomputed."""

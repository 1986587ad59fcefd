"""Runs as one self-contained HTML page, as tables and as figures, recomputed from their ledgers."""

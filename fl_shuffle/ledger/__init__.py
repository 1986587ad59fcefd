"""The durable record of a run, an SQLite file written before anything is released.

`tables` declares what stands in it, `store` writes it, and `reader` reads it without disturbing a
run.
"""

LEDGER = "ledger.sqlite"
METRICS = "metrics.csv"
"""Files of a run's directory."""

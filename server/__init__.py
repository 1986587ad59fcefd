"""The reference Flower ServerApp: wiring and evaluation. Copy it and edit it."""

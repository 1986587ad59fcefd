"""What a federation learns from: sources of records, partitions, features, models, evaluation.

`sources` reads `Records`, `partitions` cuts them into clients, `features` turns them into what a
model takes; `task` puts that together from a configuration. `models` builds models and losses,
`evaluation` measures a model. Nothing here knows of a server.
"""

from fl_shuffle.data.records import Records

__all__ = ["Records"]

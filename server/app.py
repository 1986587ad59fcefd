"""The ServerApp that `flwr run .` starts. Copy it and edit it.

`server.main` wires task, strategy, book and evaluation; see `fl_shuffle/apps/server.py` for the
parts if you want to put them together in another way.
"""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_shuffle.apps import server

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the whole federation and leave a finished run directory."""
    server.main(grid, context)

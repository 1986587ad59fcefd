"""Name of `fl_shuffle.builtin_apps` in versions 0.2 and 0.3, for Flower apps that still use it.

Configurations and ledgers with this name are read with the name of today
(`fl_shuffle.configuration.renamed`) and never import this module.
"""

from __future__ import annotations

import sys

from fl_shuffle import builtin_apps
from fl_shuffle._internal.renamed import warn_renamed
from fl_shuffle.builtin_apps import clients, server

# In a checkout, only `builtin_apps` itself knows where these two lie.
from fl_shuffle.builtin_apps.clients import app as _client  # type: ignore[import-not-found]
from fl_shuffle.builtin_apps.server import app as _server  # type: ignore[import-not-found]

warn_renamed(__name__, builtin_apps.__name__)
# One module under two names: a second copy would be a second app.
sys.modules |= {
    f"{__name__}.clients": clients,
    f"{__name__}.clients.app": _client,
    f"{__name__}.server": server,
    f"{__name__}.server.app": _server,
}

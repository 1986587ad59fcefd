"""The Flower apps of the framework, and what an app of your own needs.

`fl_shuffle.apps.client:app` and `fl_shuffle.apps.server:app` are what a simulation starts unless
the configuration's `[app]` section names others; they run unchanged on the in-process, Simulation
and Deployment Engines. `FederationSettings` is a server of your own in five lines.
"""

from typing import TYPE_CHECKING

from fl_shuffle.lazy import lazy_names

if TYPE_CHECKING:
    from fl_shuffle.apps.federation import FederationSettings

__all__ = ["FederationSettings"]

__getattr__, __dir__ = lazy_names(__name__, {"fl_shuffle.apps.federation": ("FederationSettings",)})

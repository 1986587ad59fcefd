"""The Flower apps of the framework: `fl_shuffle.apps.client:app` and `fl_shuffle.apps.server:app`.

They are what a simulation starts unless the configuration's `[app]` section names others, and they
run unchanged on the in-process, Simulation and Deployment Engines.
"""

"""The ServerApp of this repository: a short app that only uses the framework."""

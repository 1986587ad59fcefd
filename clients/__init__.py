"""The ClientApp of this repository: a short app that only uses the framework."""

"""Simulations on Ray, this machine's or a cluster's."""

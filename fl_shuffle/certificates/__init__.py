"""Certificates of printed epsilons, which `fl_shuffle.verify` checks."""

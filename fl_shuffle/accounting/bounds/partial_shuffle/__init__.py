"""Bounds from partial shuffles.

Client 1's report is swapped with one other, then distributions are compared.
"""

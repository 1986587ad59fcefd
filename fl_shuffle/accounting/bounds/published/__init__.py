"""Bounds as their papers print them: GSPA, Echo of Neighbors, Renyi forms, closed forms.

Where a printed statement does not stand as it is, the caller's status says so.
"""

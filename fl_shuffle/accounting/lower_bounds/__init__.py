"""Lower bounds: what a chosen dataset or a computed attack certainly loses.

Every number here is reached by an adversary; its numerical error is subtracted.
"""

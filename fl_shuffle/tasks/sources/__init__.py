"""The data sets that a configuration names: `digits`, which ships here, and `mnist`.

Each module's `read` returns train images, train labels, test images, test labels.
"""

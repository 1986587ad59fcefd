"""The data sets that a configuration names, a module a kind.

`digits` and `mnist` return train images and labels, then test ones; the others `Records`.
"""

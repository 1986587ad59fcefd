"""Upper bounds for one shuffled round, one family a module.

Blanket bounds of a given randomizer, clone reductions of any, noise on a ball for vectors,
moments, Renyi divergences, personal budgets; `published` has formulas as printed. Each
docstring gives statement, source and neighbouring relation.
"""

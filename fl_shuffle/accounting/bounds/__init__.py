"""Upper bounds for one shuffled round, one family a module.

Blanket bounds of a given randomizer, clone reductions of any, noise on a ball for vectors,
sums, personal budgets; `gspa` is as published. Each docstring gives statement, source and
neighbouring relation.
"""

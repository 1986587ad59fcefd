"""Upper bounds for one shuffled round, one family a module.

Blanket bounds of a given randomizer, clone reductions of any, noise on a ball for vectors,
sums, personal budgets; `gspa` is as published. Each docstring gives statement, source and
neighboring relation.
"""

from typing import Final

VERSION: Final = 7
"""Version of the theorems and numerical methods that certify a round.

Raise it with every change that moves a certified number: pairs and epsilons that another version
has written to a user's cache are not read (`accounting.pair_cache`). A test compares the numbers
with those that belong to this version (`tests/golden/certified_rounds.json`).
"""

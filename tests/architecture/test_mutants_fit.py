"""Every fault of `mutants.toml` can still be put into the product: one edit, at one place."""

from __future__ import annotations

from tests import mutants


def test_every_edit_still_fits_once() -> None:
    every = mutants.mutants()
    assert [why for mutant in every if (why := mutant.why_not()) is not None] == []
    names = [mutant.name for mutant in every]
    assert len(set(names)) == len(names)
    assert all(mutant.must_fail and mutant.old != mutant.new for mutant in every)

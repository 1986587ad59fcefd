"""What the server makes of a round's shuffled reports, at no privacy cost.

`robust` estimates their mean where some of them may be hostile; `optimizer` turns the mean into the
next model.
"""

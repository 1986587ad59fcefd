"""What can be asked of the accountant, and how every bound answers.

`question` validates a question once; `methods` is the list of everything that answers it, a
line each; the other modules turn the bounds of a family into guarantees.
"""

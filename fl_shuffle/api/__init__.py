"""The public face: what `import fl_shuffle as fs` offers, and what the command line calls.

Functions take plain values, return typed results, raise `FlShuffleError` for everything the user
can put right, and print nothing.
"""

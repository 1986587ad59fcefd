"""`scripts/chaos`: kills, damaged files, hostile clients and nonsense, and what became of the runs.

Runs are played in forked children of one process that has loaded everything, so that hundreds of
them take minutes. Releases are counted by a witness that is no part of the product: the clients
write down every model that they are shown.
"""

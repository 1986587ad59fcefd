"""A separate shuffler, under fire: its process, the server's and the nodes' are killed, and clients
hand over what no honest client does.

Shuffler, server and nodes are forked children of one process. They talk as in a deployment, but
that the server's requests reach the nodes by sockets of this machine instead of Flower's. What each
process must not know is looked for in its memory and its files.
"""

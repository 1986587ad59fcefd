"""The shuffler: takes a round's reports in, and lets them out without sender, order or time.

`local` is one inside the server: a simulated boundary for a reader of the server's memory.
`remote` is one that is a party of its own. Both have the four calls of `Batch` and `Shuffler`: a
round is opened, reports are added, the batch is closed and then released.
"""

"""The shuffler as a party of its own: sealed reports, its process, and how the others talk to it.

A client seals its report and hands it to the shuffler; the analyzer (the server) gets a round's
reports in random order, or their sum, and who took part. See docs/deployment.md.
"""
